"""Which setting, which card, and how far from the best possible: the answer of `tune`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.errors import BadInputError
from tenure.plans import plan
from tenure.replays import Candidate, as_recorded, best, live_peak
from tenure.replays import tune as try_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.plans import Plan
    from tenure.traces import Trace


@dataclass(frozen=True)
class Tuning:
    """A trace under every setting worth trying.

    Attributes:
        trace: What was tuned for.
        capacity: Limit on reserved bytes that it has to run under; None for none.
        live_peak: Bytes that tensors held at most: the bound.
        candidates: What was tried.
        recorded: The settings of the recording, tried.
        best: The setting that fits and needs the smallest card, of the rules of the recording: no
            other can be set where the run is; None if none fits.
        plan: The best placement found with all requests known beforehand.
    """

    trace: Trace
    capacity: int | None
    live_peak: int
    candidates: tuple[Candidate, ...]
    recorded: Candidate
    best: Candidate | None
    plan: Plan


def tune(
    trace: Trace,
    *,
    capacity: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Tuning:
    """Tries the settings that can help this trace.

    Args:
        trace: What to tune for.
        capacity: Limit on reserved bytes that it has to run under.
        progress: Called with how many settings are done, and how many there are.

    Raises:
        BadInputError: The trace holds no events.
    """
    if not len(trace.events):
        raise BadInputError(
            f"device {trace.device}: no events to replay; record with "
            "torch.cuda.memory._record_memory_history() before the first CUDA call"
        )
    candidates = try_all(trace, capacity=capacity, progress=progress)
    return Tuning(
        trace=trace,
        capacity=capacity,
        live_peak=live_peak(trace),
        candidates=candidates,
        recorded=as_recorded(candidates, trace, capacity),
        best=best(candidates, trace.settings.rules),
        plan=plan(trace),
    )
