"""Which line of the forward pass an allocation of backward belongs to.

Autograd's threads have no Python frames. Some versions of torch write the forward op's frames as
well; elsewhere its line is inferred. A node frees what it saved in the forward pass once it has
run: so the activation that is freed next, by the same thread, names the line whose gradient is
being computed. The first layers' nodes may save nothing that is freed then; they get the line that
was freed last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.sites import Sites
    from tenure.traces import Trace

    Ints = NDArray[np.int64]


def forward_sites(trace: Trace, sites: Sites) -> Ints:
    """For each allocation of backward the site of its forward line; -1 where none is known.

    Recorded where the recording says so, else inferred for allocations without frames. Those from
    before the recording get -1.
    """
    found = _inferred(trace, sites)
    recorded = sites.of_forward
    return np.where(recorded > 0, recorded, found)


def _inferred(trace: Trace, sites: Sites) -> Ints:
    allocations = trace.allocations
    found = np.full(len(allocations), -1, np.int64)
    silent = np.flatnonzero((allocations.stack < 0) & (allocations.born >= 0))
    site = sites.of_allocation
    if not trace.has_stacks or not len(silent):
        return found
    freed = allocations.freed
    candidates = np.flatnonzero((freed >= 0) & (site > 0))
    candidates = candidates[trace.events.stack[freed[candidates]] < 0]
    if not len(candidates):
        return found
    candidates = candidates[np.argsort(freed[candidates], kind="stable")]
    moment = freed[candidates]
    main = np.sort(allocations.born[(allocations.stack >= 0) & (allocations.born >= 0)])
    born = allocations.born[silent]
    next_main = np.append(main, len(trace.events))[np.searchsorted(main, born)]
    last_main = np.append(-1, main)[np.searchsorted(main, born)]
    following = np.searchsorted(moment, born)
    follows = (following < len(moment)) & (
        moment[np.minimum(following, len(moment) - 1)] < next_main
    )
    leads = ~follows & (following > 0) & (moment[np.maximum(following - 1, 0)] > last_main)
    found[silent[follows]] = site[candidates[following[follows]]]
    found[silent[leads]] = site[candidates[following[leads] - 1]]
    return found
