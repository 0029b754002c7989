"""When each allocation was live, how large it was and where: what the pictures are drawn from.

A position counts events: the state at position p is the state after the first p of them, so 0 is
before the first. Intervals of positions are half-open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes import Sites, categorise, find_rounds, find_steps, forward_sites
from tenure.reports.page.ground import Ground, lay_out
from tenure.traces import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.diagnoses import Explanation
    from tenure.lifetimes import Steps
    from tenure.replays import Replay
    from tenure.traces import Trace

    Ints = NDArray[np.int64]

UNIT = 512  # bytes; every block is a multiple of it


@dataclass(frozen=True)
class Lives:
    """Every allocation of a trace, by ascending `born`; columns of equal length.

    Attributes:
        positions: Number of positions: one more than events.
        born: First position at which it is live.
        made: The position right after its own event; later than `born` where the request caused
            events of segments first. 0 for those before the recording.
        freed: First position at which it is live no more; `positions` if it stays.
        done: First position at which its block is free again.
        size: Bytes of the block.
        requested: Bytes asked for.
        stack: Index into the trace's stacks; -1 for none.
        site: Index into `labels`.
        category: Index into `lifetimes.ORDER`.
        stream: Index into `streams`.
        pool: Index into the trace's pools.
        place: Bytes from the foot of the address picture; -1 where no segment is known.
        home: Index into the ground's spans of the segment it lies in; -1 for none or an arena.
        labels: Who asked, each place in the code once; of the backward pass by its forward line.
        streams: Raw handles, ascending.
        ground: The segments below the blocks.
        steps: Optimizer steps, if the trace names them.
    """

    positions: int
    born: Ints
    made: Ints
    freed: Ints
    done: Ints
    size: Ints
    requested: Ints
    stack: Ints
    site: Ints
    category: Ints
    stream: Ints
    pool: Ints
    place: Ints
    home: Ints
    labels: tuple[str, ...]
    streams: tuple[int, ...]
    ground: Ground
    steps: Steps | None

    def __len__(self) -> int:
        """Number of allocations."""
        return len(self.born)

    def live_at(self, position: int) -> Ints:
        """The allocations live at a position, oldest first."""
        return np.flatnonzero((self.born <= position) & (position < self.freed))

    def level(self, weight: Ints | None = None) -> Ints:
        """Live bytes at each position, or the sum of another weight of live allocations."""
        return self._level(self.born, self.freed, self.size if weight is None else weight)

    def pending_level(self) -> Ints:
        """Pending bytes at each position."""
        return self._level(self.freed, self.done, self.size)

    def reserved_level(self) -> Ints:
        """Reserved bytes at each position."""
        ground = self.ground
        return self._level(ground.born, ground.died, ground.size)

    def _level(self, begin: Ints, end: Ints, weight: Ints) -> Ints:
        change = np.zeros(self.positions + 1, np.int64)
        np.add.at(change, begin, weight)
        np.subtract.at(change, end, weight)
        return np.asarray(np.cumsum(change)[:-1])


def lives_of(trace: Trace, replay: Replay, explanation: Explanation | None = None) -> Lives:
    """The allocations of a trace.

    Args:
        trace: What to show.
        replay: The trace as recorded, with its timeline: it knows the sizes of blocks.
        explanation: If there is one already: it knows the rounds, which take a while to find.
    """
    allocations = trace.allocations
    positions = len(trace.events) + 1
    born, size = _measured(trace, replay)
    never = allocations.pending_before
    freed = np.where(never, 0, np.where(allocations.freed < 0, positions, allocations.freed + 1))
    done = np.where(allocations.done < 0, positions, allocations.done + 1)
    freed = np.maximum(np.minimum(freed, done), born)
    done = np.where(done <= freed + 1, freed, done)  # a free that did not wait is one moment
    labels, site = _labels(trace)
    steps = find_steps(trace)
    rounds = explanation.rounds if explanation else find_rounds(trace, steps)
    ground = lay_out(trace, positions)
    streams, stream = np.unique(
        np.concatenate([allocations.stream, ground.stream]), return_inverse=True
    )
    return Lives(
        positions=positions,
        born=born,
        made=allocations.born + 1,
        freed=freed,
        done=done,
        size=size,
        requested=allocations.requested,
        stack=allocations.stack.astype(np.int64),
        site=site,
        category=categorise(trace, steps, rounds),
        stream=stream[: len(born)].astype(np.int64),
        pool=_pools(trace),
        place=ground.place(allocations.address),
        home=ground.homes(allocations.address, born),
        labels=labels,
        streams=tuple(streams.tolist()),
        ground=ground,
        steps=steps,
    )


def _labels(trace: Trace) -> tuple[tuple[str, ...], Ints]:
    """The places that asked, and for each allocation its index among them."""
    sites = Sites(trace)
    labels = [site.label for site in sites.table]
    forward = forward_sites(trace, sites)
    used, behind = np.unique(forward[forward >= 0], return_inverse=True)
    site = sites.of_allocation.copy()
    site[forward >= 0] = len(labels) + behind
    labels += [f"backward of {labels[i]}" for i in used.tolist()]
    return tuple(labels), site


def _measured(trace: Trace, replay: Replay) -> tuple[Ints, Ints]:
    """First live position and bytes of each block: when and by how much the allocated bytes rose.

    The engine serves a request at the first event that it causes: of a new segment, or of a
    pending block that it found to be done.
    """
    allocations = trace.allocations
    rounded = -(-allocations.requested // UNIT) * UNIT
    size = np.where(allocations.size > 0, allocations.size, rounded)
    born = allocations.born + 1
    start = [block for segment in trace.start for block in segment.blocks]
    size[[block.allocation for block in start]] = [block.size for block in start]
    timeline = replay.timeline
    if timeline is None or not len(timeline.allocated):
        return born, size
    first = sum(block.size for block in start if not block.pending)
    moved = np.flatnonzero(trace.events.action <= Action.FREE_REQUESTED)
    grown = np.diff(timeline.allocated[moved], prepend=first)
    rises = np.flatnonzero(np.diff(timeline.allocated, prepend=first) > 0)
    made = np.flatnonzero(allocations.born >= 0)
    turn = np.searchsorted(moved, allocations.born[made])
    before = np.where(turn > 0, moved[np.maximum(turn - 1, 0)], -1)
    rise = np.append(rises, len(trace.events))[np.searchsorted(rises, before + 1)]
    known = (grown[turn] > 0) & (rise <= allocations.born[made])
    size[made[known]] = grown[turn[known]]
    born[made[known]] = rise[known] + 1
    return born, np.asarray(size)


def _pools(trace: Trace) -> Ints:
    allocations = trace.allocations
    pool = np.zeros(len(allocations), np.int64)
    for segment in trace.start:
        pool[[block.allocation for block in segment.blocks]] = segment.pool
    made = allocations.born >= 0
    pool[made] = np.maximum(trace.events.pool[allocations.born[made]], 0)
    return pool
