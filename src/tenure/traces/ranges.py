"""What the driver had given at the first event: the end state with every segment event undone."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.columns import Action

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces.columns import Addresses, Events, Ints, Segments

SMALL_SEGMENT = 2 << 20  # bytes; kSmallBuffer, the only size of a small pool's segments
SMALL_REQUEST = 1 << 20  # bytes; the most that small pools serve (kSmallSize)
NEVER = 1 << 62


@dataclass(frozen=True)
class Span:
    """A range while the driver gave it.

    Attributes:
        start: First address.
        end: Behind its last address.
        stream: Stream that owns it.
        pool: Index into the trace's pools.
        small: True for the small half of the pool.
        arena: True for a part of an expandable segment.
        born: Event that made it; -1 if before the first.
        died: Event that returned it; `NEVER` if none did.
    """

    start: int
    end: int
    stream: int
    pool: int
    small: bool
    arena: bool
    born: int = -1
    died: int = NEVER


@dataclass
class Undoing:
    """Spans by address, as they were before the events undone so far."""

    spans: list[Span]  # ascending start
    closed: list[Span] = field(default_factory=list)
    contradictions: list[int] = field(default_factory=list)  # addresses

    def _at(self, address: int) -> int:
        """Index of the span that holds the address, or -1."""
        i = bisect.bisect_right(self.spans, address, key=lambda s: s.start) - 1
        return i if i >= 0 and address < self.spans[i].end else -1

    def undo_gift(self, event: int, start: int, end: int) -> None:
        """Takes [start, end) away again; it was given by `event`."""
        first = last = self._at(start)
        while 0 <= last < len(self.spans) and self.spans[last].end < end:
            touches = (
                last + 1 < len(self.spans) and self.spans[last + 1].start == self.spans[last].end
            )
            last = last + 1 if touches else -1
        if first < 0 or last < 0:
            self.contradictions.append(start)
            return
        taken = self.spans[first : last + 1]
        if not taken[0].arena and (taken[0].start, taken[-1].end) != (start, end):
            self.contradictions.append(start)  # a cudaMalloc is undone whole
            return
        around = [replace(taken[0], end=start), replace(taken[-1], start=end)]
        self.spans[first : last + 1] = [s for s in around if s.start < s.end]
        self.closed += [
            replace(s, start=max(s.start, start), end=min(s.end, end), born=event) for s in taken
        ]

    def undo_return(self, span: Span) -> None:
        """Puts a span back that an event returned to the driver."""
        i = bisect.bisect_right(self.spans, span.start, key=lambda s: s.start)
        if (i > 0 and self.spans[i - 1].end > span.start) or (
            i < len(self.spans) and self.spans[i].start < span.end
        ):
            self.contradictions.append(span.start)
            return
        self.spans.insert(i, span)


class ArenaOwners:
    """Whose an unmapped range of addresses was, from what is mapped around it at other times."""

    def __init__(self, events: Events, end: list[Span], settings: AllocatorSettings) -> None:
        """Takes the runs of the end state and all maps of the recording."""
        chosen = np.flatnonzero(events.action == Action.SEGMENT_MAP)
        chosen = chosen[np.argsort(events.address[chosen], kind="stable")]
        self._maps: list[int] = events.address[chosen].tolist()
        self._sizes: list[int] = events.size[chosen].tolist()
        self._reach = settings.device_memory + settings.device_memory // 8
        self._granule = settings.large_segment_size
        self._elastic = settings.rules == "elastic"
        self._events = events
        self._uses: tuple[Addresses, Ints] | None = None  # of blocks: address, bytes asked for
        self._runs: dict[tuple[int, bool], list[tuple[int, int]]] = {}  # (start, pool), ascending
        for span in end:
            if span.arena:
                self._runs.setdefault((span.stream, span.small), []).append((span.start, span.pool))

    def is_small(self, start: int, size: int, stream: int) -> bool:
        """Whether the range belonged to a small pool, which maps single chunks of 2 MiB.

        Under elastic rules large pools may do so too: there the nearest run tells, since arenas lie
        further apart than a device has memory.
        """
        if self._elastic:
            halves = {small: self._nearest(start, stream, small=small) for small in (False, True)}
            known = [(abs(run[0] - start), small) for small, run in halves.items() if run]
            return min(known)[1] if known else self._holds_small_blocks(start, start + size)
        if size % self._granule:
            return True
        i = bisect.bisect_right(self._maps, start) - 1
        if i >= 0 and start < self._maps[i] + self._sizes[i]:
            return self._sizes[i] == SMALL_SEGMENT
        return self._holds_small_blocks(start, start + size)

    def _holds_small_blocks(self, start: int, end: int) -> bool:
        if self._uses is None:
            chosen = np.flatnonzero(self._events.action <= Action.FREE_COMPLETED)
            chosen = chosen[np.argsort(self._events.address[chosen])]
            self._uses = (self._events.address[chosen], self._events.size[chosen])
        places, sizes = self._uses
        first, last = np.searchsorted(places, np.array([start, end], np.uint64))
        return bool(first < last and sizes[first] <= SMALL_REQUEST)

    def pool(self, start: int, stream: int, *, small: bool) -> int:
        """The pool of the nearest run of such an arena; the default one where none is in reach."""
        near = self._nearest(start, stream, small=small)
        return near[1] if near else 0

    def _nearest(self, start: int, stream: int, *, small: bool) -> tuple[int, int] | None:
        """Start and pool of the nearest run within one arena's reach."""
        runs = self._runs.get((stream, small), [])
        i = bisect.bisect_right(runs, (start, 0))
        near = min(runs[max(i - 1, 0) : i + 1], key=lambda run: abs(run[0] - start), default=None)
        return near if near and abs(near[0] - start) < self._reach else None


def undo_segments(events: Events, end: Segments, settings: AllocatorSettings) -> Undoing:
    """Walks the segment events backwards from the end state.

    Args:
        events: The trace; only segment events are looked at.
        end: The segments after the last event.
        settings: For the size of a granule in large pools.

    Returns:
        The spans before the first event, those given since, and addresses that do not fit.
    """
    order = np.argsort(end.address, kind="stable")
    spans = [
        Span(
            int(end.address[i]),
            int(end.address[i]) + int(end.size[i]),
            int(end.stream[i]),
            int(end.pool[i]),
            bool(end.small[i]),
            bool(end.arena[i]),
        )
        for i in order
    ]
    owners = ArenaOwners(events, spans, settings)
    undoing = Undoing(spans)
    chosen = np.flatnonzero(
        (events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP)
    )
    for i in chosen[::-1].tolist():
        start, size = int(events.address[i]), int(events.size[i])
        action = int(events.action[i])
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            undoing.undo_gift(i, start, start + size)
            continue
        stream, pool = int(events.stream[i]), int(events.pool[i])
        arena = action == Action.SEGMENT_UNMAP
        small = owners.is_small(start, size, stream) if arena else size == SMALL_SEGMENT
        if pool < 0 or settings.rules == "elastic":  # tenure notes no pool there
            pool = owners.pool(start, stream, small=small) if arena else 0
        undoing.undo_return(Span(start, start + size, stream, pool, small, arena, died=i))
    undoing.closed.extend(undoing.spans)
    return undoing
