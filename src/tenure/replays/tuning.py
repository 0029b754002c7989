"""Which settings are worth trying on a trace, and which of them is best."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.replays.candidates import Candidate, Trial, try_settings
from tenure.replays.feeding import recorded_peak
from tenure.replays.replaying import recorded_replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.traces import Trace

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"
SPLITS = (64, 128, 256, 512)  # MiB; sizes that people paste, to be measured rather than believed
ROUNDUPS = ("4", "8", "[256:1,512:2,1024:4,>:8]")
COLLECT = ("0.6", "0.8")
SAME = 1.03  # of the best: within it, a shorter stall and a plainer setting win


def trials(trace: Trace, capacity: int | None) -> tuple[Trial, ...]:
    """The settings to try: those that can help this trace, and no combination known to clash.

    Args:
        trace: Its recurring request sizes decide where max_split_size is worth trying.
        capacity: Garbage collection is a fraction of a limit, so it is tried only with one.
    """
    confs = ["", EXPANDABLE]
    splits = sorted({*SPLITS, *split_sizes(trace)})
    confs += [f"max_split_size_mb:{size}" for size in splits]
    confs += [f"roundup_power2_divisions:{value}" for value in ROUNDUPS]
    confs.append(f"{EXPANDABLE},roundup_power2_divisions:4")
    if trace.settings.torch_version >= (2, 7):
        confs += [f"large_segment_size_mb:{size}" for size in (32, 64)]
    if capacity is not None:
        confs += [f"garbage_collection_threshold:{value}" for value in COLLECT]
        confs.append("garbage_collection_threshold:0.6,max_split_size_mb:128")
    if trace.settings.rules == "torch" and trace.settings.conf not in confs:
        confs.append(trace.settings.conf)
    return (*(Trial("torch", conf) for conf in confs), Trial("elastic", ""))


def split_sizes(trace: Trace) -> list[int]:
    """MiB at or just below which this trace's large requests recur, at most four.

    A block of at least max_split_size is never split, so a size that recurs should be at or above
    it: then the block that it leaves serves the next request of its size whole.
    """
    allocations = trace.allocations
    large = allocations.requested[allocations.requested >= 20 * MIB]
    if not len(large):
        return []
    sizes, counts = np.unique(large // MIB, return_counts=True)
    recurring = sizes[counts >= 3]
    if not len(recurring):
        return []
    weight = np.cumsum(recurring * counts[counts >= 3])
    places = np.searchsorted(weight, weight[-1] * np.array([0.1, 0.35, 0.6, 0.85]))
    return sorted({max(int(recurring[i]), 20) for i in places})


def tune(
    trace: Trace,
    *,
    capacity: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> tuple[Candidate, ...]:
    """Replays the trace under each setting worth trying, in parallel.

    Args:
        trace: What to tune for.
        capacity: Limit on reserved bytes that it has to run under; None for none.
        progress: Called with how many settings are done, and how many there are.

    Returns:
        The candidates, in the order of `trials`; the recorded settings are among them.
    """
    asked = trials(trace, capacity)
    calls = list(recorded_replay(trace).calls)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress(done, len(asked))

    return try_settings(trace, asked, calls=calls, capacity=capacity, progress=count)


def live_peak(trace: Trace) -> int:
    """Most bytes that tensors held at a time: the bound that no placement can beat.

    Requests are rounded up to 512 bytes. Blocks that were freed but waited for another stream do
    not count: an allocator can wait for them too.
    """
    allocations = trace.allocations
    size = (allocations.requested + 511) // 512 * 512
    change = np.zeros(len(trace.events) + 1, np.int64)  # [0]: before the first event
    size = np.where(allocations.pending_before, 0, size)
    np.add.at(change, allocations.born + 1, size)
    freed = np.where(allocations.freed >= 0, allocations.freed, allocations.done)
    gone = freed >= 0
    np.subtract.at(change, freed[gone] + 1, size[gone])
    return int(np.cumsum(change).max(initial=0))


def best(candidates: tuple[Candidate, ...], rules: str = "torch") -> Candidate | None:
    """The candidate of those rules that fits and needs the smallest card.

    Among candidates within three percent of each other the one with the shorter stall and the
    plainer setting wins. None if none fits.
    """
    fitting = [c for c in candidates if c.fits and c.rules == rules]
    if not fitting:
        return None
    least = min(c.smallest_capacity for c in fitting)
    near = [c for c in fitting if c.smallest_capacity <= SAME * least]
    return min(near, key=lambda c: (c.peak_reserved > 1.1 * least, c.stall_seconds, len(c.conf)))


def as_recorded(
    candidates: tuple[Candidate, ...], trace: Trace, capacity: int | None = None
) -> Candidate:
    """The recorded settings as tried, with the recorded peak where nothing was guessed."""
    settings = trace.settings
    if settings.rules == "elastic":
        mine = next(c for c in candidates if c.rules == "elastic")
        return mine if capacity else replace(mine, peak_reserved=recorded_peak(trace))
    mine = next(c for c in candidates if c.rules == "torch" and c.conf == settings.conf)
    if settings.limit >= 0:
        return mine
    recorded = recorded_replay(trace).peak.reserved
    return replace(mine, peak_reserved=recorded) if mine.retries == 0 else mine
