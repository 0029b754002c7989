"""What the driver had given at the first event: the end state with every segment event undone."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.columns import Action

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces.columns import Events, Segments

SMALL_SEGMENT = 2 << 20  # bytes; kSmallBuffer, the only size of a small pool's segments
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

    def resembling(self, start: int, stream: int) -> Span | None:
        """The nearest arena span of the stream: the same arena, as far as can be told."""
        near = [s for s in self.spans + self.closed if s.arena and s.stream == stream]
        return min(near, key=lambda s: abs(s.start - start), default=None)


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
    undoing = Undoing(
        [
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
    )
    chosen = np.flatnonzero(
        (events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP)
    )
    for i in chosen[::-1].tolist():
        start, size = int(events.address[i]), int(events.size[i])
        action = int(events.action[i])
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            undoing.undo_gift(i, start, start + size)
            continue
        stream = int(events.stream[i])
        pool = max(int(events.pool[i]), 0)
        arena = action == Action.SEGMENT_UNMAP
        small = size == SMALL_SEGMENT
        if arena:
            near = undoing.resembling(start, stream)
            small = near.small if near else size % settings.large_segment_size != 0
            pool = near.pool if near and events.pool[i] < 0 else pool
        undoing.undo_return(Span(start, start + size, stream, pool, small, arena, died=i))
    undoing.closed.extend(undoing.spans)
    return undoing
