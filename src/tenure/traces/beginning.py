"""The state before the first event, rebuilt from the end state and the events in between.

A recording that began with an empty allocator starts from nothing. A late one, or one whose ring
was overwritten, starts from segments and blocks that were there already: the segments are the end
state's with every segment event undone; the blocks are those alive at the end that no event made,
and those that an event freed but none made; all else is free, one block a gap, since PyTorch
always merges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.arenas import find_arenas, join_runs
from tenure.traces.extents import Measure

if TYPE_CHECKING:
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
        slack: Bytes by which the block may be larger; the recording does not tell.
    """

    address: int
    size: int
    requested: int
    pending: bool
    allocation: int
    slack: int = 0


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
    """Segments with their blocks before the first event, in the order they were probably made.

    Drivers hand out mostly descending addresses: of two segments in the recordings tried, the
    higher one was the older in 97 of 100 pairs.

    Args:
        spans: Ranges that the driver had given, ascending.
        events: The trace, for where arenas grow later.
        allocations: The trace's allocations; the first `before` are placed here.
        settings: Those of the recording: they decide the size of blocks only seen being freed.

    Returns:
        The segments, and addresses of blocks that lie in none of them or reach into others.
    """
    placed, lost = _place(spans := join_runs(spans), allocations)
    if not spans:
        return (), lost
    measure = Measure(allocations, settings)
    blocks = [
        _blocks(span, numbers, allocations, measure)
        for span, numbers in zip(spans, placed, strict=True)
    ]
    of_run = {span.start: mine for span, mine in zip(spans, blocks, strict=True)}
    segments = [
        _segment(span, span.start, span.end - span.start, (), of_run[span.start])
        for span in reversed(spans)
        if not span.arena
    ]
    for arena in find_arenas(spans, events, settings):
        runs = tuple((run.start, run.end - run.start) for run in arena.runs)
        mine = [block for start, _ in runs for block in of_run[start]]
        segments.append(_segment(arena.runs[0], arena.address, arena.size, runs, mine))
    return tuple(segments), lost + measure.overlaps


def _segment(
    span: Span,
    address: int,
    size: int,
    runs: tuple[tuple[int, int], ...],
    blocks: list[StartBlock],
) -> StartSegment:
    return StartSegment(
        address, size, span.stream, span.pool, span.small, span.arena, runs, tuple(blocks)
    )


def _place(spans: list[Span], allocations: Allocations) -> tuple[list[list[int]], list[int]]:
    """The numbers of the allocations in each span, ascending; addresses that lie in none."""
    address = allocations.address[: allocations.before]
    starts = np.array([s.start for s in spans], np.uint64)
    ends = np.array([s.end for s in spans], np.uint64)
    home = np.searchsorted(starts, address, "right") - 1
    inside = home >= 0
    inside[inside] = address[inside] < ends[home[inside]]
    placed: list[list[int]] = [[] for _ in spans]
    for number in np.flatnonzero(inside).tolist():
        placed[home[number]].append(number)
    return placed, address[~inside].tolist()


def _blocks(
    span: Span, numbers: list[int], allocations: Allocations, measure: Measure
) -> list[StartBlock]:
    address = [int(allocations.address[number]) for number in numbers] + [span.end]
    blocks = []
    for number, at, behind in zip(numbers, address, address[1:], strict=False):
        extent = measure.extent(number, behind, span)
        requested = int(allocations.requested[number])
        pending = bool(allocations.pending_before[number])
        blocks.append(StartBlock(at, extent.size, requested, pending, number, extent.slack))
    return blocks


def enlarge(start: tuple[StartSegment, ...], larger: dict[int, int]) -> tuple[StartSegment, ...]:
    """The start with some blocks larger; keys are allocations, values the bytes to add."""
    return tuple(
        replace(segment, blocks=tuple(_enlarged(b, larger) for b in segment.blocks))
        if any(b.allocation in larger for b in segment.blocks)
        else segment
        for segment in start
    )


def _enlarged(block: StartBlock, larger: dict[int, int]) -> StartBlock:
    more = larger.get(block.allocation, 0)
    return replace(block, size=block.size + more, slack=block.slack - more) if more else block
