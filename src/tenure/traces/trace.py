"""A trace: events in order, with the state before the first one and after the last one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.beginning import StartSegment, enlarge, start_segments
from tenure.traces.columns import Action, BlockState, Events
from tenure.traces.notes import Note, note_contradictions, note_late, notes_ambiguous
from tenure.traces.pairing import Allocations, complete_frees, pair
from tenure.traces.plausible import require_plausible
from tenure.traces.ranges import Undoing, undo_segments

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces.columns import Annotation, Indices, Stacks, State

DEFAULT_POOL = (0, 0)


@dataclass(frozen=True)
class Trace:
    """One device's recorded life.

    Attributes:
        device: Its index.
        events: In order.
        allocations: What the events are about.
        start: Segments and blocks before the first event; empty where the recording saw it all.
        end: The state after the last event.
        pools: Pool ids as PyTorch writes them; index 0 is the default pool (0, 0).
        stacks: Who asked.
        annotations: Named spans of time, such as optimizer steps.
        settings: Of the recording, as far as it says.
        notes: What is missing or open.
    """

    device: int
    events: Events
    allocations: Allocations
    start: tuple[StartSegment, ...]
    end: State
    pools: tuple[tuple[int, int], ...]
    stacks: Stacks
    annotations: tuple[Annotation, ...]
    settings: AllocatorSettings
    notes: tuple[Note, ...]

    @property
    def starts_empty(self) -> bool:
        """Whether the recording began before the first allocation."""
        return not self.start

    @property
    def has_stacks(self) -> bool:
        """Whether any allocation says which line made it."""
        return bool((self.allocations.stack >= 0).any())

    @property
    def forward_stack(self) -> Indices:
        """For each allocation the stack of the forward op it was made for; -1 where unrecorded."""
        born, recorded = self.allocations.born, self.events.forward
        found = np.full(len(born), -1, np.int32)
        if recorded is not None:
            found[born >= 0] = recorded[born[born >= 0]]
        return found

    def with_larger_blocks(self, larger: dict[int, int]) -> Trace:
        """The trace with blocks of its start larger by some bytes, keyed by allocation."""
        return replace(self, start=enlarge(self.start, larger))


def make_trace(
    events: Events,
    end: State,
    *,
    device: int,
    pools: tuple[tuple[int, int], ...],
    stacks: Stacks,
    annotations: tuple[Annotation, ...],
    settings: AllocatorSettings,
    notes: tuple[Note, ...] = (),
) -> Trace:
    """Pairs events into allocations and rebuilds the state before the first one.

    Args:
        events: As recorded; their `allocation` and unknown pools (-1) are filled in here.
        end: The state after the last event.
        device: Index of the device.
        pools: Pool ids; index 0 is (0, 0).
        stacks: The stacks that events and blocks point into.
        annotations: Named spans of time.
        settings: Of the recording.
        notes: What the reader found missing already.

    Raises:
        BadInputError: A size or an address that cannot be.

    Returns:
        The trace. Contradictions between events and end state become a note, not an error: the
        replay names the first event that shows them.
    """
    require_plausible(events, end, device)
    recorded = complete_frees(events, end)
    pairing = pair(recorded, end)
    undoing = undo_segments(recorded, end.segments, settings)
    pool = _resolve_pools(recorded, undoing, pools)
    events = replace(recorded, allocation=pairing.allocation, pool=pool)
    start, lost = start_segments(undoing.spans, events, pairing.allocations, settings)
    found = list(notes)
    if start:
        found.append(note_late(events, start))
        found += notes_ambiguous(recorded, start, pools, settings)
    misfits = [*pairing.contradictions.tolist(), *undoing.contradictions, *lost]
    if misfits:
        found.append(note_contradictions(misfits))
    return Trace(
        device,
        events,
        pairing.allocations,
        start,
        end,
        pools,
        stacks,
        annotations,
        settings,
        tuple(found),
    )


def _resolve_pools(events: Events, undoing: Undoing, pools: tuple[tuple[int, int], ...]) -> Indices:
    """Pools of events that do not name one (torch <= 2.11): that of the segment they lie in."""
    known = events.pool
    unknown = known < 0
    if not unknown.any():
        return known
    resolved = np.where(unknown, 0, known).astype(np.int32)
    private = [s for s in undoing.closed if s.pool != 0]
    if len(pools) == 1 or not private:
        return resolved
    about = np.flatnonzero(unknown & (events.action <= Action.SEGMENT_UNMAP))
    about = about[np.argsort(events.address[about], kind="stable")]
    places = events.address[about]
    for span in private:
        low, high = np.searchsorted(places, np.array([span.start, span.end], np.uint64))
        inside = about[low:high]
        inside = inside[(inside >= _first_event(span.born)) & (inside <= span.died)]
        resolved[inside] = span.pool
    # The segment event comes before the alloc that it serves: same pool, same moment.
    return resolved


def _first_event(born: int) -> int:
    return max(born, 0)


def live_bytes(state: State) -> int:
    """Bytes of live blocks in a state."""
    chosen = state.blocks.state == BlockState.LIVE
    return int(state.blocks.size[chosen].sum())
