"""Watches live tensor bytes while a script runs, and looks at their holders where it matters.

Each operation's new storages are counted when they appear and, through weak references, when they
go. Holders are looked at when live bytes reach a new height, before the garbage collector runs,
now and then, and at the end; the time this may take is bounded.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.holders import Holders, holders
from tenure.lifetimes.sources import is_library, is_own

if TYPE_CHECKING:
    from types import FrameType

HIGHER = 1.2  # times the last height: the next one that is looked at
LEAST = 1 << 18  # bytes live below which nothing is looked at
FIRST_SECONDS = 3.0  # that looking may take in all ...
SHARE = 0.05  # ... and this share of the run
ONE_LOOK = 2.0  # seconds
TRACED = 1 << 12  # bytes from which the lines that made a storage are noted
DEEPEST = 12  # frames of the user's that are noted at birth
OFTEN = 200  # operations after which it is looked again, doubling each time

Site = tuple[str, int, str]  # file, line, function


@dataclass(slots=True)
class Birth:
    """A storage that the script made.

    Attributes:
        serial: Number of its birth.
        bytes: Its size.
        device: Such as "cuda:0".
        lines: The user's frames when it was made, inner first.
        passes: Backward passes begun before.
        fate: Empty while it lives; "backward" if a backward pass let it go, else "dropped".
        fate_passes: Backward passes begun when it went.
    """

    serial: int
    bytes: int
    device: str
    lines: tuple[Site, ...]
    passes: int
    fate: str = ""
    fate_passes: int = 0
    reference: Any = None


@dataclass(frozen=True)
class Look:
    """Holders at one moment.

    Attributes:
        why: What led to it: "peak", "collect", "often", "failed", "end".
        operation: Operations that had run.
        passes: Backward passes begun.
        live: Live bytes as counted.
        holders: What held them.
        births: Storage -> its birth, for those seen being made.
        lines: The user's running frames, inner first, and the code running in each.
        collecting: Whether the garbage collector was enabled.
    """

    why: str
    operation: int
    passes: int
    live: int
    holders: Holders
    births: dict[int, Birth]
    lines: tuple[Site, ...]
    running: tuple[FrameCode, ...]
    collecting: bool


@dataclass(frozen=True)
class FrameCode:
    """A running frame: its code, and the line it is at."""

    code: Any
    line: int


@dataclass
class Record:
    """All that a watched run left.

    Attributes:
        looks: Holders, moment by moment.
        peak: Most bytes live at once, by counting.
        end: Bytes live at the end.
        operations: Operations that ran.
        passes: Backward passes begun.
        collected: Bytes that the garbage collector freed, collection by collection.
        seconds: Spent looking.
        missing: What was not looked at, in sentences.
    """

    looks: list[Look] = field(default_factory=list)
    peak: int = 0
    peak_operation: int = 0
    end: int = 0
    operations: int = 0
    passes: int = 0
    collected: list[int] = field(default_factory=list)
    seconds: float = 0.0
    missing: list[str] = field(default_factory=list)
    device: str = "cpu"


class Watch:
    """Counts live bytes and looks at holders; `start` and `stop` around the script."""

    def __init__(self) -> None:
        self.record = Record()
        self.live: dict[int, Birth] = {}
        self.bytes = 0
        self.busy = False
        self._next = float(LEAST)
        self._often = OFTEN
        self._serial = 0
        self._backward = False
        self._before_collection = 0
        self._looked_at: tuple[object, ...] = ()
        self._begun = time.thread_time()
        self._mode: Any = None
        self._process = os.getpid()

    @property
    def started(self) -> bool:
        """Whether anything has been watched."""
        return self._mode is not None

    def start(self) -> None:
        """Begins to watch; torch must have been imported."""
        self._mode = _mode_of(self)
        self._mode.__enter__()
        gc.callbacks.append(self.collection)

    def stop(self) -> None:
        """Stops watching; what was recorded stays."""
        if self.collection in gc.callbacks:
            gc.callbacks.remove(self.collection)
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
        self.record.end = self.bytes

    def operation(self, function: Any, out: Any, args: Any) -> None:
        """Takes note of what an operation made."""
        record = self.record
        record.operations += 1
        backward = _current_node() is not None
        if backward and not self._backward:
            record.passes += 1
        self._backward = backward
        if type(out) in {tuple, list}:
            for one in out:
                self.notice(one)
        else:
            self.notice(out)
        if self.bytes > record.peak:
            record.peak = self.bytes
            record.peak_operation = record.operations
        if self.bytes >= self._next:
            self._next = self.bytes * HIGHER
            self.look("peak", running=(out, args))
        elif record.operations >= self._often:
            self._often *= 2
            self.look("often", running=(out, args))

    def notice(self, tensor: Any) -> None:
        """Counts a tensor's storage if it is new."""
        try:
            storage = tensor.untyped_storage()
        except (AttributeError, RuntimeError, NotImplementedError):
            return
        address = storage._cdata  # noqa: SLF001  a storage's identity has no public name
        known = self.live.get(address)
        size = storage.nbytes()
        if known is not None:
            self.bytes += size - known.bytes  # resized
            known.bytes = size
            return
        place = str(tensor.device)
        if not size or not self._counts(place):
            return
        self._serial += 1
        lines = _lines() if size >= TRACED else ()
        birth = Birth(self._serial, size, place, lines, self.record.passes)
        birth.reference = weakref.ref(storage, lambda _: self.gone(address))
        self.live[address] = birth
        self.bytes += size

    def _counts(self, place: str) -> bool:
        """Whether bytes there are watched: the CPU's until CUDA is used, then CUDA's."""
        kind = place.split(":", maxsplit=1)[0]
        if kind == "cuda" and self.record.device == "cpu":
            self.record.device = "cuda"
            self.live.clear()
            self.bytes = self.record.peak = 0
            self._next = float(LEAST)
        return kind == self.record.device

    def gone(self, address: int) -> None:
        """A storage was freed."""
        birth = self.live.pop(address, None)
        if birth is None:
            return
        birth.fate = "backward" if self._backward else "dropped"
        birth.fate_passes = self.record.passes
        birth.reference = None
        self.bytes -= birth.bytes

    def collection(self, phase: str, info: dict[str, int]) -> None:
        """Called by the garbage collector before and after it runs."""
        if self.busy or os.getpid() != self._process:
            return
        if phase == "start":
            self._before_collection = self.bytes
            if info.get("generation") == 2 and self.bytes >= LEAST:
                self.look("collect")
        elif self._before_collection > self.bytes:
            self.record.collected.append(self._before_collection - self.bytes)

    def look(
        self, why: str, *, running: Any = (), error: BaseException | None = None
    ) -> Look | None:
        """Looks at the holders of every live byte, unless that was just done or takes too long."""
        record = self.record
        # Between two operations a collection is looked at once for every line that asks for it.
        state = (record.operations, self.bytes, _lines() if why == "collect" else why)
        if (
            self._mode is None
            or self.busy
            or state == self._looked_at
            or os.getpid() != self._process
        ):
            return None
        allowed = FIRST_SECONDS + SHARE * (time.monotonic() - self._begun)
        if why not in {"end", "failed"} and record.seconds > allowed:
            return None
        self._looked_at = state
        self.busy = True
        begun = time.thread_time()
        try:
            found = self._look(why, running, error)
            record.looks.append(found)
        except Exception as fault:
            record.missing.append(f"holders could not be read once ({type(fault).__name__})")
            if os.environ.get("TENURE_DEBUG"):
                raise
            return None
        finally:
            record.seconds += time.thread_time() - begun
            self.busy = False
        return found

    def _look(self, why: str, running: Any, error: BaseException | None) -> Look:
        record = self.record
        known = {a: (birth.bytes, birth.device) for a, birth in list(self.live.items())}
        tensors = [t for t in _flat(running) if hasattr(type(t), "untyped_storage")]
        found = holders(
            device=record.device,
            seconds=ONE_LOOK,
            known=known,
            running=tensors,
            frames_of=error,
        )
        tensors.clear()
        # Operations of other threads are not counted, but what they made is found.
        record.peak = max(record.peak, found.live)
        births = {h.storage: self.live[h.storage] for h in found.holders if h.storage in self.live}
        frames = _user_frames()
        return Look(
            why,
            record.operations,
            record.passes,
            self.bytes,
            found,
            births,
            _lines(),
            tuple(FrameCode(f.f_code, f.f_lineno) for f in frames),
            gc.isenabled(),
        )


def _mode_of(watch: Watch) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True would import torch._dynamo under the script's frames, which then stay alive.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            try:
                out = func(*args, **(kwargs or {}))
            except Exception as error:
                if type(error).__name__ == "OutOfMemoryError":
                    watch.look("failed", running=(args,))
                raise
            if not watch.busy:
                watch.operation(func, out, args)
            return out

    return Mode()


def _current_node() -> Any:
    torch: Any = sys.modules["torch"]
    return torch._C._current_autograd_node()  # noqa: SLF001  no public name


def _flat(value: Any) -> list[Any]:
    if type(value) in {tuple, list}:
        return [leaf for one in value for leaf in _flat(one)]
    return [value]


_IS_USER: dict[Any, bool] = {}


def _is_user(code: Any) -> bool:
    known = _IS_USER.get(code)
    if known is None:
        path = code.co_filename
        known = not is_own(path) and not is_library(path)
        _IS_USER[code] = known
    return known


def _user_frames() -> list[FrameType]:
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way is slower
    while frame is not None and len(frames) < DEEPEST:
        if _is_user(frame.f_code):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _lines() -> tuple[Site, ...]:
    return tuple((f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in _user_frames())
