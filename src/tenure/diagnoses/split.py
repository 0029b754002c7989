"""The meanings of "reserved but unallocated", always taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces import BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.replays import Layout

GRANULE = {True: 2 << 20, False: 20 << 20}  # bytes of a chunk in small and large pools


@dataclass(frozen=True)
class Part:
    """Bytes of one meaning, in so many blocks."""

    bytes: int
    blocks: int


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
        stream: The stream that `whole` and `remainders` are of: the one with most reserved.
    """

    reserved: int
    live: Part
    pending: Part
    whole: Part
    remainders: Part
    other_streams: Part
    private: Part
    stream: int

    @property
    def cached(self) -> int:
        """All that is neither live nor pending."""
        return self.reserved - self.live.bytes - self.pending.bytes


def split_reserved(layout: Layout) -> Split:
    """Takes the reserved bytes of a layout apart."""
    state, size = layout.state, layout.size
    stream = _main_stream(layout)
    cached = state == BlockState.CACHED
    private = (layout.pool_capture != 0) | (layout.pool_user != 0)
    elsewhere = (layout.stream != stream) & ~private
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
        stream=stream,
    )


def returnable_bytes(layout: Layout) -> NDArray[np.int64]:
    """For each block, bytes that empty_cache() would give back; 0 unless it is cached."""
    alone = ~_has_neighbour(layout)
    cached = layout.state == BlockState.CACHED
    plain = np.where(cached & alone, layout.size, 0)
    granule = np.where(layout.small != 0, GRANULE[True], GRANULE[False]).astype(np.int64)
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
    return int(streams[np.argmax(np.bincount(index, weights=layout.size))])


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
