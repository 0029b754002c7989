"""The meanings of "reserved but unallocated", always taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces import BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.replays import Layout

SMALL_CHUNK = 2 << 20  # bytes, in small pools


@dataclass(frozen=True)
class Part:
    """Bytes of one meaning, in so many blocks."""

    bytes: int
    blocks: int


@dataclass(frozen=True)
class PoolShare:
    """What one pool of one stream holds, in bytes; the parts add up to reserved.

    Attributes:
        stream: Stream that owns it.
        pool: PyTorch's id of the private pool; (0, 0) for the default one.
        reserved: All of it.
        live: In use by tensors.
        pending: Freed, but waiting for events of other streams.
        whole: Cached, and returnable: whole segments, or whole chunks of arenas.
        pinned: Cached beside live or pending blocks.
    """

    stream: int
    pool: tuple[int, int]
    reserved: int
    live: int
    pending: int
    whole: int
    pinned: int


@dataclass(frozen=True)
class Split:
    """Reserved bytes at one moment by what they are; the parts add up to reserved.

    Attributes:
        reserved: All of it.
        live: In use by tensors.
        pending: Freed, but waiting for events of other streams.
        whole: Cached, and returnable to the driver: whole segments, or whole chunks of arenas.
        remainders: Cached beside a live or pending block of the same segment: pinned.
        other_streams: Cached in streams other than `stream`.
        private: Cached in the private pools of graphs and MemPools.
        stream: The stream that `whole` and `remainders` are of: the one with most live bytes.
        pools: The same bytes by stream and pool, most reserved first.
    """

    reserved: int
    live: Part
    pending: Part
    whole: Part
    remainders: Part
    other_streams: Part
    private: Part
    stream: int
    pools: tuple[PoolShare, ...]

    @property
    def cached(self) -> int:
        """All that is neither live nor pending."""
        return self.reserved - self.live.bytes - self.pending.bytes

    @property
    def unused(self) -> int:
        """All that is not live."""
        return self.reserved - self.live.bytes


def split_reserved(layout: Layout, stream: int | None = None) -> Split:
    """Takes the reserved bytes of a layout apart.

    Args:
        layout: What was where.
        stream: Whose own cached bytes are told apart from those of the others; default: the one
            with most live.
    """
    state, size = layout.state, layout.size
    main = _main_stream(layout) if stream is None else stream
    cached = state == BlockState.CACHED
    private = is_private(layout)
    elsewhere = (layout.stream != main) & ~private
    here = cached & ~private & ~elsewhere
    returnable = returnable_bytes(layout)
    pinned = np.where(here, size - returnable, 0)
    whole = np.where(here, returnable, 0)

    def part(chosen: NDArray[np.bool_]) -> Part:
        return Part(int(size[chosen].sum()), int(chosen.sum()))

    return Split(
        reserved=int(size.sum()),
        live=part(state == BlockState.LIVE),
        pending=part(state == BlockState.PENDING),
        whole=Part(int(whole.sum()), int((whole > 0).sum())),
        remainders=Part(int(pinned.sum()), int((pinned > 0).sum())),
        other_streams=part(cached & elsewhere),
        private=part(cached & private),
        stream=main,
        pools=_by_pool(layout, returnable),
    )


def is_private(layout: Layout) -> NDArray[np.bool_]:
    """Which blocks lie in private pools."""
    return np.asarray((layout.pool_capture != 0) | (layout.pool_user != 0))


def _by_pool(layout: Layout, returnable: NDArray[np.int64]) -> tuple[PoolShare, ...]:
    keys = np.stack([layout.stream, layout.pool_capture, layout.pool_user], axis=1)
    owners, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.reshape(-1)

    def total(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(index, weights=values, minlength=len(owners)).astype(np.int64)

    size, state = layout.size, layout.state
    cached = state == BlockState.CACHED
    columns = (
        total(size),
        total(np.where(state == BlockState.LIVE, size, 0)),
        total(np.where(state == BlockState.PENDING, size, 0)),
        total(np.where(cached, returnable, 0)),
        total(np.where(cached, size - returnable, 0)),
    )
    shares = [
        PoolShare(int(stream), (int(capture), int(user)), *(int(c[i]) for c in columns))
        for i, (stream, capture, user) in enumerate(owners.tolist())
    ]
    return tuple(sorted(shares, key=lambda s: -s.reserved))


def returnable_bytes(layout: Layout) -> NDArray[np.int64]:
    """For each block, bytes that empty_cache() would give back; 0 unless it is cached."""
    alone = ~_has_neighbour(layout)
    cached = layout.state == BlockState.CACHED
    plain = np.where(cached & alone, layout.size, 0)
    granule = np.where(layout.small != 0, SMALL_CHUNK, layout.chunk).astype(np.int64)
    # Chunks of an arena are counted from its run: runs begin at a chunk's edge.
    begin = (layout.address - layout.segment).astype(np.int64)
    inner = (begin + layout.size) // granule * granule - -(-begin // granule) * granule
    in_arena = np.where(cached, np.maximum(inner, 0), 0)
    return np.asarray(np.where(layout.in_arena != 0, in_arena, plain))


def _has_neighbour(layout: Layout) -> NDArray[np.bool_]:
    same = layout.segment[1:] == layout.segment[:-1]
    result = np.zeros(len(layout.segment), bool)
    result[1:] |= same
    result[:-1] |= same
    return result


def _main_stream(layout: Layout) -> int:
    streams, index = np.unique(layout.stream, return_inverse=True)
    if not len(streams):
        return 0
    live = np.bincount(index, weights=np.where(layout.state == BlockState.LIVE, layout.size, 0))
    held = np.bincount(index, weights=layout.size)
    return int(streams[np.lexsort((held, live))[-1]])


@dataclass(frozen=True)
class Pin:
    """A live block that keeps cached bytes from being returned.

    Attributes:
        row: Its index in the layout.
        pinned: Cached bytes of its segment, shared among the segment's live blocks.
    """

    row: int
    pinned: int


def pins(layout: Layout) -> tuple[Pin, ...]:
    """Who pins the remainders: live or pending blocks next to cached bytes, most pinned first."""
    kept = np.where(layout.state == BlockState.CACHED, layout.size - returnable_bytes(layout), 0)
    pinned: dict[int, int] = {}
    for row in np.flatnonzero(kept > 0).tolist():
        beside = [
            other
            for other in (row - 1, row + 1)
            if 0 <= other < len(kept)
            and layout.segment[other] == layout.segment[row]
            and layout.state[other] != BlockState.CACHED
        ]
        for other in beside:
            pinned[other] = pinned.get(other, 0) + int(kept[row]) // len(beside)
    order = sorted(pinned.items(), key=lambda item: -item[1])
    return tuple(Pin(row, size) for row, size in order)


@dataclass(frozen=True)
class Holes:
    """Cached bytes that live neighbours pin, by how they came about.

    A segment with one such piece was split once and the rest fits nothing: a remainder. With
    several, live and free blocks take turns in it: holes. In arenas all are holes.

    Attributes:
        holes: Bytes in segments with several pieces, and in arenas.
        pieces: How many pieces those are.
        remainders: Bytes in segments with a single piece.
        largest: The largest hole.
        largest_remainder: The largest remainder.
        segments: Segments concerned.
    """

    holes: int
    pieces: int
    remainders: int
    largest: int
    largest_remainder: int
    segments: int

    @property
    def total(self) -> int:
        """All pinned bytes."""
        return self.holes + self.remainders


def find_holes(layout: Layout, stream: int) -> Holes:
    """The pinned bytes of one stream's default pools, told apart."""
    mine = (layout.stream == stream) & ~is_private(layout)
    kept = layout.size - returnable_bytes(layout)
    rows = np.flatnonzero(mine & (layout.state == BlockState.CACHED) & (kept > 0))
    segments, member, count = np.unique(
        layout.segment[rows], return_inverse=True, return_counts=True
    )
    several = (count[member] > 1) | (layout.in_arena[rows] != 0)
    bytes_of = kept[rows]
    return Holes(
        holes=int(bytes_of[several].sum()),
        pieces=int(several.sum()),
        remainders=int(bytes_of[~several].sum()),
        largest=int(layout.size[rows][several].max(initial=0)),
        largest_remainder=int(layout.size[rows][~several].max(initial=0)),
        segments=len(segments),
    )
