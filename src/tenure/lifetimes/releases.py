"""How blocks that were kept together went back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.course import Course

    Ints = NDArray[np.int64]

SORTED = 0.9  # of the frees of a burst that follow by age, to call them sorted


class Order(StrEnum):
    """In which order blocks that were freed at once went back."""

    REVERSED = "reversed"  # the youngest first: a list, or the frames of a function
    AS_MADE = "as made"  # the oldest first: the garbage collector, a dict, a deque
    MIXED = "mixed"


@dataclass(frozen=True)
class Release:
    """Blocks that were freed with no allocation in between.

    Attributes:
        event: The first of the frees.
        stack: Of that free; -1 for none.
        share: Of the bytes looked at, the share that went back there.
        order: In which order.
    """

    event: int
    stack: int
    share: float
    order: Order


def find_release(course: Course, kept: Ints) -> Release | None:
    """How most of these allocations went back, if with no allocation in between."""
    freed = course.trace.allocations.freed[kept]
    size = course.size[kept]
    done = freed >= 0
    if not done.any():
        return None
    births = np.sort(course.born)
    burst = np.searchsorted(births, freed[done])  # frees with as many births before them
    bursts, member = np.unique(burst, return_inverse=True)
    weight = np.bincount(member, weights=size[done], minlength=len(bursts))
    heaviest = int(np.argmax(weight))
    events = freed[done][member == heaviest]  # by age of the allocation
    share = float(weight[heaviest] / max(size.sum(), 1))
    first = int(events.min())
    return Release(first, int(course.trace.events.stack[first]), share, _order(events))


def _order(events: Ints) -> Order:
    """The order of frees, given by the age of what they free."""
    if len(events) < 3:
        return Order.MIXED
    forward = float((np.diff(events) > 0).mean())
    if forward > SORTED:
        return Order.AS_MADE
    return Order.REVERSED if forward < 1 - SORTED else Order.MIXED
