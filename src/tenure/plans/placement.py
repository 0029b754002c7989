"""What a plan is made of: buffers, their offsets, and what it says about streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine

if TYPE_CHECKING:
    from tenure.traces import Trace
    from tenure.traces.columns import Addresses, Ints

UNIT = 512  # bytes: the step of every size and offset, as in PyTorch


@dataclass(frozen=True, eq=False)
class Buffers:
    """The allocations of a trace as a plan sees them, by allocation number.

    A moment lies between two events: moment t comes after event t - 1 and before event t. A buffer
    is alive at every moment from `begin` on, and no longer at `end`.

    Attributes:
        begin: The moment after its alloc event; 0 for those alive before the recording.
        end: The moment after its free_completed event; after the last event if it has none.
        size: Bytes asked for, rounded up to 512.
        stream: Stream that it was made for.
    """

    begin: Ints
    end: Ints
    size: Ints
    stream: Addresses

    def __len__(self) -> int:
        """Number of buffers."""
        return len(self.begin)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Addresses]:
        """In the form that the engine takes."""
        return self.begin, self.end, self.size, self.stream


@dataclass(frozen=True)
class Streams:
    """What a plan asks of the streams.

    Attributes:
        count: Streams that have buffers.
        hand_overs: Pairs of buffers of different streams of which the later takes a byte that the
            earlier was the last to use. In the recording the earlier one's work was done by then;
            a run that follows the plan has to see to it with an event.
        apart: Whether the plan was made so that there are none.
    """

    count: int
    hand_overs: int
    apart: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """A fixed place for each allocation of a trace.

    Attributes:
        live_peak: Most bytes alive at one moment: the bound, no plan can be smaller.
        size: Bytes that the plan needs.
        buffers: What is placed.
        offsets: Bytes from the start of the plan's memory, for each buffer.
        checked: Whether the independent checker found it right.
        seconds: Time to make and check it; 0 for one that was loaded.
        streams: What it asks of the streams.
        device: The trace's device.
        events: Events of the trace.
    """

    live_peak: int
    size: int
    buffers: Buffers
    offsets: Ints
    checked: bool
    seconds: float
    streams: Streams
    device: int
    events: int

    @property
    def ratio(self) -> float:
        """Size over bound: 1.0 is as good as can be."""
        return self.size / self.live_peak if self.live_peak else 1.0


def buffers_of(trace: Trace) -> Buffers:
    """The buffers of a trace: all its allocations, those from before the recording included.

    Raises:
        BadInputError: An allocation ends before it begins, or its size cannot be.
    """
    allocations = trace.allocations
    stream = np.ascontiguousarray(allocations.stream, np.uint64)
    begin, end, size = _engine.plan_intervals(
        np.ascontiguousarray(allocations.born, np.int64),
        np.ascontiguousarray(allocations.done, np.int64),
        np.ascontiguousarray(allocations.requested, np.int64),
        stream,
        len(trace.events),
    )
    return Buffers(begin, end, size, stream)


def graph_buffers(trace: Trace) -> int:
    """How many allocations are in private pools, whose memory a graph uses again when replayed."""
    allocations = trace.allocations
    born = allocations.born[allocations.born >= 0]
    before = sum(len(segment.blocks) for segment in trace.start if segment.pool != 0)
    return before + int((trace.events.pool[born] != 0).sum())
