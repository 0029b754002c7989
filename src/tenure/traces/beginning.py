"""The state before the first event, rebuilt from the end state and the events in between.

A recording that began with an empty allocator starts from nothing. A late one, or one whose ring
was overwritten, starts from segments and blocks that were there already: the segments are the end
state's with every segment event undone; the blocks are those alive at the end that no event made,
and those that an event freed but none made; all else is free, one block a gap, since PyTorch
always merges.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure import _engine
from tenure.settings import engine_settings
from tenure.traces.columns import Action

if TYPE_CHECKING:
    import numpy as np

    from tenure.settings import AllocatorSettings
    from tenure.traces.columns import Events
    from tenure.traces.pairing import Allocations
    from tenure.traces.ranges import Span


@dataclass(frozen=True)
class StartBlock:
    """A block that was live or pending before the first event.

    Attributes:
        address: First address.
        size: Bytes.
        requested: Bytes asked for.
        pending: Freed, but still waiting for events.
        allocation: Its number.
    """

    address: int
    size: int
    requested: int
    pending: bool
    allocation: int


@dataclass(frozen=True)
class StartSegment:
    """A segment, or an arena with its mapped runs, that was there before the first event.

    Attributes:
        address: First address; of an arena: of what is known of it.
        size: Bytes; of an arena: reserved addresses.
        stream: Stream that owns it.
        pool: Index into the trace's pools.
        small: True for the small half of the pool.
        arena: True for an expandable segment.
        runs: Mapped (address, bytes) of an arena.
        blocks: By ascending address.
    """

    address: int
    size: int
    stream: int
    pool: int
    small: bool
    arena: bool
    runs: tuple[tuple[int, int], ...]
    blocks: tuple[StartBlock, ...]


def start_segments(
    spans: list[Span], events: Events, allocations: Allocations, settings: AllocatorSettings
) -> tuple[tuple[StartSegment, ...], list[int]]:
    """Segments with their blocks before the first event.

    Args:
        spans: Ranges that the driver had given, ascending.
        events: The trace, for where arenas grow later.
        allocations: The trace's allocations; the first `before` are placed here.
        settings: Those of the recording: they decide the size of blocks only seen being freed.

    Returns:
        The segments, and addresses of blocks that lie in none of them.
    """
    rules = engine_settings(settings)
    homes = _gather(spans)
    placed: dict[int, list[int]] = {}
    lost = []
    starts = [s.start for s in spans]
    for number in range(allocations.before):
        address = int(allocations.address[number])
        i = bisect.bisect_right(starts, address) - 1
        if i < 0 or address >= spans[i].end:
            lost.append(address)
            continue
        placed.setdefault(i, []).append(number)
    segments = []
    for members in homes:
        blocks = [
            block
            for i in members
            for block in _blocks(spans[i], placed.get(i, []), allocations, rules)
        ]
        first = spans[members[0]]
        if not first.arena:
            size = first.end - first.start
            address, runs = first.start, ()
        else:
            address, size = _arena_range([spans[i] for i in members], events, settings)
            runs = tuple((spans[i].start, spans[i].end - spans[i].start) for i in members)
        segments.append(
            StartSegment(
                address,
                size,
                first.stream,
                first.pool,
                first.small,
                first.arena,
                runs,
                tuple(blocks),
            )
        )
    return tuple(segments), lost


def _gather(spans: list[Span]) -> list[list[int]]:
    """Spans of one arena together, every other span alone."""
    arenas: dict[tuple[int, int, bool], list[int]] = {}
    homes = []
    for i, span in enumerate(spans):
        if span.arena:
            arenas.setdefault((span.stream, span.pool, span.small), []).append(i)
        else:
            homes.append([i])
    return homes + list(arenas.values())


def _blocks(
    span: Span, numbers: list[int], allocations: Allocations, rules: _engine.Settings
) -> list[StartBlock]:
    """The blocks of one span; a sliver too small to split off belongs to the block before it."""
    blocks = []
    for k, number in enumerate(numbers):
        address = int(allocations.address[number])
        behind = int(allocations.address[numbers[k + 1]]) if k + 1 < len(numbers) else span.end
        requested = int(allocations.requested[number])
        size = int(allocations.size[number])
        if size < 0:
            size = min(_engine.round_size(rules, max(requested, 1)), behind - address)
            if not span.arena and not _engine.should_split(
                rules, span.small, size, behind - address
            ):
                size = behind - address
        blocks.append(
            StartBlock(address, size, requested, bool(allocations.pending_before[number]), number)
        )
    return blocks


def _arena_range(runs: list[Span], events: Events, settings: AllocatorSettings) -> tuple[int, int]:
    """Where the arena lies: from its lowest mapped address, known now or later, to its end."""
    reach = settings.device_memory + settings.device_memory // 8
    low, high = runs[0].start, runs[-1].end
    mapped = (events.action == Action.SEGMENT_MAP) & (events.stream == runs[0].stream)
    later: np.ndarray = events.address[mapped].astype("int64")
    near = later[(later < low) & (later > high - reach)]
    granule = 2 << 20 if runs[0].small else settings.large_segment_size
    aligned = near[(low - near) % granule == 0]
    if len(aligned):
        low = int(aligned.min())
    return low, max(-(-reach // granule), -(-(high - low) // granule)) * granule
