"""Where one training step ends and the next begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces import Trace


@dataclass(frozen=True)
class Steps:
    """Optimizer steps, as the recording's annotations show them.

    Attributes:
        begin: For each step, index of the first event at or after its optimizer.step() began.
        end: The same for where it ended, so of equal length: the boundary between training steps.
        zeroed: Ends of the optimizer.zero_grad() calls.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    zeroed: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.end)


def find_steps(trace: Trace) -> Steps | None:
    """The optimizer steps of a trace, or None if it names none or carries no time."""
    times = trace.events.time_us
    spans = [a for a in trace.annotations if a.end_us is not None]
    stepped = [a for a in spans if a.name.startswith("Optimizer.step#")]
    zeroed = [a for a in spans if a.name.startswith("Optimizer.zero_grad#")]
    if not stepped or not len(times) or not times[0]:
        return None

    def events(moments: list[int | None]) -> NDArray[np.int64]:
        return np.searchsorted(times, np.array(moments, np.int64)).astype(np.int64)

    begin, end = _joined(events([a.start_us for a in stepped]), events([a.end_us for a in stepped]))
    if not len(end):
        return None
    return Steps(begin, end, np.unique(events([a.end_us for a in zeroed])))


def _joined(
    begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Spans in order: those that overlap, or that no event separates, are one step.

    Several optimizers may step together, and one may wrap another. What ended before the first
    event is no step of this recording.
    """
    joined: list[list[int]] = []
    for begin, end in sorted(zip(begins.tolist(), ends.tolist(), strict=True)):
        if end == 0:
            continue
        if joined and (begin < joined[-1][1] or end == joined[-1][1]):
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    table = np.array(joined, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
