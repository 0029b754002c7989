"""A run of the engine's allocator that writes down what PyTorch's history would, event by event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine
from tenure.errors import OutOfMemoryError
from tenure.settings import AllocatorSettings, engine_settings
from tenure.traces import (
    Action,
    Blocks,
    BlockState,
    Events,
    Segments,
    Stacks,
    State,
    Trace,
    make_trace,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
Pool = tuple[int, int]
DEFAULT: Pool = (0, 0)
COUNTS = ("requested", "allocated", "active", "reserved")
KINDS = ("u1", "u8", "i8", "u8", "i8", "i4", "i4", "i4", "i8")  # the columns of Events
NONE = np.zeros(0, np.int32)
NO_STACKS = Stacks(np.zeros(1, np.int32), NONE, NONE, NONE, NONE, ())


@dataclass(frozen=True)
class Row:
    """One event, and the four byte counts after it."""

    action: int
    address: int
    size: int
    stream: int
    pool: int
    counts: tuple[int, int, int, int]


@dataclass
class Given:
    """A block in use or pending."""

    size: int
    requested: int
    stream: int
    pool: int
    live: bool = True


class Recorder:
    """Requests go to the engine; events come out as PyTorch would have recorded them.

    Attributes:
        settings: Under which it runs.
        rows: Events so far.
        pools: Ids seen; the first is the default one.
        given: Live and pending blocks by address.
    """

    def __init__(self, settings: AllocatorSettings, *, capacity: int = -1) -> None:
        self.settings = settings
        self._device = _engine.VirtualDevice(capacity)
        self._allocator = _engine.Allocator(engine_settings(settings), self._device)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._ranges: list[tuple[int, int, int, int, bool]] = []  # start, end, stream, pool, small
        self.rows: list[Row] = []
        self.pools: list[Pool] = [DEFAULT]
        self.given: dict[int, Given] = {}

    def allocate(self, size: int, stream: int = 0, pool: Pool = DEFAULT) -> int | None:
        """The address; None if there was no room."""
        if pool not in self.pools:
            self.pools.append(pool)
        number = self.pools.index(pool)
        rounded = _engine.round_size(engine_settings(self.settings), size)
        owner = (stream, number, rounded <= MIB)
        try:
            address = self._allocator.allocate(size, stream, pool)
        except OutOfMemoryError:
            self._settle(owner)
            self._write(Action.OOM, 0, rounded, stream, number)
            return None
        self._settle(owner)
        block = next(b for b in self._allocator.blocks() if b[1] == address)
        self.given[address] = Given(block[2], size, stream, number)
        self._count(requested=size, allocated=block[2], active=block[2])
        self._write(Action.ALLOC, address, size, stream, number)
        return address

    def free(self, address: int) -> None:
        """Requested at once; complete at once unless another stream still uses the block."""
        given = self.given[address]
        given.live = False
        self._allocator.free(address)
        self._count(allocated=-given.size)
        self._write(Action.FREE_REQUESTED, address, given.requested, given.stream, given.pool)
        self._settle(None)

    def record_stream(self, address: int, stream: int) -> None:
        """The block is in use on that stream too."""
        self._allocator.record_stream(address, stream)

    def finish(self, stream: int) -> None:
        """The work of a stream is done; noticed at the next request."""
        self._allocator.finish(stream)

    def empty_cache(self) -> None:
        """Everything cached goes back to the driver."""
        self._allocator.empty_cache()
        self._settle(None)

    def live(self) -> list[int]:
        """Addresses of live blocks, by age."""
        return [address for address, given in self.given.items() if given.live]

    def trace(
        self,
        first: int = 0,
        *,
        without: Sequence[int] = (),
        settings: AllocatorSettings | None = None,
    ) -> Trace:
        """What a recording that began after `first` events, and lacks some others, would hold.

        Args:
            first: Events lost at the beginning.
            without: Indices of events lost elsewhere, of all rows.
            settings: As the recording names them; default: all but the limit.
        """
        lost = set(without)
        rows = [row for i, row in enumerate(self.rows) if i >= first and i not in lost]
        columns = [
            [row.action for row in rows],
            [row.address for row in rows],
            [row.size for row in rows],
            [row.stream for row in rows],
            [1 + i for i in range(len(rows))],
            [-1] * len(rows),
            [row.pool if self.settings.torch_version >= (2, 12) else -1 for row in rows],
            [-1] * len(rows),
            [-1] * len(rows),
        ]
        return make_trace(
            Events(*(np.array(c, kind) for c, kind in zip(columns, KINDS, strict=True))),
            self.state(),
            device=0,
            pools=tuple(self.pools),
            stacks=NO_STACKS,
            annotations=(),
            settings=settings or replace(self.settings, limit=-1),
        )

    def peaks(self, first: int) -> dict[str, int]:
        """The most of each count from after the first so many events on."""
        before = [self.rows[first - 1].counts] if first else [(0, 0, 0, 0)]
        seen = before + [row.counts for row in self.rows[first:]]
        return {name: max(counts[i] for counts in seen) for i, name in enumerate(COUNTS)}

    def state(self) -> State:
        """The segments and blocks of now, as a snapshot lists them."""
        blocks = self._allocator.blocks()
        firsts = sorted({b[0] for b in blocks})
        sizes = [sum(b[2] for b in blocks if b[0] == first) for first in firsts]
        owners = [next(r for r in self._ranges if r[0] <= f < r[1]) for f in firsts]
        segments = Segments(
            np.array(firsts, np.uint64),
            np.array(sizes, np.int64),
            np.array([r[2] for r in owners], np.uint64),
            np.array([r[3] for r in owners], np.int32),
            np.array([r[4] for r in owners], bool),
            np.full(len(firsts), self.settings.expandable_segments),
            np.full(len(firsts), -1, np.int32),
        )
        return State(
            segments,
            Blocks(
                np.array([firsts.index(b[0]) for b in blocks], np.int64),
                np.array([b[1] for b in blocks], np.uint64),
                np.array([b[2] for b in blocks], np.int64),
                np.array([b[3] for b in blocks], np.int64),
                np.array([b[4] for b in blocks], np.uint8),
                np.full(len(blocks), -1, np.int32),
            ),
        )

    def _settle(self, owner: tuple[int, int, bool] | None) -> None:
        """Writes the completions and segment events that the last call caused."""
        waiting = {b[1] for b in self._allocator.blocks() if b[4] == BlockState.PENDING}
        for address in [a for a, g in self.given.items() if not g.live and a not in waiting]:
            given = self.given.pop(address)
            self._count(requested=-given.requested, active=-given.size)
            self._write(Action.FREE_COMPLETED, address, given.requested, given.stream, given.pool)
        for action, address, size in self._allocator.segment_events():
            if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                assert owner
                self._ranges.append((address, address + size, *owner))
                self._count(reserved=size)
                self._write(action, address, size, *owner[:2])
                continue
            stream, pool = self._returned(address, address + size)
            self._count(reserved=-size)
            self._write(action, address, size, stream, pool)

    def _returned(self, start: int, end: int) -> tuple[int, int]:
        """Takes the range out of those that the driver gave; whose it was: stream and pool."""
        kept, owner = [], (0, 0)
        for low, high, stream, pool, small in self._ranges:
            if high <= start or end <= low:
                kept.append((low, high, stream, pool, small))
                continue
            owner = (stream, pool)
            if low < start:
                kept.append((low, start, stream, pool, small))
            if end < high:
                kept.append((end, high, stream, pool, small))
        self._ranges = kept
        return owner

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self._counts[name] += change

    def _write(self, action: int, address: int, size: int, stream: int, pool: int) -> None:
        requested, allocated, active, reserved = (self._counts[name] for name in COUNTS)
        counts = (requested, allocated, active, reserved)
        self.rows.append(Row(int(action), address, size, stream, pool, counts))
