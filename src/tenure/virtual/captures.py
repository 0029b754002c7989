"""CUDA graphs and memory pools: what is captured runs as it comes, with its tensors in their pool.

A capture asks for the memory that it would ask for on a card; a replay asks for none.
"""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.cuda
import torch.cuda.graphs
import torch.cuda.memory

from tenure.virtual.memory import Route

if TYPE_CHECKING:
    from tenure.patches import Patches
    from tenure.virtual.face import Streams
    from tenure.virtual.memory import Memory

Pool = tuple[int, int]

_SEED = 8  # bytes of each of the two numbers by which a graph finds its random ones
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class Captures:
    """The graphs of one card.

    Args:
        memory: Of the card.
        streams: Of the card.
    """

    def __init__(self, memory: Memory, streams: Streams) -> None:
        self.memory = memory
        self.streams = streams
        self._graphs = 0
        self._users = 0
        self._captured: set[int] = set()  # graphs that hold the seeds
        self._seeds: list[int] = []

    def graph_pool(self) -> Pool:
        """The id of a new pool, as captures number them."""
        self._graphs += 1
        return self._graphs, 0

    def user_pool(self) -> Pool:
        """The id of a new pool, as users' are numbered."""
        self._users += 1
        return 0, self._users

    def begin(self, graph: Any, pool: Pool | None) -> Pool:
        """Sends what the current stream asks for to a pool, a new one for None; its id."""
        stream = self.streams.current()
        if not stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        pool = pool or self.graph_pool()
        if not self._captured:
            self._seeds = [self.memory.allocate(_SEED, stream) for _ in range(2)]
        self._captured.add(id(graph))
        capturing = self.streams.capturing
        capturing.add(stream)
        self.memory.begin_route(Route(pool, lambda asking: asking in capturing, capture=True))
        return pool

    def end(self, pool: Pool) -> None:
        """Ends a capture."""
        self.streams.capturing.clear()
        self.memory.end_route(pool)

    def dropped(self, graph: Any, pool: Pool) -> None:
        """A graph is no longer: its pool may be given back once it is empty."""
        self.memory.release_pool(pool)
        self._captured.discard(id(graph))
        if not self._captured:
            for address in self._seeds:
                self.memory.free(address)
            self._seeds.clear()

    def is_capturing(self) -> bool:
        """Whether this thread's stream is captured."""
        return self.streams.current() in self.streams.capturing

    def overrides(self) -> dict[Any, Callable[..., Any]]:
        """To read a number waits for the card, which a capture does not allow."""

        def read(_func: Any, args: Any, _kwargs: Any) -> Any:
            if args[0].device.type == "cuda" and self.is_capturing():
                raise RuntimeError(NOT_PERMITTED)
            return NotImplemented

        return {torch.ops.aten._local_scalar_dense.default: read}


def paint(patches: Patches, captures: Captures) -> None:
    """Replaces what captures graphs and chooses pools."""
    graphs, memory = torch.cuda.graphs, sys.modules["torch.cuda.memory"]
    answers = {
        "CUDAGraph": _graph_class(captures),
        "graph_pool_handle": captures.user_pool,
        "is_current_stream_capturing": captures.is_capturing,
    }
    for name, answer in answers.items():
        for owner in (graphs, torch.cuda):
            patches.set(owner, name, answer)
    # Made at the first capture, and kept by the class.
    patches.set(graphs.graph, "default_capture_stream", None)
    patches.set(torch._C, "_host_emptyCache", lambda: None)
    for name, answer in _pool_functions(captures).items():
        for owner in (memory, torch.cuda):
            if hasattr(owner, name):
                patches.set(owner, name, answer)


def _graph_class(captures: Captures) -> type:
    class CUDAGraph:
        """A CUDA graph that is not there."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._pool: Pool | None = None
            self._ended = False

        def capture_begin(self, pool: Pool | None = None, *_modes: Any, **_named: Any) -> None:
            """Begins to capture the current stream."""
            self.reset()
            self._pool = captures.begin(self, pool)

        def capture_end(self) -> None:
            """Ends the capture."""
            if self._pool is not None:
                captures.end(self._pool)
                self._ended = True

        def replay(self) -> None:
            """Asks for nothing."""
            if not self._ended:
                raise RuntimeError(
                    "Called CUDAGraph::replay without a preceding successful capture."
                )

        def reset(self) -> None:
            """Drops what was captured."""
            if self._pool is not None:
                captures.dropped(self, self._pool)
            self._pool, self._ended = None, False

        def pool(self) -> Pool:
            """The id of its pool."""
            if self._pool is None:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding capture.")
            return self._pool

        def instantiate(self) -> None:
            """Nothing to do."""

        enable_debug_mode = instantiate

        def debug_dump(self, _path: str) -> None:
            """Nothing to show."""

        def __del__(self) -> None:
            with contextlib.suppress(Exception):  # at the interpreter's end all may be gone
                self.reset()

    return CUDAGraph


def _pool_functions(captures: Captures) -> dict[str, Any]:
    card = captures.memory

    class MemPool:
        """A memory pool of the script's own."""

        def __init__(
            self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
        ) -> None:
            self.id = captures.user_pool()
            self.allocator = allocator
            card.create_pool(self.id, use_on_oom=use_on_oom, no_split=no_split)

        def use_count(self) -> int:
            """How many hold it."""
            return 1

        def snapshot(self, include_traces: bool = True) -> Any:
            """Its segments."""
            segments = torch.cuda.memory_snapshot()
            return [s for s in segments if tuple(s["segment_pool_id"]) == self.id]

        def __del__(self) -> None:
            with contextlib.suppress(Exception):
                card.release_pool(self.id, empty=True)

    @contextlib.contextmanager
    def use_mem_pool(pool: Any, _device: Any = None) -> Iterator[None]:
        thread = threading.get_ident()
        card.begin_route(Route(pool.id, lambda _stream: threading.get_ident() == thread))
        try:
            yield
        finally:
            card.end_route(pool.id)
            card.release_pool(pool.id)

    return {"MemPool": MemPool, "use_mem_pool": use_mem_pool}
