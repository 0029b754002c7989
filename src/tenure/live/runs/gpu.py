"""The CUDA side of a watched run: PyTorch's own history, its counters, and what the driver says.

Nothing here may cost the script anything but time: every call that needs CUDA is tried, and one
that fails becomes a sentence in `GpuRecord.missing`.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from tenure import _engine
from tenure.live.runs.counting import Counters, counters_of, host_counters, segments_of
from tenure.live.runs.driver import DeviceUse, device_use
from tenure.live.runs.own_frames import hide_own_frames
from tenure.live.runs.sharing import Shared, Sharing
from tenure.live.runs.windows import SLACK, Window, no_collections, window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RING = 300_000  # events kept; some hundred bytes each
NEARLY_FULL = 0.8  # of the ring, for a snapshot to be taken at an out-of-memory
PER_ALLOCATION = 2.2  # events, about: alloc, free requested, free completed, segments
FIRST_MARKS = 8  # in which it is looked whether more devices hold memory ...
LOOK_FOR_DEVICES = 64  # ... and marks between two looks after that
ROOM = 0.8  # of what may be reserved: above, an out-of-memory is near, whose past must be known
OOMS = 2  # out-of-memories of a run that are looked at
_ABSENT: Any = object()


@dataclass
class Calls:
    """Calls of one function that the script made: how often, and how long they took."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class GpuRecord:
    """What was seen of the GPUs.

    Attributes:
        begun: Unix time of CUDA's first use; 0 if it was not used.
        backend: Whose allocator serves: "native", "cudaMallocAsync", "pluggable", "tenure".
        window: What of the run was recorded; where that was not all of it, the part that says most.
        devices: Devices that hold or held memory: their counters at the end.
        peaks: Device -> its highest counters over the whole run.
        host: Pinned memory's counters at the end, PyTorch's names without ".current".
        use: Device -> what the driver says of it at the end.
        shared: What other processes got of this one's memory.
        calls: Function -> the script's calls of it.
        emptied: What empty_cache() returned after the script's end, in bytes, and its seconds;
            None if it was not tried.
        ooms: Unix times at which memory ran out.
        stacks: How the lines were recorded, in words; "" if always.
        recorded: Which steps were recorded, and why not the others, in words; "" if all were.
        missing: What could not be had, in sentences.
    """

    begun: float = 0.0
    backend: str = ""
    window: Window | None = None
    devices: dict[int, Counters] = field(default_factory=dict)
    peaks: dict[int, Counters] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)
    use: dict[int, DeviceUse] = field(default_factory=dict)
    shared: tuple[Shared, ...] = ()
    calls: dict[str, Calls] = field(default_factory=dict)
    emptied: tuple[int, float] | None = None
    ooms: list[float] = field(default_factory=list)
    stacks: str = ""
    recorded: str = ""
    missing: list[str] = field(default_factory=list)

    @property
    def snapshot(self) -> bytes:
        """A pickled PyTorch snapshot of the run; empty if there is none."""
        return self.window.snapshot if self.window else b""


class Gpu:
    """Watches the GPUs of this process; `arm` before the script, `finish` after it."""

    def __init__(self, ran_out: Callable[[], object] = lambda: None) -> None:
        """Does nothing yet.

        Args:
            ran_out: Called when a request failed, in its thread, before the stack unwinds.
        """
        self.record = GpuRecord()
        self.sharing = Sharing()
        self.recording = False  # or would be, but for a rest
        self.resting = False
        self._since = 0.0  # Unix time from which the history holds everything
        self._scripts_own = False  # the script wants a history
        self._ran_out = ran_out
        self._process = os.getpid()
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._context: str | None = "all"
        self._ours = False  # the call under way is our own
        self._busy = False
        self._marks = 0

    def arm(self) -> None:
        """Waits for CUDA's first use, without being it."""
        torch: Any = sys.modules["torch"]
        with _tried(self, "CUDA's first use cannot be waited for"):
            native = torch._C  # noqa: SLF001  PyTorch's interface has no public name
            for name, around in (
                ("_cuda_resetPeakMemoryStats", self._around_reset),
                ("_cuda_record_memory_history", self._around_history),
                ("_cuda_record_memory_history_legacy", self._around_legacy_history),
                ("_cuda_memorySnapshot", self._around_snapshot),
                ("_cuda_emptyCache", self._timed("empty_cache")),
                ("_cuda_synchronize", self._timed("synchronize")),
                ("_cuda_ipc_collect", self._timed("ipc_collect")),
            ):
                self._replace(native, name, around)
            self.sharing.arm(torch)
            torch.cuda._lazy_call(self.begin)  # noqa: SLF001  the hook PyTorch has for this

    def begin(self) -> None:
        """CUDA has just been initialised; nothing has been allocated on it yet."""
        if self.record.begun or os.getpid() != self._process:
            return
        self.record.begun = time.time()
        torch: Any = sys.modules["torch"]
        self.record.backend = backend_of(torch)
        if self.record.backend == "pluggable":
            self.record.missing.append(
                "a pluggable allocator is installed: PyTorch has no statistics and no history of "
                "it, so device bytes are those of the tensors that were found"
            )
            return
        try:
            self.keep_stacks(on=True)
            self.recording, self._since = True, self.record.begun
        except Exception as error:  # noqa: BLE001  whatever an allocator or a version may raise
            self.say("PyTorch's memory history could not be started", error)
            if "CUDAPluggableAllocator" in str(error):
                self.record.backend = "pluggable"
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)  # noqa: SLF001
        if attach is not None:
            with _tried(self, "out-of-memories cannot be observed"):
                attach(self._out_of_memory)

    def set_stacks(self, *, on: bool) -> None:
        """Changes whether lines are kept of what follows, if that is another wish than before."""
        if (self._context is not None) is not on:
            with _tried(self, "PyTorch's history could not be changed"):
                self.keep_stacks(on=on)

    def keep_stacks(self, *, on: bool, anew: bool = False) -> None:
        """Starts PyTorch's history, or changes whether it keeps the lines of what follows.

        Args:
            on: Whether lines are kept.
            anew: Nothing that was recorded before may stay.

        Raises:
            RuntimeError: This allocator has none.
        """
        clearing = {"clear_history": True} if anew and _knows_clearing() else {}
        self._context = "all" if on else None
        self._change_history("all", context=self._context, **clearing)

    def can_change_stacks(self) -> bool:
        """Whether changing them leaves what was recorded; older torch begins anew each time."""
        return self.recording and self.record.backend == "native" and _knows_clearing()

    def may_rest(self) -> bool:
        """Whether recording can end for a while: not where the script wants it, nor near the limit.

        What happened just before an out-of-memory must be known when it comes.
        """
        if not self.recording or self._scripts_own:
            return False
        torch: Any = sys.modules["torch"]
        fraction = getattr(torch.cuda.memory, "get_per_process_memory_fraction", lambda _: 1.0)
        room = []
        with _tried(self, "how much memory there is cannot be asked"):
            if not torch.cuda.is_current_stream_capturing():  # a capture bears few questions
                for device, now in self.record.peaks.items():
                    free, total = torch.cuda.mem_get_info(device)
                    most = min(total * fraction(device), free + now.reserved)
                    room.append(now.reserved <= ROOM * most)
        return bool(room) and all(room)

    def rest(self, *, news: bool) -> None:
        """Ends recording for a while.

        Args:
            news: Whether what was recorded shows anything new, and is worth keeping.
        """
        if news:
            self._keep()
        with _tried(self, "PyTorch's history could not be stopped"):
            self._change_history(None)
            self.resting = True

    def go_on(self) -> None:
        """Records again after a rest."""
        if self.resting and os.getpid() == self._process:
            with _tried(self, "PyTorch's history could not be started again"):
                self._since = time.time()
                self.keep_stacks(on=True, anew=True)
                self.resting = False

    def mark(self) -> list[Counters]:
        """The counters of every device in use, which also enter the peaks."""
        if not self.record.begun or self.record.backend == "pluggable":
            return []
        found = []
        try:
            torch: Any = sys.modules["torch"]
            for device in self._devices(torch):
                counters = counters_of(torch, device)
                if counters.peak_reserved or counters.reserved:
                    found.append(counters)
                    self._note_peak(counters)
        except Exception as error:  # noqa: BLE001  whatever a driver or a version may raise
            self.say("the allocator's counters cannot be read", error)
            self.record.backend = "pluggable" if "luggable" in str(error) else self.record.backend
        return found

    def finish(self) -> None:
        """Takes the end state; the script has ended, its objects still live."""
        if not self.record.begun or os.getpid() != self._process:
            return
        torch: Any = sys.modules["torch"]
        self._marks = 0  # every device
        for counters in self.mark():
            self.record.devices[counters.device] = counters
        self.sharing.look(self._live_addresses)
        self.record.shared = self.sharing.held()
        with _tried(self, "pinned memory's counters cannot be read"):
            self.record.host = host_counters(torch)
        for device in self.record.devices or ([0] if self.record.backend == "pluggable" else []):
            with _tried(self, f"what the driver says of GPU {device} cannot be read"):
                self.record.use[device] = device_use(torch, device, self._reserved(device))
        if self.recording and (not self.resting or self.record.window is None):
            self._keep()

    def try_empty_cache(self) -> None:
        """Empties the cache once, to know what that takes; the script has ended, all is taken."""
        if not self.record.devices or os.getpid() != self._process:
            return
        torch: Any = sys.modules["torch"]
        with _tried(self, "empty_cache() could not be timed"):
            before = sum(c.reserved for c in self.mark())
            begun, self._ours = time.perf_counter(), True
            try:
                torch.cuda.empty_cache()
            finally:
                self._ours = False
            seconds = time.perf_counter() - begun
            after = sum(c.reserved for c in self.mark())
            self.record.emptied = (before - after, seconds)

    def disarm(self) -> None:
        """Gives PyTorch's functions back, but those that somebody replaced after us."""
        while self._replaced:
            module, name, before, ours = self._replaced.pop()
            if getattr(module, name, None) is ours:
                setattr(module, name, before)
        self.sharing.disarm()

    # --- what PyTorch calls -------------------------------------------------------------------

    def _out_of_memory(self, device: int, size: int, _most: int = 0, free: int = 0) -> None:
        """Before the stack unwinds, with no lock of the allocator held."""
        if self._busy or os.getpid() != self._process:
            return
        self._busy = True
        try:
            now = time.time()
            self.record.ooms.append(now)
            marked = self.mark()
            if len(self.record.ooms) <= OOMS:
                self._ran_out()
                made = max((c.allocations for c in marked), default=0)
                if self.resting:
                    self._keep((device, _failed_request(size, free, now)))
                elif self.recording and made * PER_ALLOCATION > RING * NEARLY_FULL:
                    self._keep()  # by the end the ring would have lost this moment
        except Exception as error:  # noqa: BLE001  an error here would replace the script's own
            self.say(f"the out-of-memory on GPU {device} could not be looked at", error)
        finally:
            self._busy = False

    def _around_reset(self, before: Any) -> Any:
        @wraps(before)
        def reset(*args: Any, **kwargs: Any) -> Any:
            self.mark()  # peaks so far, which the reset forgets
            return before(*args, **kwargs)

        return reset

    def _around_history(self, before: Any) -> Any:
        """The script's own use of the history: it gets what it asks for, and we keep ours."""

        @wraps(before)
        def record(enabled: Any, *args: Any, **kwargs: Any) -> Any:
            if self._ours or not self.recording or os.getpid() != self._process:
                return before(enabled, *args, **kwargs)
            self._scripts_own = enabled is not None
            if enabled is None:  # would throw away what was recorded; the script is done with it
                return None
            if self.resting:
                self.resting, self._since = False, time.time()
            rest = list(args)
            if rest and rest[0] is None:
                rest[0] = "all"  # lines as well
            if len(rest) > 2 and isinstance(rest[2], int):
                rest[2] = max(rest[2], RING)
            if len(rest) > 3 and rest[3] is True:
                self.record.missing.append("the script cleared PyTorch's history on the way")
            return before(enabled, *rest, **kwargs)

        return record

    def _around_legacy_history(self, before: Any) -> Any:
        """The script's use of the history as it was called before torch 2.1."""

        @wraps(before)
        def record(enabled: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.recording or os.getpid() != self._process:
                return before(enabled, *args, **kwargs)
            torch: Any = sys.modules["torch"]
            wanted = "all" if enabled else None
            return torch.cuda.memory._record_memory_history(wanted)  # noqa: SLF001  no public name

        return record

    def _around_snapshot(self, before: Any) -> Any:
        """The script's own look at the history does not show that it is watched."""

        @wraps(before)
        def take(*args: Any, **kwargs: Any) -> Any:
            snapshot = before(*args, **kwargs)
            if self.recording and os.getpid() == self._process:
                with _tried(self, "tenure's own frames could not be taken out of a snapshot"):
                    hide_own_frames(snapshot)
            return snapshot

        return take

    def _timed(self, name: str) -> Callable[[Any], Any]:
        def around(before: Any) -> Any:
            @wraps(before)
            def timed(*args: Any, **kwargs: Any) -> Any:
                if self._ours:
                    return before(*args, **kwargs)
                begun = time.perf_counter()
                result = before(*args, **kwargs)
                calls = self.record.calls.setdefault(name, Calls())
                calls.count += 1
                calls.seconds += time.perf_counter() - begun
                if name != "synchronize" and os.getpid() == self._process:
                    self.sharing.look(self._live_addresses)
                return result

            return timed

        return around

    # --- parts --------------------------------------------------------------------------------

    def _replace(self, module: Any, name: str, around: Callable[[Any], Any]) -> None:
        before = getattr(module, name, _ABSENT)
        if before is not _ABSENT:
            ours = around(before)
            self._replaced.append((module, name, before, ours))
            setattr(module, name, ours)

    def _devices(self, torch: Any) -> list[int]:
        """Those that hold memory; now and then it is looked whether more do by now."""
        self._marks += 1
        often = self._marks <= FIRST_MARKS or not self.record.peaks
        if often or self._marks % LOOK_FOR_DEVICES == 1:
            return list(range(min(torch.cuda.device_count(), 64)))
        return list(self.record.peaks)

    def _note_peak(self, now: Counters) -> None:
        known = self.record.peaks.get(now.device, now)
        self.record.peaks[now.device] = replace(
            now,
            peak_requested=max(known.peak_requested, now.peak_requested),
            peak_allocated=max(known.peak_allocated, now.peak_allocated),
            peak_active=max(known.peak_active, now.peak_active),
            peak_reserved=max(known.peak_reserved, now.peak_reserved),
        )

    def _reserved(self, device: int) -> int:
        counters = self.record.devices.get(device)
        return counters.reserved if counters else 0

    def _change_history(self, enabled: str | None, **how: Any) -> None:
        torch: Any = sys.modules["torch"]
        self._ours = True
        try:
            torch.cuda.memory._record_memory_history(  # noqa: SLF001  has no public name
                enabled=enabled, stacks="python", max_entries=RING, **how
            )
        finally:
            self._ours = False

    def _keep(self, failed: tuple[int, dict[str, Any]] | None = None) -> None:
        """Takes a snapshot, which stays if it says more than the one that was kept before.

        Args:
            failed: While recording rests: a device, and the request that failed there.
        """
        torch: Any = sys.modules["torch"]
        with _tried(self, "PyTorch's memory snapshot could not be taken"), no_collections():
            snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001  has no public name
            since = self._since
            if failed is not None:
                device, event = failed
                since = event["time_us"] / 1e6
                snapshot["device_traces"][device].append(event)
                hide_own_frames(snapshot)
            ran_out = any(moment >= since - SLACK for moment in self.record.ooms)
            window = window_of(snapshot, since, time.time(), RING, out_of_memory=ran_out)
            if window.says_more_than(self.record.window):
                self.record.window = window

    def _live_addresses(self) -> dict[int, int]:
        """Address of each live block -> its bytes; costs as much as there are blocks."""
        torch: Any = sys.modules["torch"]
        return {
            block["address"]: block["requested_size"]
            for segment in segments_of(torch)
            for block in segment["blocks"]
            if block["state"] == "active_allocated" and "address" in block
        }

    def say(self, what: str, error: BaseException) -> None:
        """Notes once what went wrong, and why."""
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        text = f"{what} ({reason[:160]})"
        if text not in self.record.missing:
            self.record.missing.append(text)


@contextmanager
def _tried(gpu: Gpu, what: str) -> Iterator[None]:
    """Turns an error into a sentence of the record."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever a driver or a version may raise
        gpu.say(what, error)


def backend_of(torch: Any) -> str:
    """Whose allocator serves CUDA in this process."""
    if _engine.Live.is_installed():
        return "tenure"
    try:
        name = str(torch._C._cuda_getAllocatorBackend())  # noqa: SLF001  no public name
    except (AttributeError, RuntimeError):
        return "native"
    return name if name in {"native", "cudaMallocAsync"} else "pluggable"


def _knows_clearing() -> bool:
    """Whether this torch's history can be cleared; before, every change cleared it."""
    torch: Any = sys.modules["torch"]
    function = getattr(torch.cuda.memory, "_record_memory_history_impl", None)
    return function is not None and "clear_history" in inspect.signature(function).parameters


def _failed_request(size: int, free: int, moment: float) -> dict[str, Any]:
    """The event that PyTorch's history would have of a request that fails now."""
    frames = [
        {"filename": frame.f_code.co_filename, "line": line, "name": frame.f_code.co_name}
        for frame, line in traceback.walk_stack(None)
    ]
    return {
        "action": "oom",
        "device_free": free,
        "size": size,
        "stream": 0,
        "time_us": int(moment * 1e6),
        "frames": frames,
    }
