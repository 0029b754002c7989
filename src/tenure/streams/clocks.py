"""What each stream, and the host, is known to come after: one vector clock for each.

Work is numbered on its stream. A stream's clock says, for every stream, up to which number work is
done before what is launched on it next; the host's clock, what is done before its next action.
Threads are one host: an order that was seen between them is taken to be intended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class StreamId(NamedTuple):
    """A stream: its device and its raw handle; 0 is the default stream, the legacy one."""

    device: int
    handle: int


Stamp = Mapping[StreamId, int]  # what an event comes after


class Clocks:
    """Order between streams and the host.

    Attributes:
        blocking: Streams that the device orders with its default stream by itself. PyTorch's own
            are not of this kind.
    """

    def __init__(self) -> None:
        self.blocking: set[StreamId] = set()
        self._streams: dict[StreamId, dict[StreamId, int]] = {}
        self._host: dict[StreamId, int] = {}
        self._host_changes = 0
        self._taken: dict[StreamId, int] = {}  # changes of the host's clock that a stream's has

    @property
    def streams(self) -> tuple[StreamId, ...]:
        """Those that have had work, or waited for some."""
        return tuple(self._streams)

    def launched(self, stream: StreamId) -> int:
        """How much work a stream has had."""
        return self._streams.get(stream, {}).get(stream, 0)

    def known_done(self, stream: StreamId) -> int:
        """Up to which number the host knows a stream's work to be done."""
        return self._host.get(stream, 0)

    def launch(self, stream: StreamId) -> int:
        """The number of new work on a stream."""
        clock = self._current(stream)
        clock[stream] = number = clock.get(stream, 0) + 1
        return number

    def before(self, earlier: StreamId, number: int, stream: StreamId) -> bool:
        """Whether work of one stream is done before what another is given next."""
        return self._current(stream).get(earlier, 0) >= number

    def record(self, stream: StreamId) -> Stamp:
        """An event recorded now on a stream."""
        return dict(self._current(stream))

    def wait(self, stream: StreamId, stamp: Stamp) -> None:
        """A stream waits for an event."""
        _join(self._current(stream), stamp)

    def host_waits(self, stamp: Stamp) -> None:
        """The host waited for an event, or saw that it was done."""
        if _join(self._host, stamp):
            self._host_changes += 1

    def host_waits_for_stream(self, stream: StreamId) -> None:
        """The host waited for all work of a stream."""
        self.host_waits(self._current(stream))

    def host_waits_for_device(self, device: int) -> None:
        """The host waited for all work of a device."""
        for stream in self.streams:
            if stream.device == device:
                self.host_waits(self._streams[stream])

    def _current(self, stream: StreamId) -> dict[StreamId, int]:
        """A stream's clock, with all that holds by itself."""
        clock = self._streams.setdefault(stream, {})
        if self._taken.get(stream, 0) != self._host_changes:
            _join(clock, self._host)
            self._taken[stream] = self._host_changes
        if self.blocking:
            self._order_with_default(stream, clock)
        return clock

    def _order_with_default(self, stream: StreamId, clock: dict[StreamId, int]) -> None:
        if stream.handle == 0:
            others = [s for s in self.blocking if s.device == stream.device]
        elif stream in self.blocking:
            others = [StreamId(stream.device, 0)]
        else:
            return
        for other in others:
            _join(clock, self._streams.get(other, {}))


def _join(clock: dict[StreamId, int], other: Stamp) -> bool:
    """Takes the later of both; whether that changed anything."""
    changed = False
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
            changed = True
    return changed
