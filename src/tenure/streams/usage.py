"""Bytes per stream: live, waiting for other streams, reserved; and how long frees waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces import Events, Trace


@dataclass(frozen=True)
class StreamUsage:
    """One stream's share; peaks are of that stream alone, in bytes.

    Attributes:
        stream: Raw handle; 0 is the default stream.
        live_peak: Most bytes live at a time.
        pending_peak: Most bytes freed but waiting for events of other streams.
        pending_at: The event after which that was so; -1 for never.
        pending_blocks: Most blocks that waited at a time.
        reserved_peak: Most bytes that the driver gave for it.
        reserved_end: Bytes reserved for it after the last event.
        cached_end: Of these, bytes that are free.
        first: Its first event; -1 for none in the recording.
        last: Its last request; -1 for none in the recording.
        waited: Frees that did not complete at once.
        longest_wait_us: The longest of them, in microseconds; 0 without times.
        usual_wait_us: The median of those that ended within the recording; 0 likewise.
    """

    stream: int
    live_peak: int
    pending_peak: int
    pending_at: int
    pending_blocks: int
    reserved_peak: int
    reserved_end: int
    cached_end: int
    first: int
    last: int
    waited: int
    longest_wait_us: int
    usual_wait_us: int


def stream_usage(trace: Trace, block_size: NDArray[np.int64]) -> tuple[StreamUsage, ...]:
    """The streams of a trace, most reserved first.

    Args:
        trace: The trace.
        block_size: Bytes of each allocation's block, which live and pending bytes are counted in.
    """
    events = trace.events
    streams = np.unique(
        np.concatenate([events.stream[events.action != Action.OOM], trace.end.segments.stream])
    )
    about = events.allocation
    size = events.size.copy()
    size[about >= 0] = block_size[about[about >= 0]]
    usages = [_usage(trace, int(stream), block_size, size) for stream in streams]
    return tuple(sorted(usages, key=lambda u: -u.reserved_peak))


def _usage(
    trace: Trace, stream: int, block_size: NDArray[np.int64], event_size: NDArray[np.int64]
) -> StreamUsage:
    events = trace.events
    start = [s for s in trace.start if s.stream == stream]
    blocks = [b for s in start for b in s.blocks]
    live = sum(int(block_size[b.allocation]) for b in blocks if not b.pending)
    pending = sum(int(block_size[b.allocation]) for b in blocks if b.pending)
    reserved = sum(sum(n for _, n in s.runs) if s.arena else s.size for s in start)
    mine = np.flatnonzero((events.stream == stream) & (events.action <= Action.SEGMENT_UNMAP))
    action, size = events.action[mine], event_size[mine]
    live_change = _signed(action, size, {Action.ALLOC: 1, Action.FREE_REQUESTED: -1})
    pending_change = _signed(action, size, {Action.FREE_REQUESTED: 1, Action.FREE_COMPLETED: -1})
    # A free that completes at once never waits: its two events cancel before they are looked at.
    reserved_change = _signed(
        action,
        size,
        {
            Action.SEGMENT_ALLOC: 1,
            Action.SEGMENT_MAP: 1,
            Action.SEGMENT_FREE: -1,
            Action.SEGMENT_UNMAP: -1,
        },
    )
    waits = _Waits(trace, stream)
    pending_level = pending + np.cumsum(pending_change)
    pending_level = np.where(_completes_at_once(events, mine), 0, pending_level)
    most = int(pending_level.max(initial=0))
    requests = mine[action == Action.ALLOC]
    return StreamUsage(
        stream=stream,
        live_peak=live + max(int(np.cumsum(live_change).max(initial=0)), 0),
        pending_peak=max(most, pending - _completed_first(events, stream, event_size)),
        pending_at=int(mine[np.argmax(pending_level)]) if most else -1,
        pending_blocks=waits.most_at_once(),
        reserved_peak=reserved + max(int(np.cumsum(reserved_change).max(initial=0)), 0),
        reserved_end=int(trace.end.segments.size[trace.end.segments.stream == stream].sum()),
        cached_end=_cached_at_end(trace, stream),
        first=int(mine[0]) if len(mine) else -1,
        last=int(requests[-1]) if len(requests) else -1,
        waited=waits.count,
        longest_wait_us=int(waits.times_us().max(initial=0)),
        usual_wait_us=int(np.median(waits.times_us())) if len(waits.times_us()) else 0,
    )


def _completed_first(events: Events, stream: int, event_size: NDArray[np.int64]) -> int:
    """Bytes of a free that the recording begins in the middle of: it did not wait."""
    if not len(events) or events.action[0] != Action.FREE_COMPLETED or events.stream[0] != stream:
        return 0
    return int(event_size[0])


def _completes_at_once(events: Events, mine: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these events are frees that complete within the same call, so that nothing waits.

    One call writes both events, so they follow each other and have one stack. The clock does not
    tell: a thread that is interrupted between them looks like a wait.
    """
    action, address = events.action[mine], events.address[mine]
    found = np.zeros(len(mine), bool)
    found[:-1] = (
        (action[:-1] == Action.FREE_REQUESTED)
        & (action[1:] == Action.FREE_COMPLETED)
        & (address[1:] == address[:-1])
        & (events.stack[mine][1:] == events.stack[mine][:-1])
    )
    return found


class _Waits:
    """The frees of one stream that did not complete at once."""

    def __init__(self, trace: Trace, stream: int) -> None:
        allocations = trace.allocations
        mine = (allocations.stream == stream) & (allocations.freed >= 0)
        freed, done = allocations.freed[mine], allocations.done[mine]
        self._time = trace.events.time_us
        stack = trace.events.stack
        waited = (done != freed + 1) | (stack[done] != stack[freed])
        self._freed, self._done = freed[waited], done[waited]

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._freed)

    def most_at_once(self) -> int:
        """Most of them that waited at a time."""
        ended = np.sort(self._done[self._done >= 0])
        before = np.searchsorted(ended, np.sort(self._freed))
        return int((np.arange(1, self.count + 1) - before).max(initial=0))

    def times_us(self) -> NDArray[np.int64]:
        """How long those took that ended, in microseconds."""
        over = self._done >= 0
        return np.asarray(self._time[self._done[over]] - self._time[self._freed[over]])


def _cached_at_end(trace: Trace, stream: int) -> int:
    blocks = trace.end.blocks
    free = blocks.state == BlockState.CACHED
    return int(blocks.size[free & (trace.end.segments.stream[blocks.segment] == stream)].sum())


def _signed(action: np.ndarray, size: np.ndarray, signs: dict[Action, int]) -> np.ndarray:
    sign = np.zeros(len(Action), np.int64)
    for code, value in signs.items():
        sign[code] = value
    return np.asarray(sign[action] * size)
