"""What makes two allocations the same kind: the same stack, or, without one, the same size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.traces import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces import Trace

UNIT = 512  # bytes; every block is a multiple of it


def block_sizes(trace: Trace) -> NDArray[np.int64]:
    """Bytes of each allocation's block: as the end state shows, else the request rounded up."""
    allocations = trace.allocations
    known = np.where(allocations.size > 0, allocations.size, allocations.requested)
    return np.asarray((known + UNIT - 1) // UNIT * UNIT)


def exact_block_sizes(trace: Trace, allocated: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of each allocation's block, what was not split off included.

    Args:
        trace: As replayed: with the blocks of its start as large as the record shows.
        allocated: Live bytes after each event of that replay.
    """
    size = block_sizes(trace)
    begun = [b for segment in trace.start for b in segment.blocks]
    for block in begun:
        size[block.allocation] = block.size
    if not len(allocated):
        return size
    events = trace.events
    changes = np.flatnonzero(events.action <= Action.FREE_REQUESTED)
    before = sum(b.size for b in begun if not b.pending)
    change = np.diff(allocated[changes], prepend=before)
    made = events.action[changes] == Action.ALLOC
    size[events.allocation[changes[made]]] = change[made]
    return size


def allocation_codes(trace: Trace) -> NDArray[np.int64]:
    """A small number for each allocation; equal numbers mean the same kind of request.

    Requests with a stack are told apart by it alone, so that lengths may vary from step to step;
    the others by their bytes.
    """
    allocations = trace.allocations
    stack = allocations.stack.astype(np.int64)
    keys = np.where(stack >= 0, stack, -1 - allocations.requested)
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def lifetimes(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first event after which each allocation is live, and the first after which it is not.

    Half-open: live after events born <= e < gone. Blocks that were pending before the recording
    are never live. What was there before the first event is born at -1.
    """
    allocations = trace.allocations
    gone = np.where(allocations.freed < 0, len(trace.events), allocations.freed)
    gone = np.where(allocations.pending_before, -1, gone)
    return allocations.born, gone
