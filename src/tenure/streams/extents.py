"""The bytes of a storage that an access touches: one run, or equal runs at equal steps."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Overlap(IntEnum):
    """Whether two extents have a byte in common."""

    NO = 0
    PERHAPS = 1  # their bounds meet, and their patterns are too different to tell
    YES = 2


class Extent(NamedTuple):
    """Bytes of a storage, half-open.

    Attributes:
        start: First byte.
        stop: Behind the last one.
        run: Bytes touched from each step on; all of them where `step` is 0.
        step: Bytes from run to run; 0 for a single run.
        exact: Whether every byte of every run is touched; else some are.
    """

    start: int
    stop: int
    run: int
    step: int = 0
    exact: bool = True

    def covers(self, other: Extent) -> bool:
        """Whether it touches every byte that the other may touch."""
        if self == other:
            return self.exact
        return (
            self.step == 0 and self.exact and self.start <= other.start <= other.stop <= self.stop
        )

    def overlap(self, other: Extent) -> Overlap:
        """Whether both touch a byte."""
        if self.stop <= other.start or other.stop <= self.start:
            return Overlap.NO
        if self == other or (self.step == 0 and other.step == 0):
            return Overlap.YES
        if self.step and other.step:
            found = _both_stepped(self, other)
        elif self.step:
            found = _stepped_and_run(self, other)
        else:
            found = _stepped_and_run(other, self)
        exact = self.exact and other.exact
        return found if exact else min(found, Overlap.PERHAPS)


def dense(start: int, size: int) -> Extent:
    """One run of `size` bytes."""
    return Extent(start, start + size, size)


def strided(start: int, itemsize: int, sizes: Iterable[int], strides: Iterable[int]) -> Extent:
    """What a view touches.

    Args:
        start: Its first byte.
        itemsize: Bytes of one element.
        sizes: Elements in each dimension, none of them 0.
        strides: Elements from one to the next in each dimension.
    """
    steps = sorted(
        (stride * itemsize, size)
        for size, stride in zip(sizes, strides, strict=True)
        if size > 1 and stride
    )
    stop = start + itemsize + sum(step * (size - 1) for step, size in steps)
    run = itemsize
    while steps and steps[0][0] <= run:
        step, size = steps.pop(0)
        run += step * (size - 1)
    if not steps:
        return Extent(start, stop, run)
    step, count = steps.pop(0)
    while steps and steps[0][0] == step * count:
        count *= steps.pop(0)[1]
    return Extent(start, stop, run, step, exact=not steps)


def _stepped_and_run(stepped: Extent, run: Extent) -> Overlap:
    first = max(0, (run.start - stepped.start - stepped.run) // stepped.step + 1)
    return Overlap.YES if stepped.start + first * stepped.step < run.stop else Overlap.NO


def _both_stepped(one: Extent, other: Extent) -> Overlap:
    if one.step != other.step:
        return Overlap.PERHAPS
    apart = (other.start - one.start) % one.step  # from a run of the one to the other's next
    if apart >= one.run and one.step - apart >= other.run:
        return Overlap.NO
    common = min(one.stop, other.stop) - max(one.start, other.start)
    return Overlap.YES if common >= one.step else Overlap.PERHAPS
