"""How large the blocks were that a recording only sees being freed.

The record has what was asked for, not what was handed out. That is the rounded request, plus, in
the large half of a pool, a remainder of at most 1 MiB that was too small to split off. No block and
no free range there is that small, so whatever follows a block within 1 MiB shows where it ends: a
neighbour at the first event, the end of the segment, or a block made later, while it lived. What
nothing follows stays open: it is taken to have no remainder (true of 999 in 1000 in the recordings
tried), and by how much it might be larger is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine
from tenure.settings import engine_settings

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces.columns import Addresses, Ints
    from tenure.traces.pairing import Allocations
    from tenure.traces.ranges import Span

REMAINDER = 1 << 20  # bytes; the most that stays with a block unsplit (kSmallSize)
UNIT = 512  # bytes; every block is a multiple of it


@dataclass(frozen=True)
class Extent:
    """The size of a block that was there before the first event.

    Attributes:
        size: Bytes; where open, the least that the rules allow.
        slack: Bytes by which it may be larger.
    """

    size: int
    slack: int = 0


class Measure:
    """Sizes of blocks before the first event, from all that the recording shows.

    Attributes:
        overlaps: Addresses of blocks that reach into the next one: the record contradicts itself.
    """

    def __init__(self, allocations: Allocations, settings: AllocatorSettings) -> None:
        """Indexes the first block that each address gets within the recording."""
        made = slice(allocations.before, None)
        self._places: Addresses
        self._places, first = np.unique(allocations.address[made], return_index=True)
        self._births: Ints = allocations.born[made][first]
        self._allocations = allocations
        self._rules = engine_settings(settings)
        self.overlaps: list[int] = []

    def extent(self, number: int, behind: int, span: Span) -> Extent:
        """The size of one block.

        Args:
            number: Of the allocation.
            behind: Where the next block, or the end of the span, is.
            span: What the driver had given there.
        """
        address = int(self._allocations.address[number])
        room = behind - address
        size = int(self._allocations.size[number])
        if size < 0:
            size = _engine.round_size(self._rules, max(int(self._allocations.requested[number]), 1))
            if size <= room and not span.arena:
                return self._with_remainder(number, size, room, span)
        if size > room:
            self.overlaps.append(address)
        return Extent(min(size, room))

    def _with_remainder(self, number: int, size: int, room: int, span: Span) -> Extent:
        if not _engine.should_split(self._rules, span.small, size, room):
            return Extent(room)
        if span.small:
            return Extent(size)
        end = int(self._allocations.address[number]) + size
        until = max(int(self._allocations.freed[number]), int(self._allocations.done[number]))
        next_to_it = self._made_in(end, end + REMAINDER, until)
        if next_to_it is not None:
            return Extent(size + next_to_it - end)
        # What follows is free; as part of the large half it has more than REMAINDER bytes itself.
        return Extent(size, max(min(REMAINDER, room - size - REMAINDER - UNIT), 0))

    def _made_in(self, low: int, high: int, until: int) -> int | None:
        """The first address in [low, high] that gets a block before event `until`."""
        first, last = np.searchsorted(self._places, np.array([low, high + 1], np.uint64))
        for i in range(int(first), int(last)):
            if self._births[i] < until:
                return int(self._places[i])
        return None
