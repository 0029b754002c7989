"""The engine in the loop: every request of the script goes to the allocator as it is made."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from pathlib import Path
from types import CodeType
from typing import Any

from tenure import _engine
from tenure.cards import Card
from tenure.errors import OutOfMemoryError
from tenure.settings import AllocatorSettings, engine_settings
from tenure.units import format_bytes
from tenure.virtual.card import kernels_of

# As PyTorch writes them into a snapshot (engine/trace.hpp).
ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM = 0, 1, 2, 8

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


class Memory:
    """The card's memory, and a record of all that happened to it.

    Every call may come from any thread; one lock orders them.

    Attributes:
        card: Whose memory.
        settings: The allocator's.
        allocator: The engine.
        measured: Whether the card's kernels were confirmed by a recording.
        failed: Text of the first request that could not be served; empty if none.
    """

    def __init__(self, card: Card, settings: AllocatorSettings) -> None:
        self.card = card
        self.settings = settings
        self.device = _engine.VirtualDevice(card.usable, "descending")
        self.allocator = _engine.Allocator(engine_settings(settings), self.device)
        self.measured = kernels_of(card).measured
        self.failed = ""
        self.begun = time.time_ns() // 1000
        # One entry an event: action, address (of an OOM: free bytes of the device), bytes, stream,
        # microseconds, stack.
        self.actions = array("B")
        self.addresses = array("Q")
        self.sizes = array("q")
        self.streams = array("Q")
        self.times = array("q")
        self.stacks = array("q")
        self.stack_ids: dict[tuple[tuple[CodeType, int], ...], int] = {}
        self._live: dict[int, tuple[int, int]] = {}  # address -> bytes, stream
        self._highest: dict[str, int] = {}
        self._shown: dict[CodeType, bool] = {}
        # A garbage collection inside one call may free tensors, which is another call.
        self._lock = threading.RLock()

    def allocate(self, size: int, stream: int = 0) -> int:
        """The address of a new block; 0 for no bytes.

        Raises:
            OutOfMemoryError: As the card would.
        """
        if size <= 0:
            return 0
        with self._lock:
            try:
                address = int(self.allocator.allocate(size, stream))
            except OutOfMemoryError:
                free = self.card.usable - self._statistic("reserved_bytes.all.current")
                self._record(OOM, free, size, stream)
                message = self._message(size, free)
                self.failed = self.failed or message
                raise OutOfMemoryError(message, size, stream=stream) from None
            self._live[address] = (size, stream)
            self._log_segments(stream)
            self._record(ALLOC, address, size, stream)
            return address

    def free(self, address: int) -> None:
        """Takes a block back."""
        with self._lock:
            found = self._live.pop(address, None)
            if found is None:
                return
            size, stream = found
            self.allocator.free(address)
            self._record(FREE_REQUESTED, address, size, stream)
            self._record(FREE_COMPLETED, address, size, stream)
            self._log_segments(stream)

    def record_stream(self, address: int, stream: int) -> None:
        """Notes that another stream uses a block."""
        with self._lock:
            if address in self._live:
                self.allocator.record_stream(address, stream)

    def finish(self, *streams: int) -> None:
        """Lets all work on these streams be done."""
        with self._lock:
            for stream in streams:
                self.allocator.finish(stream)

    def empty_cache(self) -> None:
        """Gives free segments back."""
        with self._lock:
            self.allocator.empty_cache()
            self._log_segments(0)

    def set_limit(self, limit: int) -> None:
        """Sets the most bytes that may be reserved."""
        with self._lock:
            self.allocator.set_limit(limit)

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

    def free_bytes(self) -> int:
        """What the driver would say is free."""
        return self.card.usable - self._statistic("reserved_bytes.all.current")

    def statistics(self) -> dict[str, int]:
        """What torch.cuda.memory_stats says."""
        with self._lock:
            return dict(self.allocator.statistics())

    def _statistic(self, name: str) -> int:
        return int(self.allocator.statistics()[name])

    def _message(self, size: int, free: int) -> str:
        in_use = self._statistic("reserved_bytes.all.current")
        allocated = self._statistic("allocated_bytes.all.current")
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(size)}. GPU 0 has a total "
            f"capacity of {format_bytes(self.card.total)} of which {format_bytes(max(free, 0))} is "
            f"free. Of the allocated memory {format_bytes(allocated)} is allocated by PyTorch, and "
            f"{format_bytes(in_use - allocated)} is reserved by PyTorch but unallocated."
        )

    def _log_segments(self, stream: int) -> None:
        for action, address, size in self.allocator.segment_events():
            self._record(action, address, size, stream)

    def _record(self, action: int, address: int, size: int, stream: int) -> None:
        self.actions.append(action)
        self.addresses.append(max(address, 0))
        self.sizes.append(size)
        self.streams.append(stream)
        self.times.append(time.time_ns() // 1000)
        self.stacks.append(self._stack() if action in {ALLOC, OOM} else -1)

    def _stack(self) -> int:
        """The number of the stack that is running now, innermost first, without our own frames."""
        places = []
        frame: Any = sys._getframe(2)  # noqa: SLF001  the documented way to walk a stack
        while frame is not None:
            code = frame.f_code
            shown = self._shown.get(code)
            if shown is None:
                file = code.co_filename
                shown = not (file.startswith(_HIDDEN) or file.endswith(_HIDDEN_ENDS))
                self._shown[code] = shown
            if shown:
                places.append((code, frame.f_lineno))
            frame = frame.f_back
        return self.stack_ids.setdefault(tuple(places), len(self.stack_ids))
