"""Watches live tensor bytes while a script runs, and looks at their holders where it matters.

Each operation's new storages are counted when they appear and, through weak references, when they
go. Holders are looked at when live bytes reach a new height, before the garbage collector runs,
now and then, and at the end; the time this may take is bounded.

On a GPU operations are watched for the first steps only: from then on PyTorch's own history and
counters tell the bytes, at a small part of the cost.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.holders import holders
from tenure.lifetimes.walking import is_imagined
from tenure.live.dispatch import watching_mode
from tenure.live.runs.frames import FrameCode, user_frames, user_lines
from tenure.live.runs.gpu import Gpu
from tenure.live.runs.overdue import Overdue
from tenure.live.runs.pacing import Pace
from tenure.live.runs.record import Birth, Look, Record
from tenure.live.runs.repetition import FIRST, Repetition
from tenure.live.runs.stepping import StepMark, Steps, rise_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenure.diagnoses import Finding
    from tenure.live.runs.counting import Counters

HIGHER = 1.2  # times the last height: the next one that is looked at
LEAST = 1 << 18  # bytes live below which nothing is looked at
FIRST_SECONDS = 3.0  # that looking may take in all ...
SHARE = 0.05  # ... and this share of the run
ONE_LOOK = 2.0  # seconds
TRACED = 1 << 12  # bytes from which the lines that made a storage are noted
OFTEN = 200  # operations after which it is looked again, doubling each time
WATCHED_STEPS = 3  # steps whose operations are watched, on a GPU ...
WATCHED_OPERATIONS = 50_000  # ... and operations of a script that makes no steps
STEADY_SHARE = 0.01  # of the run after that, for looking
MOST_LOOKS = 96  # kept
MOST_PINNED = 1000  # requests of pinned memory that are noted
FIRST_CHECK = 12  # steps after which it is seen whether live bytes rise, doubling each time
LATE = 5  # times as long as the last step, for one to be overdue
NEAR = 0.97  # of the last step's height, for the third step to be looked at near its own


class Watch:
    """Counts live bytes and looks at holders; `start` and `stop` around the script."""

    def __init__(self) -> None:
        self.gpu = Gpu(lambda: self.look("failed"))
        self.record = Record(gpu=self.gpu.record)
        self.live: dict[int, Birth] = {}
        self.bytes = 0
        self.busy = False
        self.steps = Steps()
        self.pace = Pace()
        self.repetition = Repetition(self.gpu.may_rest)
        self.overdue = Overdue(self._is_overdue)
        self.started = False
        self._pinned: list[Any] = []  # weak references to the storages of record.pinned
        self.races: Any = None
        self._races_found: list[Finding] = []
        self._next = float(LEAST)
        self._often = OFTEN
        self._serial = 0
        self._backward = False
        self._before_collection = 0
        self._collection_begun = 0.0
        self._looked_at: tuple[object, ...] = ()
        self._begun = time.monotonic()
        self._steady_since = (0.0, 0.0)  # moment, seconds spent looking until then
        self._step_peak = 0
        self._step_ended = time.time()
        self._step_begun = 0.0
        self._next_check = FIRST_CHECK
        self._near = 0.0  # bytes at which the third step is looked at whatever it costs
        self._marked_by_hand = False
        self._mode: Any = None
        self._hooks: list[Any] = []
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._threads = False  # others made steps

    def start(self) -> None:
        """Begins to watch; torch must have been imported."""
        self.started = True
        self._thread = threading.get_ident()
        Watching.now = self
        try:
            mode = _mode_of(self)
            mode.__enter__()
            self._mode = mode
            gc.callbacks.append(self.collection)
            os.register_at_fork(after_in_child=self._in_child)
            self.gpu.arm()
            self._hooks = [
                _at_optimizer_steps("post", self.stepped),
                _at_optimizer_steps("pre", self._step_begins),
            ]
            self.races = _begin_races(self.record.missing)
        except Exception as error:  # the script must run, whatever is wrong here
            self.record.missing.append(
                f"not everything could be watched ({type(error).__name__}: {error})"
            )
            if os.environ.get("TENURE_DEBUG"):
                raise

    def finish(self) -> None:
        """Takes the end state of the GPUs, while the script's objects still live."""
        if self.started:
            self.overdue.stop()
            self.gpu.finish()
            alive = [one() for one in self._pinned]
            self.record.pinned_alive = sum(one.nbytes() for one in alive if one is not None)
            if self.steps.count and not self.gpu.record.ooms:
                self.gpu.try_empty_cache()

    def race_findings(self) -> Iterable[Finding]:
        """What was found of the streams; the races themselves may be over."""
        return self._races_found

    def stop(self) -> None:
        """Stops watching; what was recorded stays."""
        Watching.now = None
        self.overdue.stop()
        if self.collection in gc.callbacks:
            gc.callbacks.remove(self.collection)
        for hook in self._hooks:
            if hook is not None:
                hook.remove()
        self._hooks = []
        self._leave_operations()
        self.gpu.disarm()
        self.record.end = self.bytes
        self.record.steps = self.steps.marks
        self.record.gpu.recorded = self.repetition.told(self.steps.count)

    def operation(self, function: Any, out: Any, args: Any, kwargs: Any) -> None:
        """Takes note of what an operation made."""
        record = self.record
        record.operations += 1
        backward = _current_node() is not None
        if backward != self._backward:
            record.passes += backward
            self._backward = backward
        makes = _MAKES.get(function)
        if makes is None:
            makes = _MAKES[function] = _what_it_makes(function)
        if makes:
            if type(out) in _SEQUENCES:
                for one in out:
                    self.notice(one)
            else:
                self.notice(out)
            if makes == _PINNED or (kwargs and kwargs.get("pin_memory")):
                self._note_pinned(out)
        if self.bytes > self._step_peak:
            self._step_peak = self.bytes
            if self.bytes > record.peak:
                record.peak = self.bytes
                record.peak_operation = record.operations
        if self.bytes >= self._next:
            self._next = self.bytes * self._higher()
            self.look("peak", running=(out, args))
        elif record.operations >= self._often:
            self._often *= 2
            self.look("often", running=(out, args))
            if record.device == "cuda" and record.operations >= WATCHED_OPERATIONS:
                self._leave_soon()

    def wake_races(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Watches streams from here on, if the operation lets the host and the device race."""
        if self.races is None or self.races.watching or self.busy:
            return
        leaves = kwargs.get("non_blocking") and str(kwargs.get("device")) == "cpu"
        source = getattr(args[0], "device", None) if args else None
        if kwargs.get("pin_memory") or (leaves and source is not None and source.type == "cuda"):
            self.races.wake()

    def _step_begins(self, *_: Any) -> None:
        self._step_begun = time.time()

    def stepped(self, *_: Any, by_hand: bool = False) -> None:
        """A step has ended: an optimizer's, or one that the script marks itself."""
        if self.busy or os.getpid() != self._process or _current_node() is not None:
            return
        self._marked_by_hand |= by_hand
        if self._marked_by_hand and not by_hand:
            return
        try:
            self._mark_step(by_hand=by_hand)
        except Exception as error:  # the optimizer has made its step: nothing of ours may undo that
            self.gpu.say("a step could not be looked at", error)
            if os.environ.get("TENURE_DEBUG"):
                raise

    def _mark_step(self, *, by_hand: bool) -> None:
        now = time.time()
        counted = self.gpu.mark()
        allocated = sum(c.allocated for c in counted) or self.bytes
        peak = max(max((c.peak_allocated for c in counted), default=0), self._step_peak)
        seconds, self._step_ended = now - self._step_ended, now
        pending = sum(c.active - c.allocated for c in counted)
        last = self.steps.mark(now, allocated, peak, pending, 0.0 if by_hand else self._step_begun)
        number = self.steps.count
        if self._mode is None:
            self.record.passes += 1  # at least one
        if number == WATCHED_STEPS - 1 and self._mode is not None:
            self._next = self._near = self._step_peak * NEAR
        self._step_peak = self.bytes
        if self.record.device != "cuda":
            self._note_thread()
            return
        self._record_next(number, counted, seconds)
        if number >= WATCHED_STEPS:
            self._become_steady(last)
            if number >= self._next_check:
                self._next_check *= 2
                if rise_of(self.steps.marks) is not None:
                    self.look("rising")  # what a function holds is gone when it has returned
            elif allocated >= self._next:
                self._next = allocated * HIGHER
                self.look("step")

    def _note_thread(self) -> None:
        if threading.get_ident() != self._thread and not self._threads:
            self._threads = True
            self.record.missing.append(
                "the script makes steps in other threads, whose operations are not counted on the "
                "CPU: peaks are of what the main thread made, and of the moments looked at"
            )

    def _become_steady(self, last: StepMark) -> None:
        """Leaves operations to PyTorch's history, at a place where that is allowed."""
        if self._mode is not None and self._leave_operations():
            self._steady_since = (time.monotonic(), self.record.seconds)
            self._next, self._near = last.allocated * HIGHER, 0.0

    def _record_next(self, number: int, counted: list[Counters], seconds: float) -> None:
        """Lets recording rest while steps repeat, and go on when they do not."""
        steps, gpu = self.repetition, self.gpu
        with self.overdue.lock:
            recorded, grown = steps.recording, steps.grown
            steps.ended(number, counted)
            if recorded and not steps.recording:
                gpu.rest(news=steps.news)
                self.pace.interrupted()
            elif not recorded and steps.recording:
                gpu.go_on()
            elif recorded and number >= FIRST:
                self._pace(number, seconds)
        if steps.grown > grown and steps.grown.bit_count() == 1:  # the 1st, 2nd, 4th, 8th time
            self.look("rising")
        if gpu.resting:
            self.overdue.within(LATE * seconds)

    def _is_overdue(self) -> None:
        """Called in a thread of its own, with the lock held: no step has ended for long."""
        if self.gpu.resting and self.started and os.getpid() == self._process:
            self.repetition.overdue()
            self.gpu.go_on()

    def _pace(self, number: int, seconds: float) -> None:
        """Keeps or drops the lines of the step that begins, where steps go on to differ."""
        if self.repetition.settling or not self.gpu.can_change_stacks():
            return
        before = self.pace.every
        self.gpu.set_stacks(on=self.pace.next(seconds))
        if self.pace.every > 1 and not before:
            self.record.gpu.stacks = (
                f"reading the lines of allocations costs {self.pace.cost:.0%} of a step here, so "
                f"from step {number} on they are read in 1 of {self.pace.every} of the steps that "
                "are recorded"
            )

    def _leave_soon(self) -> None:
        """Leaves operations alone at the next module that has run: not within an operation."""
        torch: Any = sys.modules["torch"]
        if self._mode is not None and len(self._hooks) < 3:
            hook = torch.nn.modules.module.register_module_forward_hook(self._module_has_run)
            self._hooks.append(hook)

    def _module_has_run(self, *_: Any) -> None:
        if _current_node() is None and self._leave_operations():
            self._hooks.pop().remove()
            self._steady_since = (time.monotonic(), self.record.seconds)

    def _leave_operations(self) -> bool:
        """Takes our dispatch modes off, whatever others are on; whether it did."""
        if threading.get_ident() != self._thread:
            return False  # modes belong to threads
        if self.races is not None:
            self._races_found += _end_races(self.races, self.record.missing)
            self.races = None
        if self._mode is None:
            return False
        from tenure.live.guards.mode import remove

        remove(self._mode)
        self._mode = None
        return True

    def _in_child(self) -> None:
        """A process that the script forked: it is not watched."""
        self.busy = True
        self.overdue = Overdue(self._is_overdue)  # the other's lock may be held, and by nobody here

    def _note_pinned(self, tensor: Any) -> None:
        try:
            if tensor.device.type == "cpu" and len(self.record.pinned) < MOST_PINNED:
                storage = tensor.untyped_storage()
                self.record.pinned.append((storage.nbytes(), user_lines()))
                self._pinned.append(weakref.ref(storage))
        except (AttributeError, RuntimeError):
            return

    def notice(self, tensor: Any) -> None:
        """Counts a tensor's storage if it is new."""
        if is_imagined(tensor):
            return
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
        lines = user_lines() if size >= TRACED else ()
        birth = Birth(self._serial, size, place, lines, self.record.passes)
        birth.reference = weakref.ref(storage, lambda _: self.gone(address))
        self.live[address] = birth
        self.bytes += size

    def _counts(self, place: str) -> bool:
        """Whether bytes there are watched: the CPU's until CUDA is used, then CUDA's."""
        kind = place.split(":", maxsplit=1)[0]
        if kind == "cuda" and self.record.device == "cpu":
            self.record.device = "cuda"
            self.gpu.begin()  # where nothing else told it
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
            self._collection_begun = time.perf_counter()
            if info.get("generation") == 2 and self.bytes >= LEAST:
                self.look("collect")
            self._collection_begun = time.perf_counter()  # without the looking
            return
        if info.get("generation") == 2 and len(self.record.full_collections) < MOST_LOOKS:
            self.record.full_collections.append(time.perf_counter() - self._collection_begun)
        if self._before_collection > self.bytes:
            self.record.collected.append(self._before_collection - self.bytes)

    def look(
        self, why: str, *, running: Any = (), error: BaseException | None = None
    ) -> Look | None:
        """Looks at the holders of every live byte, unless that was just done or takes too long."""
        record = self.record
        # Between two operations a collection is looked at once for every line that asks for it.
        state = (
            *(record.operations, self.steps.count, self.bytes),
            user_lines() if why == "collect" else why,
        )
        if (
            not self.started
            or self.busy
            or state == self._looked_at
            or os.getpid() != self._process
            or not self._may_look(why)
        ):
            return None
        self._looked_at = state
        self.busy = True
        begun = time.thread_time()
        try:
            found = self._look(why, running, error)
            record.looks.append(found)
            if len(record.looks) > MOST_LOOKS:
                _thin_out(record.looks)
        except Exception as fault:
            record.missing.append(f"holders could not be read once ({type(fault).__name__})")
            if os.environ.get("TENURE_DEBUG"):
                raise
            return None
        finally:
            record.seconds += time.thread_time() - begun
            self.busy = False
        return found

    def _higher(self) -> float:
        """Times this height: the next one that is looked at; further off where looking is dear."""
        return HIGHER + (self.record.looks[-1].holders.seconds if self.record.looks else 0.0)

    def _may_look(self, why: str) -> bool:
        if why in {"end", "failed", "rising"}:
            return True
        if self._near and self.bytes >= self._near:
            self._near = 0.0
            return True
        since, spent = self._steady_since
        if not since:
            allowed = FIRST_SECONDS + SHARE * (time.monotonic() - self._begun)
            return self.record.seconds <= allowed
        last = self.record.looks[-1].holders.seconds if self.record.looks else 0.0
        return self.record.seconds - spent + last <= STEADY_SHARE * (time.monotonic() - since)

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
        frames = user_frames()
        return Look(
            why,
            record.operations,
            record.passes,
            self.bytes if self._mode is not None else found.live,
            found,
            births,
            user_lines(),
            tuple(FrameCode(f.f_code, f.f_lineno) for f in frames),
            gc.isenabled(),
            time=time.time() - found.seconds / 2,
            steps=self.steps.count,
        )


class Watching:
    """The watch of this process, if one is under way: `tenure.step()` tells it of steps."""

    now: Watch | None = None


def _thin_out(looks: list[Look]) -> None:
    """Drops every other look of the middle: the highest, the first and the last stay."""
    highest = max(looks, key=lambda look: look.holders.live)
    kept = [
        one for i, one in enumerate(looks) if i % 2 == 0 or one is highest or i >= len(looks) - 8
    ]
    looks[:] = kept


def _at_optimizer_steps(when: str, act: Callable[..., None]) -> Any:
    """Calls back at each step of any optimizer; None where torch has no such hook."""
    optimizer: Any = sys.modules.get("torch.optim.optimizer")  # the attribute is deleted
    register = getattr(optimizer, f"register_optimizer_step_{when}_hook", None)
    return None if register is None else register(act)


def _begin_races(missing: list[str]) -> Any:
    """Watches streams as well, once there are several."""
    try:
        from tenure.live.guards import races

        return races.start()
    except Exception as error:  # noqa: BLE001  the script must run, whatever is wrong here
        missing.append(f"streams were not watched ({error})")
        return None


def _end_races(races: Any, missing: list[str]) -> list[Finding]:
    try:
        races.stop()
        missing += [f"a fault of watching streams: {text}" for text in races.faults]
        return list(races.findings())
    except Exception as error:  # noqa: BLE001  likewise
        missing.append(f"watching streams ended badly ({error})")
        return []


def _mode_of(watch: Watch) -> Any:
    class Mode(watching_mode()):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if kwargs and ("non_blocking" in kwargs or "pin_memory" in kwargs):
                watch.wake_races(args, kwargs)
            try:
                out = func(*args, **(kwargs or {}))
            except Exception as error:
                if type(error).__name__ == "OutOfMemoryError":
                    watch.look("failed", running=(args,))
                raise
            if not watch.busy:
                watch.operation(func, out, args, kwargs)
            return out

    return Mode()


def _current_node() -> Any:
    torch: Any = sys.modules["torch"]
    return torch._C._current_autograd_node()  # noqa: SLF001  no public name


def _flat(value: Any) -> list[Any]:
    if type(value) in {tuple, list}:
        return [leaf for one in value for leaf in _flat(one)]
    return [value]


_PINNED = 2
_SEQUENCES = frozenset({tuple, list})
_MAKES: dict[Any, int] = {}  # operator -> 0: no storage of its own, 1: new ones, 2: pinned ones
_RESIZING = ("resize", "set_", "lift", "out")


def _what_it_makes(function: Any) -> int:
    """Whether an operator can make storages, or make them larger; views and in-place ones don't."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return 1
    name = f"{schema.name}.{schema.overload_name}".rpartition("::")[2]
    if "pin_memory" in name:
        return _PINNED
    if all(one.alias_info is not None for one in schema.returns):
        return int(any(word in name for word in _RESIZING))
    return 1
