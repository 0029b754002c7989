"""Which events belong to the same allocation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tenure.traces.columns import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces.columns import Addresses, Codes, Events, Indices, Ints, State


Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Allocations:
    """Every allocation that the trace touches, by number.

    Numbers below `before` are alive when the recording begins, by ascending address; the others
    follow in the order of their alloc events.

    Attributes:
        before: How many were alive, or pending, before the first event.
        address: Of the block in the recording.
        requested: Bytes asked for.
        stream: Stream that it was made for.
        born: Its alloc event; -1 for those before the recording.
        freed: Its free_requested event; -1 if none.
        done: Its free_completed event; -1 if none.
        stack: Who made it: index into the stacks; -1 for none.
        size: Bytes of the block where the end state shows it, else -1: the rules decide.
        pending_before: Freed before the recording began, still waiting for events then.
    """

    before: int
    address: Addresses
    requested: Ints
    stream: Addresses
    born: Ints
    freed: Ints
    done: Ints
    stack: Indices
    size: Ints
    pending_before: NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of allocations."""
        return len(self.address)


@dataclass(frozen=True)
class Pairing:
    """The result of `pair`.

    Attributes:
        allocation: Number for each event; -1 for events of segments and the like.
        allocations: What is known of each.
        contradictions: Addresses where the events cannot all be true (a cut or filtered record).
    """

    allocation: Ints
    allocations: Allocations
    contradictions: Ints


@dataclass(frozen=True)
class _Uses:
    """Events of allocations by address, then by time; all columns have the same length.

    Attributes:
        event: Index into the events.
        kind: Its code.
        place: Its address.
        first: Nothing at that address comes before.
        last: Nothing at that address comes after.
        begins: The first event of an allocation.
        group: Which allocation, counted by address for now.
    """

    event: Ints
    kind: Codes
    place: Addresses
    first: NDArray[np.bool_]
    last: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    group: Ints


def pair(events: Events, end: State) -> Pairing:
    """Numbers the allocations of a trace.

    Args:
        events: In order; what they say of allocations and pools is not looked at.
        end: The state after the last event.

    Returns:
        The number of each event's allocation, and the table of allocations.
    """
    uses = _sort(events)
    heads = uses.event[uses.begins]  # the first event of each allocation
    born_there = events.action[heads] == Action.ALLOC
    untouched, end_size, end_pending, lost = _match_end(uses, end)
    blocks = end.blocks
    number, before = _number(events.address, heads, born_there, blocks.address[untouched])

    def scatter(values: NDArray[Scalar], rest: NDArray[Scalar]) -> NDArray[Scalar]:
        result = np.empty(len(number), values.dtype)
        result[number] = np.concatenate([values, rest])
        return result

    allocation = np.full(len(events), -1, np.int64)
    allocation[uses.event] = number[uses.group]
    born, freed, done = (
        _first_of(code, events.action, allocation, len(number))
        for code in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    )
    pending = (done >= 0) & (freed < 0) & (born < 0)
    pending |= (freed < 0) & (born < 0) & scatter(end_pending, blocks.state[untouched] == 2)
    table = Allocations(
        before=before,
        address=scatter(events.address[heads], blocks.address[untouched]),
        requested=scatter(events.size[heads], blocks.requested[untouched]),
        stream=scatter(events.stream[heads], end.segments.stream[blocks.segment[untouched]]),
        born=born,
        freed=freed,
        done=done,
        stack=scatter(
            np.where(born_there, events.stack[heads], -1).astype(np.int32), blocks.stack[untouched]
        ),
        size=scatter(end_size, blocks.size[untouched]),
        pending_before=pending,
    )
    return Pairing(allocation, table, np.union1d(lost, _out_of_turn(uses)))


def complete_frees(events: Events, end: State) -> Events:
    """Events where a free is complete at once, in a recording made without completions.

    Blocks that the end state still has pending are left alone. So are all recordings that have a
    completion.
    """
    asked = events.action == Action.FREE_REQUESTED
    if (events.action == Action.FREE_COMPLETED).any() or not asked.any():
        return events
    held = end.blocks.address[end.blocks.state == BlockState.PENDING]
    at_once = asked & ~np.isin(events.address, held)
    action = np.where(at_once, Action.FREE_COMPLETED, events.action).astype(np.uint8)
    return replace(events, action=action)


def _sort(events: Events) -> _Uses:
    chosen = np.flatnonzero(events.action <= Action.FREE_COMPLETED)
    event = chosen[np.argsort(events.address[chosen], kind="stable")]
    kind, place = events.action[event], events.address[event]
    change = place[1:] != place[:-1]
    first, last = np.ones(len(event), bool), np.ones(len(event), bool)
    first[1:], last[:-1] = change, change
    begins = first | (kind == Action.ALLOC)
    return _Uses(event, kind, place, first, last, begins, np.cumsum(begins) - 1)


def _number(
    address: Addresses, heads: Ints, born_there: NDArray[np.bool_], untouched: Addresses
) -> tuple[Ints, int]:
    """The final number of each group and untouched block; how many of them come first."""
    old = np.flatnonzero(~born_there)
    old_order = np.argsort(np.concatenate([address[heads[old]], untouched]), kind="stable")
    new = np.flatnonzero(born_there)
    new_order = new[np.argsort(heads[new], kind="stable")]
    number = np.empty(len(heads) + len(untouched), np.int64)
    old_places = np.concatenate([old, len(heads) + np.arange(len(untouched))])[old_order]
    number[old_places] = np.arange(len(old_order))
    number[new_order] = len(old_order) + np.arange(len(new_order))
    return number, len(old_order)


def _first_of(code: int, action: Codes, allocation: Ints, count: int) -> Ints:
    """For each allocation its first event with that code; -1 where there is none."""
    column = np.full(count, -1, np.int64)
    chosen = np.flatnonzero(action == code)[::-1]
    column[allocation[chosen]] = chosen
    return column


def _out_of_turn(uses: _Uses) -> Ints:
    """Addresses where an event cannot follow the one before: a block freed twice, or made twice."""
    if not len(uses.event):
        return np.empty(0, np.int64)
    before, after = uses.kind[:-1], uses.kind[1:]
    may_follow = np.zeros((3, 3), bool)
    may_follow[Action.ALLOC, Action.FREE_REQUESTED] = True
    may_follow[Action.FREE_REQUESTED, Action.FREE_COMPLETED] = True
    may_follow[Action.FREE_COMPLETED, Action.ALLOC] = True
    kinds = np.bincount(uses.kind, minlength=3)
    if kinds[Action.FREE_REQUESTED] == 0:  # a recording made without them (skip_actions)
        may_follow[Action.ALLOC, Action.FREE_COMPLETED] = True
    wrong = ~uses.first[1:] & ~may_follow[before, after]
    return np.unique(uses.place[1:][wrong]).astype(np.int64)


def _match_end(uses: _Uses, end: State) -> tuple[Ints, Ints, NDArray[np.bool_], Ints]:
    """Links the last allocation at each address with the block that the end state has there.

    Returns:
        Live or pending blocks of the end state that no event touches; for each group the size of
        its block at the end (-1 if gone); whether it is pending there; contradicting addresses.
    """
    groups = int(uses.begins.sum())
    end_size = np.full(groups, -1, np.int64)
    end_pending = np.zeros(groups, bool)
    held = np.flatnonzero(end.blocks.state != BlockState.CACHED)
    held = held[np.argsort(end.blocks.address[held], kind="stable")]
    held_address = end.blocks.address[held]
    if groups == 0:
        return held, end_size, end_pending, np.empty(0, np.int64)
    last = np.flatnonzero(uses.last)
    open_at_end = uses.kind[last] != Action.FREE_COMPLETED
    last_address = uses.place[last]
    at = np.searchsorted(last_address, held_address)
    inside = at < len(last_address)
    touched = np.zeros(len(held), bool)
    touched[inside] = last_address[at[inside]] == held_address[inside]
    ends = at[touched]
    still = open_at_end[ends]
    there = held[touched]
    end_size[uses.group[last[ends[still]]]] = end.blocks.size[there[still]]
    end_pending[uses.group[last[ends[still]]]] = (
        end.blocks.state[there[still]] == BlockState.PENDING
    )
    lost = np.setdiff1d(last_address[open_at_end], held_address[touched])
    clash = np.concatenate([lost, end.blocks.address[there[~still]]]).astype(np.int64)
    return held[~touched], end_size, end_pending, clash
