"""The segments below the blocks: when the driver gave them, and where they are drawn.

Addresses are laid out without their gaps: each stretch of addresses that was ever reserved stands
on the one below it, so that a place is a number of bytes from the foot of the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.ranges import undo_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces import Trace
    from tenure.traces.ranges import Span

    Ints = NDArray[np.int64]
    Addresses = NDArray[np.uint64]


@dataclass(frozen=True)
class Ground:
    """Spans by ascending address, then time; columns of equal length, and the stretches.

    Attributes:
        address: First address of the span.
        size: Bytes.
        born: First position at which the driver has given it.
        died: First position at which it is returned; the number of positions if it stays.
        stream: Raw handle of the stream that owns it.
        pool: Index into the trace's pools.
        small: 1 in the small half of its pool.
        arena: 1 for a part of an expandable segment.
        stretch_address: First address of each stretch, ascending.
        stretch_size: Bytes of each.
        stretch_place: Bytes from the foot of the picture.
    """

    address: Addresses
    size: Ints
    born: Ints
    died: Ints
    stream: Addresses
    pool: Ints
    small: Ints
    arena: Ints
    stretch_address: Addresses
    stretch_size: Ints
    stretch_place: Ints

    def place(self, address: Addresses) -> Ints:
        """Where addresses are drawn; -1 for those that no stretch holds."""
        if not len(self.stretch_address):
            return np.full(len(address), -1, np.int64)
        stretch = np.searchsorted(self.stretch_address, address, "right") - 1
        known = np.maximum(stretch, 0)
        into = (address - self.stretch_address[known]).astype(np.int64)
        held = (stretch >= 0) & (into >= 0) & (into < self.stretch_size[known])
        return np.where(held, self.stretch_place[known] + into, -1)

    def homes(self, address: Addresses, born: Ints) -> Ints:
        """The span that holds each address at its position; -1 for none, and in arenas."""
        home = np.full(len(address), -1, np.int64)
        order = np.argsort(address, kind="stable")
        sorted_address = address[order]
        low = np.searchsorted(sorted_address, self.address)
        high = np.searchsorted(sorted_address, self.address + self.size.astype(np.uint64))
        for span in np.flatnonzero(self.arena == 0).tolist():
            inside = order[low[span] : high[span]]
            at = born[inside]
            home[inside[(at >= self.born[span]) & (at < self.died[span])]] = span
        return home


def lay_out(trace: Trace, positions: int) -> Ground:
    """The spans of a trace and their places.

    Args:
        trace: What to show.
        positions: One more than its events.
    """
    undoing = undo_segments(trace.events, trace.end.segments, trace.settings)
    spans = sorted(undoing.closed, key=lambda span: (span.start, span.born))
    stretches: list[list[int]] = []
    for span in spans:
        if stretches and span.start <= stretches[-1][1]:
            stretches[-1][1] = max(stretches[-1][1], span.end)
        else:
            stretches.append([span.start, span.end])
    size = np.array([end - start for start, end in stretches], np.int64)
    return Ground(
        *_columns(spans, positions),
        stretch_address=np.array([start for start, _ in stretches], np.uint64),
        stretch_size=size,
        stretch_place=np.cumsum(size) - size,
    )


def _columns(
    spans: list[Span], positions: int
) -> tuple[Addresses, Ints, Ints, Ints, Addresses, Ints, Ints, Ints]:
    return (
        np.array([s.start for s in spans], np.uint64),
        np.array([s.end - s.start for s in spans], np.int64),
        np.array([s.born + 1 for s in spans], np.int64),
        np.array([min(s.died + 1, positions) for s in spans], np.int64),
        np.array([s.stream for s in spans], np.uint64),
        np.array([s.pool for s in spans], np.int64),
        np.array([s.small for s in spans], np.int64),
        np.array([s.arena for s in spans], np.int64),
    )
