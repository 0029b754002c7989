"""The columns a trace is made of: numpy arrays of equal length."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Addresses = NDArray[np.uint64]
    Indices = NDArray[np.int32]
    Codes = NDArray[np.uint8]


class Action(IntEnum):
    """What an event did; the codes of engine/trace.hpp."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    ANNOTATE = 9
    OTHER = 10


class BlockState(IntEnum):
    """Whether a block is free, in use by a tensor, or freed but waiting for events."""

    CACHED = 0
    LIVE = 1
    PENDING = 2


@dataclass(frozen=True)
class Events:
    """What happened, in order.

    Attributes:
        action: Codes of `Action`.
        address: Start of the block or segment; of an out-of-memory: the device's free bytes.
        size: Bytes: requested ones of a block, whole ones of a segment, rounded ones of an
            out-of-memory.
        stream: Raw stream handle; 0 is the default stream.
        time_us: Microseconds since the epoch; 0 where not recorded.
        stack: Index into `Stacks`; -1 where none was kept.
        pool: Index into the trace's pools.
        metadata: Index into the strings: the user's text, -1 for none.
        allocation: Number of the allocation that the event belongs to; -1 for other events.
        forward: Stack of the forward op that an event of backward belongs to, -1 for none; None
            where the recording has none.
    """

    action: Codes
    address: Addresses
    size: Ints
    stream: Addresses
    time_us: Ints
    stack: Indices
    pool: Indices
    metadata: Indices
    allocation: Ints
    forward: Indices | None = None

    def __len__(self) -> int:
        """Number of events."""
        return len(self.action)


@dataclass(frozen=True)
class Segments:
    """Ranges that the driver gave; a mapped run of an arena counts as one (as in a snapshot).

    Attributes:
        address: First address.
        size: Bytes.
        stream: Stream that owns it.
        pool: Index into the trace's pools.
        small: True for the small half of the pool.
        arena: True for a mapped run of an expandable segment.
        stack: Index into `Stacks`; -1 for none.
    """

    address: Addresses
    size: Ints
    stream: Addresses
    pool: Indices
    small: NDArray[np.bool_]
    arena: NDArray[np.bool_]
    stack: Indices


@dataclass(frozen=True)
class Blocks:
    """Ranges inside segments.

    Attributes:
        segment: Index into `Segments`.
        address: First address.
        size: Bytes, rounding included.
        requested: Bytes asked for; stale where the block is cached.
        state: Codes of `BlockState`.
        stack: Index into `Stacks`; -1 for none.
    """

    segment: Ints
    address: Addresses
    size: Ints
    requested: Ints
    state: Codes
    stack: Indices


@dataclass(frozen=True)
class State:
    """All segments and blocks of one device at one moment."""

    segments: Segments
    blocks: Blocks


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    name: str


@dataclass(frozen=True)
class Stacks:
    """Distinct stacks, innermost frame first.

    Attributes:
        offset: Stack i holds frames offset[i] to offset[i + 1].
        frame: Index into the frame columns below.
        file: Of each distinct frame, an index into strings.
        line: Of each distinct frame.
        name: Of each distinct frame, an index into strings.
        strings: Each text once.
    """

    offset: Indices
    frame: Indices
    file: Indices
    line: Indices
    name: Indices
    strings: tuple[str, ...]

    def __len__(self) -> int:
        """Number of stacks."""
        return len(self.offset) - 1

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first; empty for -1."""
        if stack < 0:
            return ()
        chosen = self.frame[self.offset[stack] : self.offset[stack + 1]]
        return tuple(
            Frame(self.strings[self.file[i]], int(self.line[i]), self.strings[self.name[i]])
            for i in chosen
        )


@dataclass(frozen=True)
class Annotation:
    """A span named by record_function, such as one optimizer step.

    Attributes:
        name: As given.
        start_us: Microseconds since the epoch.
        end_us: The same; None if it had not ended.
    """

    name: str
    start_us: int
    end_us: int | None
