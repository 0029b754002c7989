"""The engine in the loop: every request of the script goes to the allocator as it is made."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from tenure import _engine
from tenure.cards import Card
from tenure.errors import OutOfMemoryError
from tenure.lifetimes import NO_FRAMES, site_of
from tenure.settings import AllocatorSettings, engine_settings
from tenure.traces import Frame
from tenure.units import GIB, KIB, MIB, format_bytes
from tenure.virtual.card import kernels_of

# As PyTorch writes them into a snapshot (engine/trace.hpp).
ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM = 0, 1, 2, 8
_GROWS = frozenset((3, 5))  # segment_alloc, segment_map
DEFAULT_POOL = (0, 0)
PENDING = 2  # state of a block (recording.py)

_NEAR = 16  # autograd nodes in a row whose operators ask for nothing
_SHOWN = 5  # lines that hold most, in the message of an OutOfMemoryError
_MANUAL = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
_PACKAGE = str(Path(__file__).parent.parent)
_HIDDEN = (_PACKAGE, "<frozen runpy>", "<frozen importlib")
_HIDDEN_ENDS = (
    "torch/utils/_python_dispatch.py",
    "torch/_subclasses/fake_tensor.py",
    "torch/utils/_stats.py",
    "torch/_ops.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/overrides.py",
    "runpy.py",
)


class Lineage(NamedTuple):
    """Which autograd node an operator has to do with.

    Attributes:
        number: Of the node; PyTorch numbers them in order of the forward pass.
        in_backward: Whether the operator belongs to that node's backward.
    """

    number: int
    in_backward: bool


class Route(NamedTuple):
    """Where requests go while a graph is captured, or a pool is chosen.

    Attributes:
        pool: Its id, as PyTorch writes it.
        accepts: Whether a request of a stream goes there.
        capture: Whether a graph is captured.
    """

    pool: tuple[int, int]
    accepts: Callable[[int], bool]
    capture: bool = False


class Memory:
    """The card's memory, and a record of all that happened to it.

    Every call may come from any thread; one lock orders them.

    The allocator begins at the first call that needs it, as PyTorch's does: a script may set
    PYTORCH_CUDA_ALLOC_CONF until then.

    Args:
        card: Whose memory.
        settings: Gives the allocator's settings when it begins.
        unlimited: Serves every request, to find out how much is needed.

    Attributes:
        card: Whose memory.
        measured: Whether the card's kernels were confirmed by a recording.
        failed: Text of the first request that could not be served; empty if none.
        failed_at: The line that made it.
        failures: How many there were.
        failed_under: The most bytes that could be reserved when the first one failed.
        lineage: Which autograd node an operator that runs now makes, or belongs to in a backward
            pass; set by the tracker.
    """

    def __init__(
        self, card: Card, settings: Callable[[], AllocatorSettings], *, unlimited: bool = False
    ) -> None:
        self.card = card
        self._settings = settings
        self._capacity = -1 if unlimited else card.usable
        self._limit = -1
        self.measured = kernels_of(card).measured
        self.failed = ""
        self.failed_at = ""
        self.failures = 0
        self.failed_under: int | None = None
        self.begun = time.time_ns() // 1000
        self.lineage: Callable[[], Lineage] = lambda: Lineage(-1, in_backward=False)
        # One entry an event: action, address (of an OOM: free bytes of the device), bytes, stream,
        # microseconds, stack, and in a backward pass that of the forward line.
        self.actions = array("B")
        self.addresses = array("Q")
        self.sizes = array("q")
        self.streams = array("Q")
        self.times = array("q")
        self.stacks = array("q")
        self.forwards = array("q")
        self.stack_ids: dict[tuple[tuple[CodeType, int], ...], int] = {}
        # Address -> bytes, stream, stack, forward stack.
        self._live: dict[int, tuple[int, int, int, int]] = {}
        self._made: dict[int, int] = {}  # number of an autograd node -> stack of its operator
        self._pending: dict[int, tuple[int, int]] = {}  # freed, not completed: bytes, stream
        self._segments: dict[int, int] = {}  # address of what was allocated or mapped -> stream
        self._waiting = 0  # bytes of those that waited when last looked at
        self._routes: list[Route] = []
        self.pools: dict[int, tuple[int, int]] = {}  # event -> its private pool
        self.guesses: list[int] = []  # events whose size is a guess
        self._used = False  # whether any block was used by another stream than its own
        self._highest: dict[str, int] = {}
        self._shown: dict[CodeType, bool] = {}
        # A garbage collection inside one call may free tensors, which is another call.
        self._lock = threading.RLock()

    @cached_property
    def settings(self) -> AllocatorSettings:
        """Those in force, from the first use of the card on."""
        return self._settings()

    @cached_property
    def allocator(self) -> _engine.Allocator:
        """The engine."""
        self._limit = self.settings.limit
        device = _engine.VirtualDevice(self._capacity, "descending")
        return _engine.Allocator(engine_settings(self.settings), device)

    def allocate(self, size: int, stream: int = 0, *, guess: bool = False) -> int:
        """The address of a new block; 0 for no bytes.

        Args:
            size: Bytes.
            stream: On which it is used.
            guess: Whether a card might ask for another size.

        Raises:
            OutOfMemoryError: As the card would.
        """
        if size <= 0:
            return 0
        with self._lock:
            try:
                pool = self._pool_for(stream)
                address = int(self.allocator.allocate(size, stream, pool))
            except OutOfMemoryError as error:
                raise self._failure(error, size, stream) from None
            stack = self._stack()
            forward = self._forward(stack)
            self._live[address] = (size, stream, stack, forward)
            self._log_completed()
            self._log_segments(stream)
            if pool != DEFAULT_POOL:
                self.pools[len(self.actions)] = pool
            if guess:
                self.guesses.append(len(self.actions))
            self._record(ALLOC, address, size, stream, stack, forward)
            return address

    def begin_route(self, route: Route) -> None:
        """Sends requests to a pool, which is made if it is not there."""
        with self._lock:
            self.allocator.create_pool(route.pool)
            self._routes.append(route)
            if self._holds_back(route):
                self.allocator.begin_capture()

    def end_route(self, pool: tuple[int, int]) -> None:
        """Ends the latest route to a pool."""
        with self._lock:
            route = next((r for r in reversed(self._routes) if r.pool == pool), None)
            if route is not None:
                self._routes.remove(route)
                if self._holds_back(route):
                    self.allocator.end_capture()

    def create_pool(
        self, pool: tuple[int, int], *, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        """Makes a pool, or holds it once more."""
        with self._lock:
            self.allocator.create_pool(pool)
            if no_split:
                self.allocator.set_no_split(pool)
            if use_on_oom:
                self.allocator.set_use_on_oom(pool, True)

    def release_pool(self, pool: tuple[int, int], *, empty: bool = False) -> None:
        """Holds a pool once less.

        Args:
            pool: Its id.
            empty: Whether its free segments are given back at once, if nobody holds it.
        """
        with self._lock:
            self.allocator.release_pool(pool)
            if empty:
                self.allocator.empty_cache_pool(pool)
                self._log_segments()

    def _pool_for(self, stream: int) -> tuple[int, int]:
        return next((r.pool for r in reversed(self._routes) if r.accepts(stream)), DEFAULT_POOL)

    def _holds_back(self, route: Route) -> bool:
        """Whether PyTorch completes no frees meanwhile: for any pool until 2.12."""
        return route.capture or self.settings.torch_version < (2, 13)

    def free(self, address: int) -> None:
        """Takes a block back."""
        with self._lock:
            found = self._live.pop(address, None)
            if found is None:
                return
            size, stream, *_ = found
            self.allocator.free(address)
            self._record(FREE_REQUESTED, address, size, stream)
            self._pending[address] = (size, stream)
            self._log_completed(address)
            self._log_segments(stream)

    def record_stream(self, address: int, stream: int) -> None:
        """Notes that another stream uses a block."""
        with self._lock:
            if address in self._live:
                self.allocator.record_stream(address, stream)
                self._used = True

    def finish(self, *streams: int) -> None:
        """Lets all work on these streams be done."""
        with self._lock:
            for stream in streams:
                self.allocator.finish(stream)
            self._log_completed()

    def empty_cache(self) -> None:
        """Gives free segments back."""
        with self._lock:
            self.allocator.empty_cache()
            self._log_completed()
            self._log_segments()

    def set_limit(self, limit: int) -> None:
        """Sets the most bytes that may be reserved."""
        with self._lock:
            self.allocator.set_limit(limit)
            self._limit = limit

    def reset_peak(self) -> None:
        """Starts PyTorch's peaks anew; `peak` keeps those of the whole run."""
        with self._lock:
            self._highest = self.peak()
            self.allocator.reset_peak()

    def peak(self) -> dict[str, int]:
        """Bytes requested, allocated, active and reserved at their peaks, of the whole run."""
        statistics = self.statistics()
        return {
            name: max(statistics[f"{name}_bytes.all.peak"], self._highest.get(name, 0))
            for name in ("requested", "allocated", "active", "reserved")
        }

    def allocated(self) -> int:
        """Bytes allocated now."""
        with self._lock:
            return self._statistic("allocated_bytes.all.current")

    def free_bytes(self) -> int:
        """What the driver would say is free."""
        return self.card.usable - self._statistic("reserved_bytes.all.current")

    def statistics(self) -> dict[str, int]:
        """What torch.cuda.memory_stats says."""
        with self._lock:
            return dict(self.allocator.statistics())

    def _statistic(self, name: str) -> int:
        return int(self.allocator.statistics()[name])

    def _failure(self, error: OutOfMemoryError, size: int, stream: int) -> OutOfMemoryError:
        """The error that PyTorch would raise, and what was live, after it in the same text."""
        self._log_completed()
        self._log_segments(stream)
        stack = self._stack()
        forward = self._forward(stack)
        free = max(self.free_bytes(), 0)
        self._record(OOM, free, size, stream, stack, forward)
        message = self._message(error.segment or size, free)
        self.failures += 1
        if not self.failed:
            self.failed = message
            self.failed_at = self._place(stack, forward)
            bounds = [bound for bound in (self._capacity, self._limit) if bound >= 0]
            self.failed_under = min(bounds, default=None)
        return OutOfMemoryError(message + self._holders(), size, error.segment, stream)

    def _message(self, segment: int, free: int) -> str:
        """As PyTorch 2.11 writes it, on a machine whose driver tells who uses what."""
        in_use = self._statistic("reserved_bytes.all.current")
        allocated = self._statistic("allocated_bytes.all.current")
        allowed = f"{_size_text(self._limit)} allowed; " if self._limit >= 0 else ""
        return (
            f"CUDA out of memory. Tried to allocate {_size_text(segment)}. GPU 0 has a total "
            f"capacity of {_size_text(self.card.total)} of which {_size_text(free)} is free. "
            f"Including non-PyTorch memory, this process has "
            f"{_size_text(self.card.context + in_use)} memory in use. {allowed}"
            f"Of the allocated memory {_size_text(allocated)} is allocated by PyTorch, and "
            f"{_size_text(in_use - allocated)} is reserved by PyTorch but unallocated. If reserved "
            "but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
            "expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            f"Management  ({_MANUAL}#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )

    def _holders(self) -> str:
        """The lines that made most of what is live."""
        labels = self._labels()
        sizes: Counter[str] = Counter()
        for size, _, stack, forward in self._live.values():
            sizes[labels[stack] if forward < 0 else f"backward of {labels[forward]}"] += size
        if not sizes:
            return ""
        lines = [
            f"  {format_bytes(size):>10}  {label}" for label, size in sizes.most_common(_SHOWN)
        ]
        return "\nMost of the live memory was made by\n" + "\n".join(lines)

    def _place(self, stack: int, forward: int) -> str:
        """Where a request was made, for people."""
        labels = self._labels()
        if forward >= 0:
            return f"backward of {labels[forward]}"
        caller = _backward_caller() if labels[stack] == NO_FRAMES else None
        if caller is not None:
            return f"backward, called at {_label(self._places(caller))}"
        return labels[stack]

    def _labels(self) -> list[str]:
        """Of each stack."""
        return [_label(places) for places in self.stack_ids]

    def _log_completed(self, freed: int = 0) -> None:
        """Frees whose blocks no stream uses any more.

        Args:
            freed: Address of the block that was freed just now; 0 for none.
        """
        if not self._pending:
            return
        done = [freed] if freed else []
        if self._used:
            now = self.allocator.statistics()
            waiting = now["active_bytes.all.current"] - now["allocated_bytes.all.current"]
            if waiting != self._waiting:
                self._waiting = waiting
                still = {block[1] for block in self.allocator.blocks() if block[4] == PENDING}
                done = [address for address in self._pending if address not in still]
        for address in done:
            size, stream = self._pending.pop(address)
            self._record(FREE_COMPLETED, address, size, stream)

    def _log_segments(self, stream: int = 0) -> None:
        """What the engine asked of the device.

        Args:
            stream: For which it grew; what is given back tells its own.
        """
        for action, address, size in self.allocator.segment_events():
            if action in _GROWS:
                self._segments[address] = stream
                self._record(action, address, size, stream)
                continue
            owner = self._segments.get(address)
            if owner is None:  # part of a mapped range
                begin = max((a for a in self._segments if a < address), default=0)
                owner = self._segments.get(begin, stream)
            self._record(action, address, size, owner)

    def _record(  # noqa: PLR0917  an event's columns
        self, action: int, address: int, size: int, stream: int, stack: int = -1, forward: int = -1
    ) -> None:
        self.actions.append(action)
        self.addresses.append(max(address, 0))
        self.sizes.append(size)
        self.streams.append(stream)
        self.times.append(time.time_ns() // 1000)
        self.stacks.append(stack)
        self.forwards.append(forward)

    def _forward(self, stack: int) -> int:
        """In a backward pass without frames the stack of the forward operator, else -1."""
        number, in_backward = self.lineage()
        if not in_backward:
            self._made[number] = stack
            return -1
        if stack != self.stack_ids.get(()):
            return -1
        # Views make nodes too, and ask for nothing: the operator before them is near.
        near = range(number, number - _NEAR, -1)
        return next((self._made[n] for n in near if n in self._made), -1)

    def _stack(self) -> int:
        """The number of the stack that is running now."""
        places = self._places(sys._getframe(2))  # noqa: SLF001  the documented way to walk a stack
        return self.stack_ids.setdefault(places, len(self.stack_ids))

    def _places(self, frame: Any) -> tuple[tuple[CodeType, int], ...]:
        """A stack's lines, innermost first, without our own frames."""
        places = []
        while frame is not None:
            code = frame.f_code
            shown = self._shown.get(code)
            if shown is None:
                shown = self._shown[code] = is_shown(code.co_filename)
            if shown:
                places.append((code, frame.f_lineno))
            frame = frame.f_back
        return tuple(places)


def _label(places: tuple[tuple[CodeType, int], ...]) -> str:
    """The line of the script in a stack, and that of the library which it called."""
    return site_of(tuple(Frame(c.co_filename, line, c.co_name) for c, line in places)).label


def _backward_caller() -> Any:
    """The frame of a thread that waits for a backward pass; None if there is none."""
    frames = sys._current_frames().values()  # noqa: SLF001  the documented way to see other threads
    return next((f for f in frames if f.f_code.co_name == "_engine_run_backward"), None)


def is_shown(file: str) -> bool:
    """Whether a frame of that file would be there on a real card."""
    return not (file.startswith(_HIDDEN) or file.endswith(_HIDDEN_ENDS))


def _size_text(size: int) -> str:
    """As PyTorch writes sizes."""
    if size <= KIB:
        return f"{size} bytes"
    unit, name = (KIB, "KiB") if size <= MIB else (MIB, "MiB") if size <= GIB else (GIB, "GiB")
    return f"{size / unit:.2f} {name}"
