"""What makes two allocations the same kind: the same stack, or, without one, the same size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces import Trace

UNIT = 512  # bytes; every block is a multiple of it


def block_sizes(trace: Trace) -> NDArray[np.int64]:
    """Bytes of each allocation's block: as the end state shows, else the request rounded up."""
    allocations = trace.allocations
    known = np.where(allocations.size > 0, allocations.size, allocations.requested)
    return np.asarray((known + UNIT - 1) // UNIT * UNIT)


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
