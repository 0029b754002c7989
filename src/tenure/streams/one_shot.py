"""Streams that were used for a while and keep the memory they had: their pools serve no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.streams.clocks import StreamId

LEAST_REQUESTS = 64  # in all, before which nothing is said of "the last half"
LEAST_BYTES = 16 << 20


@dataclass(slots=True)
class StreamMemory:
    """What one stream asked for, in bytes.

    Attributes:
        live: Live now.
        peak: Most that was live since the cache was last emptied: its pool is at least that large.
        last: The number of its last request among those of all streams.
    """

    live: int = 0
    peak: int = 0
    last: int = 0


class StreamMemories:
    """Requests by stream."""

    def __init__(self) -> None:
        self.requests = 0
        self._of: dict[StreamId, StreamMemory] = {}

    def born(self, owner: StreamId, size: int) -> None:
        """A stream asked for memory."""
        self.requests += 1
        memory = self._of.setdefault(owner, StreamMemory())
        memory.live += size
        memory.peak = max(memory.peak, memory.live)
        memory.last = self.requests

    def died(self, owner: StreamId, size: int) -> None:
        """Memory of a stream was freed."""
        memory = self._of.get(owner)
        if memory is not None:
            memory.live = max(memory.live - size, 0)

    def emptied(self) -> None:
        """Cached memory went back to the driver."""
        for memory in self._of.values():
            memory.peak = memory.live

    def stranded(self) -> dict[StreamId, int]:
        """Bytes that side streams without a request in the last half keep free, at least."""
        if self.requests < LEAST_REQUESTS:
            return {}
        return {
            stream: memory.peak - memory.live
            for stream, memory in self._of.items()
            if stream.handle and memory.last * 2 < self.requests
            if memory.peak - memory.live >= LEAST_BYTES
        }
