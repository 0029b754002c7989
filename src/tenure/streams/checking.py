"""Which accesses nothing orders: happens-before, checked as the host goes along.

What is reported does not depend on timing. Two accesses race if no chain of waits leads from the
earlier to the later one, whether or not they met this time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.streams.accesses import Access, Block, Conflict, Kind, Race
from tenure.streams.clocks import Clocks, StreamId
from tenure.streams.extents import Overlap
from tenure.streams.freed import Freed, FreedMemory
from tenure.streams.one_shot import StreamMemories

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tenure.streams.accesses import Site, Use

TIDY = 8  # accesses of one storage from which those known to be done are dropped
MOST = 64  # accesses of one storage that are remembered; the oldest are forgotten


class Checker:
    """Takes what a program does, in the order in which its host does it.

    Attributes:
        clocks: Order of streams and host.
        blocks: Storages that live, by key.
        freed: Memory freed under unfinished work.
        memories: What each stream asked for.
        races: What was found, each kind of pair once.
    """

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.blocks: dict[int, Block] = {}
        self.freed = FreedMemory()
        self.memories = StreamMemories()
        self._races: dict[object, Race] = {}

    @property
    def races(self) -> tuple[Race, ...]:
        """What was found, in order."""
        return tuple(self._races.values())

    def cache_emptied(self) -> None:
        """Cached memory went back to the driver, which waits for the work on it."""
        self.freed.clear()
        self.memories.emptied()

    def conflicts(self, stream: StreamId, uses: Iterable[Use]) -> list[Conflict]:
        """Accesses that work, if it were launched now, would race with."""
        found = []
        for use in uses:
            block = self.blocks.get(use.key)
            if block is None:
                continue
            for access in block.accesses:
                if access.stream == stream or not (access.writes or use.writes):
                    continue
                if access.former is not None and not use.writes:
                    continue
                overlap = use.extent.overlap(access.extent)
                if overlap and not self.clocks.before(access.stream, access.number, stream):
                    found.append(
                        Conflict(block, access, _kind(access, use), overlap is Overlap.YES)
                    )
        return found

    def host_conflicts(self, uses: Iterable[Use]) -> list[Conflict]:
        """Accesses that the host, if it went on now, would race with."""
        found = []
        for use in uses:
            block = self.blocks.get(use.key)
            if block is None:
                continue
            for access in block.accesses:
                if not (access.writes or use.writes) or self._known_done(access):
                    continue
                overlap = use.extent.overlap(access.extent)
                if overlap:
                    kind = Kind.HOST if use.writes else Kind.READ
                    found.append(Conflict(block, access, kind, overlap is Overlap.YES))
        return found

    def launch(
        self,
        stream: StreamId,
        uses: Iterable[Use],
        what: str,
        site: Site,
        *,
        by_autograd: bool = False,
    ) -> int:
        """Notes work and what it touches; its number on its stream."""
        number = self.clocks.launch(stream)
        for use in uses:
            self.touch(stream, number, use, what, site, by_autograd=by_autograd)
        return number

    def touch(
        self,
        stream: StreamId,
        number: int,
        use: Use,
        what: str,
        site: Site,
        *,
        by_autograd: bool = False,
    ) -> None:
        """Notes one access of work that was launched."""
        block = self.blocks.get(use.key)
        if block is None:
            return
        if stream != block.owner:
            if not by_autograd:
                block.by_autograd.discard(stream)
            elif all(access.stream != stream for access in block.accesses):
                block.by_autograd.add(stream)
        new = Access(stream, number, use.extent, use.writes, what, site)
        if block.accesses:
            block.accesses = [a for a in block.accesses if not self._replaces(new, a)]
            if len(block.accesses) >= TIDY:
                block.accesses = [a for a in block.accesses if not self._known_done(a)][-MOST:]
        block.accesses.append(new)

    def born(
        self,
        key: int,
        size: int,
        owner: StreamId | None,
        site: Site,
        *,
        address: int = 0,
        what: str = "",
    ) -> list[Race]:
        """Notes a new storage; the races that handing out its memory means.

        Args:
            key: Its identity while it lives.
            size: Its bytes.
            owner: The stream it is allocated on; None if unknown, and for memory of the host.
            site: The line that makes it.
            address: Where it lies; 0 if unknown.
            what: The operator that asks for it.
        """
        block = Block(size, owner, site, address)
        self.blocks[key] = block
        if owner is None or not size:
            return []
        self.memories.born(owner, size)
        found = []
        for freed in self.freed.servable(owner, size, lambda a: self._before(a, owner)):
            found += self._reuse(freed, owner, what, site)
        block.accesses = [
            a for a in self.freed.taken(address, size, owner) if not self._known_done(a)
        ]
        early = [a for a in block.accesses if a.stream != owner and not self._before(a, owner)]
        conflicts = [Conflict(block, access, Kind.REUSE, sure=True) for access in early]
        found += self.report(conflicts, owner, what, site)
        block.accesses = [access for access in block.accesses if access not in early]
        return found

    def died(self, key: int, site: Site) -> Freed | None:
        """Notes that a storage is freed; what may still be in use of it."""
        block = self.blocks.pop(key, None)
        if block is None or block.owner is None:
            return None
        owner = block.owner
        self.memories.died(owner, block.bytes)
        cared = block.recorded.keys() | block.by_autograd
        uses = [
            access
            for access in block.accesses
            if access.former is None and access.stream not in cared
            if not self._known_done(access)
        ]
        foreign = [a for a in uses if a.stream != owner and not self._before(a, owner)]
        freed = Freed(block, site, uses, foreign)
        if len(self.clocks.streams) > 1:
            self.freed.add(freed)
        return freed

    def record_stream(self, key: int, stream: StreamId, site: Site) -> bool:
        """Notes that frees of a storage wait for a stream; whether that has an effect."""
        block = self.blocks.get(key)
        if block is None:
            return True
        if stream == block.owner:
            block.self_recorded = site
            return False
        block.recorded[stream] = site
        return True

    def unfinished(self, key: int) -> list[Access]:
        """The last accesses of other streams that are not done before what the owner is given."""
        block = self.blocks.get(key)
        if block is None or block.owner is None:
            return []
        last: dict[StreamId, Access] = {}
        for access in block.accesses:
            if access.former is None and access.stream not in {block.owner, *block.by_autograd}:
                known = last.get(access.stream)
                if known is None or known.number < access.number:
                    last[access.stream] = access
        owner = block.owner
        return [access for access in last.values() if not self._before(access, owner)]

    def report(
        self, conflicts: Sequence[Conflict], stream: StreamId | None, what: str, site: Site
    ) -> list[Race]:
        """Keeps the races that conflicts mean if nothing is done about them; the new ones."""
        new = []
        for block, earlier, kind, sure in conflicts:
            if not sure:
                continue
            former = earlier.former
            race = Race(
                kind,
                former.bytes if former else block.bytes,
                earlier,
                what,
                site,
                stream,
                former.born if former else block.born,
                former.freed if former else None,
                reused=former is not None,
            )
            new += self._keep(race)
        return new

    def _reuse(self, freed: Freed, owner: StreamId, what: str, site: Site) -> list[Race]:
        new = []
        for access in freed.foreign:
            block = freed.block
            race = Race(
                Kind.REUSE,
                block.bytes,
                access,
                what,
                site,
                owner,
                block.born,
                freed.site,
                self_recorded=block.self_recorded,
            )
            new += self._keep(race)
        freed.foreign = []  # told once
        return new

    def _keep(self, race: Race) -> list[Race]:
        reuse = race.kind is Kind.REUSE
        key = (race.kind, race.earlier.site, race.freed, None if reuse else race.site)
        known = self._races.get(key)
        if known is None:
            self._races[key] = race
            return [race]
        if race.reused and not known.reused:
            known.reused, known.what, known.site = True, race.what, race.site
        else:
            known.count += 1
        known.bytes = max(known.bytes, race.bytes)
        return []

    def _replaces(self, new: Access, old: Access) -> bool:
        """Whether all that would race with the old access would race with the new one too."""
        if old.writes and not new.writes:
            return False
        if not new.extent.covers(old.extent):
            return False
        if old.stream == new.stream:
            return True
        return new.writes and self.clocks.before(old.stream, old.number, new.stream)

    def _before(self, access: Access, stream: StreamId) -> bool:
        return self.clocks.before(access.stream, access.number, stream)

    def _known_done(self, access: Access) -> bool:
        return access.number <= self.clocks.known_done(access.stream)


def _kind(access: Access, use: Use) -> Kind:
    if access.former is not None:
        return Kind.REUSE
    return Kind.WRITE if use.writes else Kind.READ
