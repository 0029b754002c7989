"""Memory that grows and does not come back: per step where steps are known, else per repetition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes.categories import ORDER, Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.sites import Sites
    from tenure.lifetimes.steps import Steps
    from tenure.traces import Trace

FEWEST_STEPS = 5  # below this a trend cannot be told from start-up
LEAST_BYTES = 1 << 20  # per step; less is bookkeeping
BORN_ONCE = (Category.PARAMETERS, Category.WORKSPACE, Category.OPTIMIZER_STATE)


@dataclass(frozen=True)
class GrowingSite:
    """One line whose allocations pile up.

    Attributes:
        site: Index in the table of sites.
        bytes_per_step: Median growth of its live bytes from one step to the next.
        blocks: Of its blocks, how many are live at the last step.
        held: Their bytes.
        stacks: Index of one of their stacks; -1 for none.
    """

    site: int
    bytes_per_step: int
    blocks: int
    held: int
    stack: int


@dataclass(frozen=True)
class Growth:
    """Live memory that rises from step to step until the end.

    Attributes:
        bytes_per_step: Median of the rise between step boundaries, in bytes.
        steps: Boundaries looked at.
        per: "step" or, without annotations, "repetition".
        sites: Where the growing bytes were made, most first.
        live_at_last: Live bytes at the last boundary.
    """

    bytes_per_step: int
    steps: int
    per: str
    sites: tuple[GrowingSite, ...]
    live_at_last: int


def find_growth(
    trace: Trace,
    allocated: NDArray[np.int64],
    sites: Sites,
    category: NDArray[np.int64],
    steps: Steps | None,
) -> Growth | None:
    """Growth that goes on to the end of the recording, or None.

    Args:
        trace: The trace.
        allocated: Live bytes after each event.
        sites: Sites of its allocations.
        category: Category of each allocation.
        steps: Optimizer steps, if known.
    """
    if steps is not None and len(steps) >= FEWEST_STEPS:
        return _per_step(trace, allocated, sites, steps.end)
    return _per_repetition(trace, allocated, sites, category)


def _per_step(
    trace: Trace, allocated: NDArray[np.int64], sites: Sites, ends: NDArray[np.int64]
) -> Growth | None:
    at = np.maximum(ends - 1, 0)
    level = allocated[at]
    settled = level[max(2, len(level) // 4) :]  # the first steps make state and workspaces
    rises = np.diff(settled)
    if len(rises) < FEWEST_STEPS - 2 or not _rises(settled, rises):
        return None
    per_step = int(np.median(rises))
    if per_step < LEAST_BYTES:
        return None
    found = _growing_sites(trace, sites, at)
    if sum(site.bytes_per_step for site in found) < per_step // 2:
        return None  # no line stands behind it: batches that happen to come in rising sizes
    return Growth(per_step, len(level), "step", found, int(level[-1]))


def _rises(level: NDArray[np.int64], rises: NDArray[np.int64]) -> bool:
    """Up nearly every time, and to the end: later thirds lie above earlier ones."""
    third = max(len(level) // 3, 1)
    steady = (rises > 0).mean() >= 0.8
    return bool(steady and level[-third:].min() > level[:third].max())


def _sizes(trace: Trace) -> NDArray[np.int64]:
    allocations = trace.allocations
    known = np.where(allocations.size > 0, allocations.size, allocations.requested)
    return np.asarray((known + 511) // 512 * 512)


def _live_at(trace: Trace, event: int) -> NDArray[np.bool_]:
    allocations = trace.allocations
    freed = np.where(allocations.freed < 0, len(trace.events), allocations.freed)
    gone = allocations.pending_before
    return np.asarray((allocations.born <= event) & (freed > event) & ~gone)


def _growing_sites(trace: Trace, sites: Sites, at: NDArray[np.int64]) -> tuple[GrowingSite, ...]:
    size = _sizes(trace)
    count = len(sites.table)
    level = np.stack(
        [
            np.bincount(
                sites.of_allocation, weights=size * _live_at(trace, int(event)), minlength=count
            )
            for event in at[len(at) // 4 :]
        ]
    ).astype(np.int64)
    rises = np.diff(level, axis=0)
    growing = np.flatnonzero(
        ((rises > 0).mean(axis=0) >= 0.7) & (level[-1] > level[0]) & (level[-1] >= LEAST_BYTES)
    )
    live = _live_at(trace, int(at[-1]))
    found = []
    for site in growing.tolist():
        mine = np.flatnonzero(live & (sites.of_allocation == site))
        found.append(
            GrowingSite(
                site,
                int(np.median(rises[:, site])),
                len(mine),
                int(size[mine].sum()),
                int(trace.allocations.stack[mine[-1]]) if len(mine) else -1,
            )
        )
    return tuple(sorted(found, key=lambda s: -s.bytes_per_step))


def _per_repetition(
    trace: Trace, allocated: NDArray[np.int64], sites: Sites, category: NDArray[np.int64]
) -> Growth | None:
    """Without steps: one line that makes block after block, all over the trace, and frees none."""
    if not len(allocated):
        return None
    peak = int(np.argmax(allocated))
    live = _live_at(trace, peak)
    born = trace.allocations.born
    size = _sizes(trace)
    found = []
    for site in np.unique(sites.of_allocation[live]).tolist():
        made = np.flatnonzero((sites.of_allocation == site) & (born >= 0) & (born <= peak))
        kept = made[live[made]]
        if len(kept) < FEWEST_STEPS or len(kept) < 0.8 * len(made):
            continue
        if ORDER[int(category[kept[-1]])] in BORN_ONCE:
            continue
        spread = np.diff(born[kept])
        covers = born[kept[-1]] - born[kept[0]] > 0.5 * len(trace.events)
        even = spread.max() < 0.5 * (born[kept[-1]] - born[kept[0]])
        per = int(np.median(size[kept]))
        if covers and even and per >= LEAST_BYTES:
            found.append(
                GrowingSite(
                    site,
                    per,
                    len(kept),
                    int(size[kept].sum()),
                    int(trace.allocations.stack[kept[-1]]),
                )
            )
    if not found:
        return None
    found.sort(key=lambda s: -s.held)
    most = max(s.blocks for s in found)
    return Growth(
        sum(s.bytes_per_step for s in found), most, "repetition", tuple(found), int(allocated[peak])
    )
