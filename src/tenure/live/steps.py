"""tenure.step(): marks the end of a step, watches growth, and tidies up where that pays.

Under `tenure run` the marks enter the report; outside, growth is told once through `logging`.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from tenure.live.runs.counting import counters_of
from tenure.live.runs.stepping import Rise, Steps, rise_of
from tenure.live.runs.watching import Watching
from tenure.units import format_bytes

_log = logging.getLogger("tenure")

TRY_AT = 3  # the first step at which collecting is tried
SHARE = 0.01  # of the time of steps that tidying may take
PAYS = 0.01  # of the allocated bytes: less is not worth a pause
SEVERAL = 64  # steps from one look for growth to the next
FEWEST = 8  # steps before growth is told
LONGEST = 4096  # steps between two tries of what did not pay


@dataclass(frozen=True)
class StepReport:
    """What one call of `tenure.step()` saw.

    Attributes:
        number: Of the step, from 1.
        allocated: Bytes live at its end; on the CPU 0, where nothing counts them.
        peak: Most bytes live since the step before, where the allocator says so, else 0.
        pending: Bytes freed but waiting for another stream.
        rise: Growth of live bytes from step to step; None if there is none, or it is too early.
        freed: Bytes that tidying made free.
        tidied: What was done: "gc.collect()" and "synchronize()", or nothing.
    """

    number: int
    allocated: int
    peak: int
    pending: int
    rise: Rise | None = None
    freed: int = 0
    tidied: tuple[str, ...] = ()


class Stepper:
    """The steps of this process."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.rise: Rise | None = None
        self._told = False
        self.process = os.getpid()
        self._next_try = TRY_AT
        self._gap = 1
        self._since = (0, time.perf_counter())  # step and moment of the last tidying

    def step(self, *, tidy: bool) -> StepReport:
        """The end of a step."""
        watch = Watching.now
        if watch is not None:
            watch.stepped(by_hand=True)
        allocated, peak, pending = _counts()
        if watch is not None and not allocated:
            allocated = watch.bytes
        mark = self.steps.mark(time.time(), allocated, peak, pending)
        if mark.number % SEVERAL == 0 or mark.number == FEWEST:
            self.rise = rise_of(self.steps.marks)
            if self.rise is not None and watch is None and not self._told:
                self._tell(self.rise)
        freed, done = self._tidy(mark.number, allocated, pending) if tidy else (0, ())
        return StepReport(mark.number, allocated, peak, pending, self.rise, freed, done)

    def _tell(self, rise: Rise) -> None:
        self._told = True
        _log.warning(
            "tenure: live memory grows %s every step (steps %d to %d); tenure.holders() says what "
            "keeps it",
            format_bytes(rise.bytes_per_step),
            rise.first,
            rise.last,
        )

    def _tidy(self, number: int, allocated: int, pending: int) -> tuple[int, tuple[str, ...]]:
        """Does what pays: collects dead cycles, waits for streams that hold much freed memory."""
        freed, done = 0, []
        if pending > PAYS * 10 * max(allocated, 1):
            torch: Any = sys.modules["torch"]
            torch.cuda.synchronize()
            freed += pending - _counts()[2]
            done.append("synchronize()")
        if number >= self._next_try:
            freed += self._collect(number)
            done.append("gc.collect()")
        return freed, tuple(done)

    def _collect(self, number: int) -> int:
        """Collects; when next depends on what it freed and how long it took."""
        before, begun = _live_bytes(), time.perf_counter()
        steps, seconds = number - self._since[0], begun - self._since[1]
        gc.collect()
        took = time.perf_counter() - begun
        freed = max(before - _live_bytes(), 0)
        # So often that it takes a hundredth of the time of the steps between.
        affordable = int(took / SHARE / max(seconds / max(steps, 1), 1e-6)) + 1
        if freed > PAYS * max(before, 1):
            self._gap = affordable
        else:
            self._gap = min(max(self._gap * 2, affordable), LONGEST)
        self._next_try = number + self._gap
        self._since = (number, time.perf_counter())
        return freed


def _live_bytes() -> int:
    """Bytes live: on the GPUs, else as `tenure run` counts them."""
    watch = Watching.now
    return _counts()[0] or (watch.bytes if watch is not None else 0)


def _counts() -> tuple[int, int, int]:
    """Allocated, most allocated since the last reset, and pending, over this process's GPUs."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0, 0, 0
    allocated = peak = pending = 0
    for device in _devices(torch):
        try:
            now = counters_of(torch, device)
        except (RuntimeError, AttributeError):  # an allocator that keeps none
            continue
        allocated += now.allocated
        peak += now.peak_allocated
        pending += now.active - now.allocated
    return allocated, peak, pending


class _Devices:
    """Which GPUs this process uses; looked at anew now and then, since asking costs as a step."""

    used: tuple[int, ...] = ()
    asked = 0


def _devices(torch: Any) -> tuple[int, ...]:
    if _Devices.asked % SEVERAL == 0 or not _Devices.used:
        found = []
        for device in range(torch.cuda.device_count()):
            try:
                if counters_of(torch, device).peak_reserved:
                    found.append(device)
            except (RuntimeError, AttributeError):
                continue
        _Devices.used = tuple(found)
    _Devices.asked += 1
    return _Devices.used


class _Stepping:
    """The steps of this process; one that it forks has its own."""

    now = Stepper()


def step(*, tidy: bool = False) -> StepReport:
    """Marks the end of a step of this process, and watches whether live memory grows.

    Costs tens of microseconds. Under `tenure run` its steps replace the optimizer's in the report.

    Args:
        tidy: Also do what pays, and nothing else: collect dead reference cycles as often as they
            hold memory worth the pause, and wait for other streams where they keep much freed
            memory from being used again. Never empties the cache: PyTorch does where memory is
            short, and else each step would ask for it again.

    Returns:
        What was seen, and done.
    """
    if _Stepping.now.process != os.getpid():
        _Stepping.now = Stepper()
    return _Stepping.now.step(tidy=tidy)
