"""Every allocated byte of a GPU under one heading: blocks of the allocator met with holders.

PyTorch's history says which blocks were live at a moment; the look at that moment says what held
each storage. A block that no storage lies in is named by what is known of it otherwise, and what
rounding adds has its own heading, so that the rows add up to allocated bytes exactly.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes import ORDER, Category, Sites, categorise, find_rounds, find_steps
from tenure.replays import state_at
from tenure.traces import BlockState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from tenure.lifetimes.holders import Holder
    from tenure.replays import Layout
    from tenure.traces import Trace

ROUNDING = "rounding of the allocator"
WORKSPACE = "cuBLAS workspaces"
GRAPHS = "CUDA graph pools"
ELSEWHERE = "other processes"
UNKNOWN = "unknown"
# What the trace says of a block that no variable leads to.
OF_CATEGORY = {
    Category.WORKSPACE: WORKSPACE,
    Category.BACKWARD: "backward, under way",
    Category.GRADIENTS: "backward, under way",
    Category.ACTIVATIONS: "activations, held from C++",
}


@dataclass(frozen=True)
class Row:
    """Allocated bytes under one heading.

    Attributes:
        heading: Why they are live.
        bytes: Their sum.
        blocks: How many blocks; 0 for rounding.
        chain: What holds the largest of them.
    """

    heading: str
    bytes: int
    blocks: int
    chain: str


@dataclass(frozen=True)
class Attribution:
    """One moment's allocated bytes, each under one heading.

    Attributes:
        device: Index of the GPU.
        event: The first event after that moment.
        allocated: Bytes of live blocks; the rows add up to it.
        pending: Bytes freed but waiting for another stream, which come on top.
        rows: Most bytes first.
    """

    device: int
    event: int
    allocated: int
    pending: int
    rows: tuple[Row, ...]

    @property
    def known(self) -> float:
        """Part of the allocated bytes that is not called unknown."""
        lost = sum(row.bytes for row in self.rows if row.heading == UNKNOWN)
        return 1 - lost / self.allocated if self.allocated else 1.0


def event_at(trace: Trace, moment: float) -> int:
    """How many events had happened at a moment (Unix time)."""
    times = trace.events.time_us
    if not len(times) or not times.any():
        return len(times)
    return int(np.searchsorted(times, int(moment * 1e6), "right"))


def attribute(
    trace: Trace, event: int, holders: Iterable[Holder], shared: Mapping[int, str] | None = None
) -> Attribution:
    """Puts every byte that was allocated after so many events under one heading.

    Args:
        trace: Of one device.
        event: How many events had happened.
        holders: What held each storage then.
        shared: Address -> who, for what other processes alone hold.
    """
    layout = state_at(trace, event)
    live = np.flatnonzero(layout.state == BlockState.LIVE)
    pending = int(layout.size[layout.state == BlockState.PENDING].sum())
    found = _Rows(trace, layout, live, shared or {})
    found.hold(holders)
    found.name_the_rest()
    allocated = int(layout.size[live].sum())
    return Attribution(trace.device, event, allocated, pending, found.rows())


class _Rows:
    def __init__(
        self, trace: Trace, layout: Layout, live: NDArray[np.int64], shared: Mapping[int, str]
    ) -> None:
        self.trace, self.layout, self.shared = trace, layout, shared
        number = layout.allocation[live]
        # As recorded: a replay that cannot be exact may have put a block elsewhere.
        recorded = trace.allocations.address
        where = layout.address[live].astype(np.uint64)
        where[number >= 0] = recorded[number[number >= 0]]
        order = np.argsort(where, kind="stable")
        self.live = live[order]
        self.starts = where[order]
        self.held = np.zeros(len(self.live), bool)
        self.sizes: dict[str, int] = defaultdict(int)
        self.counts: dict[str, int] = defaultdict(int)
        self.largest: dict[str, tuple[int, str]] = {}

    def add(self, heading: str, size: int, chain: str) -> None:
        self.sizes[heading] += size
        self.counts[heading] += 1
        if size > self.largest.get(heading, (-1, ""))[0]:
            self.largest[heading] = (size, chain)

    def hold(self, holders: Iterable[Holder]) -> None:
        """Blocks in which a storage lies; of two in one block the larger counts."""
        for holder in sorted(holders, key=lambda h: -h.bytes):
            if not holder.address or not len(self.starts):
                continue
            place = int(np.searchsorted(self.starts, np.uint64(holder.address), "right")) - 1
            if place < 0 or self.held[place]:
                continue
            row = self.live[place]
            if holder.address >= int(self.starts[place]) + int(self.layout.size[row]):
                continue  # memory that another allocator gave
            if holder.heading.value == UNKNOWN:
                continue  # the trace may know more
            self.held[place] = True
            self.add(holder.heading.value, self._requested(row), holder.chain)

    def name_the_rest(self) -> None:
        """Blocks without a tensor of ours, and the rounding of all."""
        rest = np.flatnonzero(~self.held)
        if len(rest):
            category = categories_of(self.trace)
            sites = Sites(self.trace)
            for place in rest:
                row = self.live[place]
                number = int(self.layout.allocation[row])
                kind = ORDER[int(category[number])] if number >= 0 else Category.UNKNOWN
                label = sites.table[int(sites.of_allocation[number])].label if number >= 0 else ""
                self.add(*self._heading(row, kind, label, int(self.starts[place])))
        rounding = sum(int(self.layout.size[row]) - self._requested(row) for row in self.live)
        if rounding:
            self.sizes[ROUNDING] = rounding
            self.largest[ROUNDING] = (rounding, "each block is a multiple of 512 bytes or larger")

    def _heading(
        self, row: np.int64, kind: Category, label: str, address: int
    ) -> tuple[str, int, str]:
        size = self._requested(row)
        made = f"made at {label}" if label else "made before the recording began"
        if address in self.shared:
            return ELSEWHERE, size, self.shared[address]
        if kind is Category.WORKSPACE:
            stream = int(self.layout.stream[row])
            text = f"of a handle on stream {stream:#x}" if stream else "of a handle"
            return WORKSPACE, size, f"{text}; kept for the life of the process"
        if self.layout.pool_capture[row] or self.layout.pool_user[row]:
            pool = (int(self.layout.pool_capture[row]), int(self.layout.pool_user[row]))
            return GRAPHS, size, f"pool {pool}; {made}"
        return OF_CATEGORY.get(kind, UNKNOWN), size, f"no variable leads to it; {made}"

    def _requested(self, row: np.int64) -> int:
        """Bytes asked for; the whole block where that is not known."""
        size, asked = int(self.layout.size[row]), int(self.layout.requested[row])
        return asked if 0 < asked <= size else size

    def rows(self) -> tuple[Row, ...]:
        """The table, most bytes first."""
        found = [
            Row(heading, size, self.counts.get(heading, 0), self.largest[heading][1])
            for heading, size in self.sizes.items()
            if size
        ]
        return tuple(sorted(found, key=lambda row: -row.bytes))


def categories_of(trace: Trace) -> NDArray[np.int64]:
    """For each allocation what it is for, as far as stacks, steps and lifetimes tell."""
    steps = find_steps(trace)
    return categorise(trace, steps, find_rounds(trace, steps))
