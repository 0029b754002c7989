"""Measures a test's memory, and says what broke its budget, with the line."""

from __future__ import annotations

import importlib
import pickle
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tenure.diagnoses.evidence import Evidence
from tenure.testing.budgets import CPU, Budget
from tenure.testing.growing import growth_of
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.traces import Trace

_SHOWN = 5  # lines of code
_EVENTS = 1_000_000  # of the recording, on a GPU


class _Recorder(Protocol):
    """What a test is measured by; `where` names it for people."""

    where: str

    def peak(self) -> dict[str, int]: ...

    def trace(self) -> Trace: ...

    def end(self) -> None: ...


class Measure:
    """A test that is being measured."""

    def __init__(self, budget: Budget, recorder: _Recorder) -> None:
        self._budget = budget
        self._recorder = recorder
        self._ended = False
        self._steps_at: list[int] = []  # microseconds
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        self._hook = optimizer.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self._steps_at.append(time.time_ns() // 1000)

    def end(self) -> None:
        """Stops recording."""
        if not self._ended:
            self._ended = True
            self._hook.remove()
            self._recorder.end()

    def broken(self) -> str:
        """What broke the budget, with the lines; empty if nothing did."""
        peak = self._recorder.peak()
        over = []
        for count, limit in (("allocated", self._budget.peak), ("reserved", self._budget.reserved)):
            if limit is not None and peak[count] > limit:
                over.append((count, limit))
        if not over and self._budget.growth is None:
            self.end()
            return ""
        trace = self._recorder.trace()
        self.end()
        evidence = Evidence(trace)
        lines = [line for count, limit in over for line in self._peak(count, peak[count], limit)]
        if over:
            lines += _top_lines(evidence)
        if self._budget.growth is not None:
            lines += growth_of(evidence, self._budget.growth, self._steps_at)
        return "\n".join(lines)

    def _peak(self, count: str, size: int, limit: int) -> list[str]:
        over = f"{format_bytes(size - limit)} over the budget of {format_bytes(limit)}"
        where = self._recorder.where
        return [f"gpu_memory: peak {count} {format_bytes(size)}, which is {over} ({where})"]


def _top_lines(evidence: Evidence) -> list[str]:
    """The lines that made most of what was live at the peak."""
    shares = evidence.by_site(evidence.at_live_peak)
    lines = ["  live at the peak, by line:"]
    lines += [
        f"    {format_bytes(s.bytes):>10}  {s.category:<15}  {s.label}" for s in shares[:_SHOWN]
    ]
    if len(shares) > _SHOWN:
        rest = sum(s.bytes for s in shares[_SHOWN:])
        lines.append(f"    {format_bytes(rest):>10}  {len(shares) - _SHOWN} more lines")
    return lines


class _Cuda:
    """PyTorch's own record, of a real card or a virtual one."""

    def __init__(self) -> None:
        import torch

        self._memory: Any = torch.cuda.memory
        self.where = str(torch.cuda.get_device_name())
        torch.cuda.reset_peak_memory_stats()
        self._memory._record_memory_history(stacks="python", max_entries=_EVENTS)  # noqa: SLF001

    def peak(self) -> dict[str, int]:
        return {
            "allocated": int(self._memory.max_memory_allocated()),
            "reserved": int(self._memory.max_memory_reserved()),
        }

    def trace(self) -> Trace:
        return _loaded(self._memory._snapshot())  # noqa: SLF001

    def end(self) -> None:
        self._memory._record_memory_history(enabled=None)  # noqa: SLF001


def _loaded(snapshot: dict[str, Any]) -> Trace:
    from tenure.snapshots import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test.pickle"
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return load(path)


def begin(budget: Budget) -> Measure:
    """Begins to measure."""
    if budget.gpu == CPU:
        from tenure.virtual.host import HostRecorder

        return Measure(budget, HostRecorder())
    return Measure(budget, _Cuda())
