"""What a replay found, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from tenure.replays.feeding import Call
    from tenure.settings import AllocatorSettings
    from tenure.traces import Trace


@dataclass(frozen=True)
class ByteCounts:
    """The four counts at one moment, in bytes.

    Attributes:
        requested: Sum of what was asked for, of live and pending blocks.
        allocated: Of live blocks, rounding included.
        active: Of live and pending blocks.
        reserved: Of what the driver gave.
    """

    requested: int
    allocated: int
    active: int
    reserved: int

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {
            "requested": self.requested,
            "allocated": self.allocated,
            "active": self.active,
            "reserved": self.reserved,
        }


@dataclass(frozen=True)
class Divergence:
    """The first event at which the rules and the record part.

    Attributes:
        event: Its index.
        what: What differs.
    """

    event: int
    what: str


@dataclass(frozen=True)
class OutOfMemory:
    """The first request that could not be served.

    Attributes:
        event: Index of the event.
        requested: Bytes asked for (of a recorded out-of-memory: after rounding).
        segment: Bytes of the segment that was refused.
        stream: Of the request.
        reserved: Bytes reserved when it failed.
        pending_would_fit: A block that fits was waiting for an event: a second try would have been
            served (pytorch#189504).
    """

    event: int
    requested: int
    segment: int
    stream: int
    reserved: int
    pending_would_fit: bool


@dataclass(frozen=True)
class Layout:
    """Blocks in the engine's memory, by ascending address; columns of equal length.

    Attributes:
        segment: First address of the block's segment, or of its mapped run in an arena.
        address: First address.
        size: Bytes.
        requested: Bytes; stale where cached.
        state: 0 cached, 1 live, 2 pending.
        small: 1 in small pools.
        in_arena: 1 in expandable segments.
        stream: Of the segment.
        allocation: Number of the trace's allocation that the block serves, or served last; -1.
        pool_capture: First part of the pool's id.
        pool_user: Second part.
        chunk: Bytes of a chunk in the arenas of large pools; one number, not a column.
    """

    segment: NDArray[np.uint64]
    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    state: NDArray[np.uint8]
    small: NDArray[np.uint8]
    in_arena: NDArray[np.uint8]
    stream: NDArray[np.uint64]
    allocation: NDArray[np.int64]
    pool_capture: NDArray[np.uint64]
    pool_user: NDArray[np.uint64]
    chunk: int


@dataclass(frozen=True)
class Timeline:
    """The four byte counts after each event."""

    requested: NDArray[np.int64]
    allocated: NDArray[np.int64]
    active: NDArray[np.int64]
    reserved: NDArray[np.int64]


@dataclass(frozen=True)
class Replay:
    """A trace that went through the engine.

    Attributes:
        trace: What was replayed.
        settings: Under which settings; the capacity is their `limit`.
        compared: Whether it ran under the recorded settings and was held against the record.
        address_mismatches: Requests that landed elsewhere than recorded; None if not compared.
        segment_mismatches: Segment events that differ from the record; None if not compared.
        end_state_mismatches: Blocks that differ at the end; None if not compared.
        divergence: The first difference; None if there is none.
        peak: The most of each count; they need not be of one moment.
        peak_event: The event that first reached each peak; -1: before the first event.
        end: The counts after the last event.
        spread: Least and most peak reserved over the placements tried; both equal `peak.reserved`
            unless the addresses of segments had to be guessed and matter.
        statistics: Every counter of torch.cuda.memory_stats().
        first_oom: The first request not served; None if all were.
        chunk_moves: Chunks taken from free memory for a request; 0 under torch rules.
        stall_seconds: Estimated time in driver calls after each chunk's first mapping, without
            waits; None under torch rules, which are not charged here.
        recorded_reserved: Peak reserved bytes as the record's own segment events give them; None if
            not compared.
        elastic: Every counter of elastic rules; all zero under torch rules.
        retries: Events whose request made the allocator return its whole cache first.
        calls: empty_cache() and the like, inferred from the releases they caused.
        limit_range: Where the record itself shows refusals: the limit was at least the first and
            below the second number of bytes; None if nothing was refused.
        blocks: What was where at the end of the replay.
        timeline: If asked for.
        seconds: Time in the engine.
    """

    trace: Trace
    settings: AllocatorSettings
    compared: bool
    address_mismatches: int | None
    segment_mismatches: int | None
    end_state_mismatches: int | None
    divergence: Divergence | None
    peak: ByteCounts
    peak_event: ByteCounts
    end: ByteCounts
    spread: tuple[int, int]
    statistics: Mapping[str, int]
    first_oom: OutOfMemory | None
    chunk_moves: int
    stall_seconds: float | None
    recorded_reserved: int | None
    elastic: Mapping[str, float]
    retries: tuple[int, ...]
    calls: tuple[Call, ...]
    limit_range: tuple[int, int] | None
    blocks: Layout
    timeline: Timeline | None
    seconds: float

    @property
    def exact(self) -> bool:
        """Compared with the record, and equal to it in every address, segment and end block."""
        return self.compared and not (
            self.address_mismatches or self.segment_mismatches or self.end_state_mismatches
        )


def byte_counts(plain: Mapping[str, Any], name: str) -> ByteCounts:
    """The engine's four peaks; `name` is "bytes" or "event"."""
    return ByteCounts(
        *(plain[key][name] for key in ("requested", "allocated", "active", "reserved"))
    )
