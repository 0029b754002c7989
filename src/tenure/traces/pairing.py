"""Which events belong to the same allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.columns import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces.columns import Addresses, Codes, Indices, Ints, State


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


def pair(
    action: Codes, address: Addresses, size: Ints, stream: Addresses, stack: Indices, end: State
) -> Pairing:
    """Numbers the allocations of a trace.

    Args:
        action: Event codes.
        address: Event addresses.
        size: Event sizes in bytes.
        stream: Event streams.
        stack: Event stacks.
        end: The state after the last event.

    Returns:
        The number of each event's allocation, and the table of allocations.
    """
    events = np.flatnonzero(action <= Action.FREE_COMPLETED)
    order = events[np.argsort(address[events], kind="stable")]  # by address, then by time
    kind, place = action[order], address[order]
    first_there = np.ones(len(order), bool)
    first_there[1:] = place[1:] != place[:-1]
    begins = first_there | (kind == Action.ALLOC)
    group = np.cumsum(begins) - 1  # numbered by address for now
    heads = order[begins]  # the first event of each
    born_there = action[heads] == Action.ALLOC

    untouched, end_size, end_pending, clash = _match_end(group, order, begins, kind, address, end)
    blocks = end.blocks
    old = np.flatnonzero(~born_there)
    old_address = np.concatenate([address[heads[old]], blocks.address[untouched]])
    old_order = np.argsort(old_address, kind="stable")
    new = np.flatnonzero(born_there)
    new_order = new[np.argsort(heads[new], kind="stable")]
    number = np.empty(len(heads) + len(untouched), np.int64)
    number[np.concatenate([old, len(heads) + np.arange(len(untouched))])[old_order]] = np.arange(
        len(old_order)
    )
    number[new_order] = len(old_order) + np.arange(len(new_order))

    def scatter(values: NDArray[np.generic], rest: NDArray[np.generic]) -> NDArray[np.generic]:
        result = np.empty(len(number), values.dtype)
        result[number] = np.concatenate([values, rest])
        return result

    allocation = np.full(len(action), -1, np.int64)
    allocation[order] = number[group]
    born = np.full(len(number), -1, np.int64)
    freed, done = born.copy(), born.copy()
    for column, code in (
        (born, Action.ALLOC),
        (freed, Action.FREE_REQUESTED),
        (done, Action.FREE_COMPLETED),
    ):
        chosen = np.flatnonzero(action == code)
        column[allocation[chosen]] = chosen
    pending = (done >= 0) & (freed < 0) & (born < 0)
    pending |= (freed < 0) & (born < 0) & scatter(end_pending, blocks.state[untouched] == 2)
    table = Allocations(
        before=len(old_order),
        address=scatter(address[heads], blocks.address[untouched]),
        requested=scatter(size[heads], blocks.requested[untouched]),
        stream=scatter(stream[heads], end.segments.stream[blocks.segment[untouched]]),
        born=born,
        freed=freed,
        done=done,
        stack=scatter(
            np.where(born_there, stack[heads], -1).astype(np.int32), blocks.stack[untouched]
        ),
        size=scatter(end_size, blocks.size[untouched]),
        pending_before=pending,
    )
    return Pairing(allocation, table, clash)


def _match_end(
    group: Ints, order: Ints, begins: NDArray[np.bool_], kind: Codes, address: Addresses, end: State
) -> tuple[Ints, Ints, NDArray[np.bool_], Ints]:
    """Links the last allocation at each address with the block that the end state has there.

    Returns:
        Live or pending blocks of the end state that no event touches; for each group the size of
        its block at the end (-1 if gone); whether it is pending there; contradicting addresses.
    """
    groups = int(begins.sum())
    end_size = np.full(groups, -1, np.int64)
    end_pending = np.zeros(groups, bool)
    held = np.flatnonzero(end.blocks.state != BlockState.CACHED)
    held = held[np.argsort(end.blocks.address[held], kind="stable")]
    held_address = end.blocks.address[held]
    if groups == 0:
        return held, end_size, end_pending, np.empty(0, np.int64)
    last = np.flatnonzero(np.append(order[1:] * 0 + (address[order][1:] != address[order][:-1]), 1))
    open_at_end = kind[last] != Action.FREE_COMPLETED
    last_address = address[order[last]]
    at = np.searchsorted(last_address, held_address)
    inside = at < len(last_address)
    touched = np.zeros(len(held), bool)
    touched[inside] = last_address[at[inside]] == held_address[inside]
    ends = at[touched]
    still = open_at_end[ends]
    there = held[touched]
    end_size[group[last[ends[still]]]] = end.blocks.size[there[still]]
    end_pending[group[last[ends[still]]]] = end.blocks.state[there[still]] == BlockState.PENDING
    lost = np.setdiff1d(last_address[open_at_end], held_address[touched])
    clash = np.concatenate([lost, end.blocks.address[there[~still]]]).astype(np.int64)
    return held[~touched], end_size, end_pending, clash
