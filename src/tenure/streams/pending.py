"""Frees that wait for another stream, and how far the host runs ahead of it meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.streams.accesses import Block, Site
    from tenure.streams.clocks import Clocks, StreamId

ASKED = 8  # of those that wait, the oldest, after which no more are asked: streams work in order
MOST = 512  # frees that are followed at a time; older ones are no longer asked about


@dataclass(slots=True)
class PendingFree:
    """A storage that was freed and waits.

    Attributes:
        bytes: Its size.
        waits_for: The number of the last work on each stream it waits for.
        done: Asks the device whether all that is done; None where it cannot be asked.
    """

    bytes: int
    waits_for: dict[StreamId, int]
    done: Callable[[], bool] | None = None


@dataclass
class PendingFrees:
    """What was seen of frees that wait because of record_stream.

    Attributes:
        peak: Most bytes that waited at a time.
        peak_blocks: Most storages that waited at a time.
        waited: Frees that were not done at the next request.
        ahead: Most work that the host had queued on such a stream without knowing it done.
        measured: Whether the device was asked; else a free counts as waiting until the host knows.
        sites: Bytes that waited, by the lines of record_stream and of the free.
        late: Frees whose event covers work that was queued after the last use, by the same lines:
            how much work at most.
    """

    peak: int = 0
    peak_blocks: int = 0
    waited: int = 0
    ahead: int = 0
    measured: bool = False
    sites: Counter[tuple[Site, Site]] = field(default_factory=Counter)
    late: dict[tuple[Site, Site], int] = field(default_factory=dict)
    _waiting: list[tuple[PendingFree, tuple[Site, Site]]] = field(default_factory=list)

    def add(
        self, block: Block, freed: Site, clocks: Clocks, done: Callable[[], bool] | None = None
    ) -> None:
        """Notes a free for which record_stream named other streams."""
        waits_for = {stream: clocks.launched(stream) for stream in block.recorded}
        lines = (next(iter(block.recorded.values())), freed)
        self.measured = self.measured or done is not None
        for stream, last in waits_for.items():
            uses = [a.number for a in block.accesses if a.stream == stream]
            if uses and max(uses) < last:
                self.late[lines] = max(self.late.get(lines, 0), last - max(uses))
            self.ahead = max(self.ahead, last - clocks.known_done(stream))
        self._waiting.append((PendingFree(block.bytes, waits_for, done), lines))

    def settle(self, clocks: Clocks) -> None:
        """Called at a request, which is when the allocator looks: drops what is done."""
        if not self._waiting:
            return
        left: list[tuple[PendingFree, tuple[Site, Site]]] = []
        for entry in self._waiting[-MOST:]:
            free = entry[0]
            known = all(clocks.known_done(s) >= n for s, n in free.waits_for.items())
            if not known and free.done is not None and len(left) < ASKED:
                known = free.done()
            if not known:
                left.append(entry)
        self._waiting = left
        for free, lines in left:
            if self.sites[lines] == 0:
                self.sites[lines] = free.bytes
        self.waited += bool(left)
        self.peak = max(self.peak, sum(free.bytes for free, _ in left))
        self.peak_blocks = max(self.peak_blocks, len(left))
