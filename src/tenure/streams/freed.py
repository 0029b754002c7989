"""Memory that was freed while work on it may not be done."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.streams.accesses import Former
from tenure.streams.extents import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenure.streams.accesses import Access, Block, Site
    from tenure.streams.clocks import StreamId

SMALL = 1 << 20  # bytes; up to this a request is served from small pools, which share no block
MOST = 4096  # freed ranges that are remembered; the oldest are forgotten


@dataclass(slots=True)
class Freed:
    """A storage that is no more.

    Attributes:
        block: What it was.
        site: The user's line that let it go.
        uses: Accesses that might not have been done when it was freed, those of the owner too.
        foreign: Of these, those on other streams than the owner's.
    """

    block: Block
    site: Site
    uses: list[Access]
    foreign: list[Access]


class FreedMemory:
    """Freed storages, by their owner's stream and by address."""

    def __init__(self) -> None:
        self._open: dict[StreamId, list[Freed]] = {}
        self._starts: list[int] = []
        self._at: dict[int, Freed] = {}

    def add(self, freed: Freed) -> None:
        """Remembers what was freed under unfinished work."""
        block = freed.block
        if freed.foreign and block.owner is not None:
            self._open.setdefault(block.owner, []).append(freed)
        if freed.uses and block.address:
            if block.address not in self._at:
                bisect.insort(self._starts, block.address)
            self._at[block.address] = freed
            if len(self._at) > MOST:
                self._forget(next(iter(self._at)))

    def clear(self) -> None:
        """The cache went back to the driver, which waits for all work."""
        self._open.clear()
        self._starts.clear()
        self._at.clear()

    def servable(
        self, owner: StreamId, size: int, done: Callable[[Access], bool]
    ) -> Iterator[Freed]:
        """What a request on a stream may be served from though it is still in use.

        Args:
            owner: The stream of the request.
            size: Its bytes.
            done: Whether an access is done before what that stream is given next.
        """
        waiting = self._open.get(owner)
        if not waiting:
            return
        for freed in waiting:
            freed.foreign = [access for access in freed.foreign if not done(access)]
        waiting[:] = [freed for freed in waiting if freed.foreign]
        small = size <= SMALL
        yield from [freed for freed in waiting if (freed.block.bytes <= SMALL) is small]

    def taken(self, address: int, size: int, owner: StreamId) -> list[Access]:
        """Accesses of former storages to memory that is handed out again, in its new terms."""
        if not self._starts or not address:
            return []
        found = []
        first = max(bisect.bisect_right(self._starts, address) - 1, 0)
        for start in self._starts[first : bisect.bisect_left(self._starts, address + size)]:
            freed = self._at[start]
            block = freed.block
            lowest = max(block.address, address)
            highest = min(block.address + block.bytes, address + size)
            if lowest >= highest:
                continue
            if lowest == block.address and highest == block.address + block.bytes:
                self._forget(start)
            if block.owner != owner:  # it went through the driver, which waits
                continue
            former = Former(block.bytes, block.born, freed.site)
            extent = dense(lowest - address, highest - lowest)
            found += [access._replace(extent=extent, former=former) for access in freed.uses]
        return found

    def _forget(self, start: int) -> None:
        del self._at[start]
        del self._starts[bisect.bisect_left(self._starts, start)]
