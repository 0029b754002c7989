"""Arenas (expandable segments): which mapped runs belong together, and where each arena begins.

A snapshot lists mapped runs, not reservations. Maps tell the halves of a pool apart: small pools
map one chunk of 2 MiB at a time, large ones whole granules of more than 10 MiB. An arena grows at
the end of a mapped run, or at its own first address; so a map below all runs that are known shows
where the arena begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.columns import Action

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces.columns import Events
    from tenure.traces.ranges import Span

SMALL_GRANULE = 2 << 20  # bytes


@dataclass(frozen=True)
class Arena:
    """One reservation, as far as the recording shows it.

    Attributes:
        address: First address of all that is known of it.
        size: Bytes reserved from there on, or a little more.
        runs: Mapped spans at the first event, ascending, none touching the next.
    """

    address: int
    size: int
    runs: tuple[Span, ...]


def join_runs(spans: list[Span]) -> list[Span]:
    """Spans by ascending address, with touching spans of one arena made one."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last and span.arena and last.end == span.start and _owner(last) == _owner(span):
            joined[-1] = replace(last, end=span.end)
        else:
            joined.append(span)
    return joined


def find_arenas(spans: list[Span], events: Events, settings: AllocatorSettings) -> list[Arena]:
    """The arenas that the spans are runs of.

    Args:
        spans: As `join_runs` leaves them.
        events: The trace, with pools resolved: later maps show where arenas begin.
        settings: For granules, and the device's memory that decides how much is reserved.
    """
    reach = settings.device_memory + settings.device_memory // 8
    owned: dict[tuple[object, ...], list[Span]] = {}
    for span in spans:
        if span.arena:
            owned.setdefault(_owner(span), []).append(span)
    arenas = []
    for runs in owned.values():
        first = 0
        for i in range(1, len(runs) + 1):
            if i < len(runs) and runs[i].end - runs[first].start <= reach:
                continue
            arenas.append(_arena(runs[first:i], events, reach, settings))
            first = i
    return arenas


def _owner(span: Span) -> tuple[object, ...]:
    return (span.stream, span.pool, span.small, span.arena)


def _arena(runs: list[Span], events: Events, reach: int, settings: AllocatorSettings) -> Arena:
    low, high = runs[0].start, runs[-1].end
    elastic = settings.rules == "elastic"  # then any pool may map any number of pages
    granule = SMALL_GRANULE if runs[0].small or elastic else settings.large_segment_size
    mine = (events.stream == runs[0].stream) & (events.pool == runs[0].pool)
    maps = mine & (events.action == Action.SEGMENT_MAP)
    if not elastic:
        maps &= (events.size == SMALL_GRANULE) == runs[0].small
    below = maps & (events.address < low) & (events.address > max(high - reach, 0))
    if below.any():
        # Once everything is unmapped the arena is gone, and a later map is another's.
        unmaps = mine & (events.action == Action.SEGMENT_UNMAP)
        inside = (events.address > max(high - reach, 0)) & (events.address < low + reach)
        change = np.where(maps & inside, events.size, 0) - np.where(unmaps, events.size, 0)
        held = sum(r.end - r.start for r in runs) + np.cumsum(change)
        gone = np.flatnonzero(unmaps & (held <= 0))
        until = gone[0] if len(gone) else len(events)
        earlier = events.address[:until][below[:until]].astype(np.int64)
        aligned = earlier[(low - earlier) % granule == 0]
        low = int(aligned.min(initial=low))
    return Arena(low, -(-max(reach, high - low) // granule) * granule, tuple(runs))
