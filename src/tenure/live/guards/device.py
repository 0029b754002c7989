"""Streams, events and memory of the device, as torch offers them: a card, or a virtual one."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

from tenure.streams import StreamId

if TYPE_CHECKING:
    from collections.abc import Callable

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class Device:
    """What the guard asks of CUDA.

    Attributes:
        real: Whether a card does the work; else no time passes, and events are always done.
        new_stream: Called with each stream when it is first met.
    """

    def __init__(self, new_stream: Callable[[StreamId, bool], None] = lambda *_: None) -> None:
        self._torch: Any = sys.modules["torch"]
        self._raw: Any = None
        self.real = self._torch.cuda.Stream.__module__ == "torch.cuda.streams"
        if self.real:
            self._raw = getattr(self._torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
        self.new_stream = new_stream
        self._streams: dict[StreamId, Any] = {}
        # Taken before they are replaced: what the guard does is no doing of the program's.
        kind = self._torch.cuda.Event
        self._record, self._wait, self._query = kind.record, kind.wait, kind.query
        self._synchronize = kind.synchronize

    def current(self, device: int) -> StreamId:
        """The stream on which this thread's next work runs."""
        if self._raw is not None:
            stream = StreamId(device, self._raw(device))
        else:
            stream = StreamId(device, int(self._torch.cuda.current_stream(device).cuda_stream))
        if stream not in self._streams:
            self.meet(stream, self._torch.cuda.current_stream(device))
        return stream

    def meet(self, stream: StreamId, known: Any) -> None:
        """Keeps the object of a stream that is new."""
        if stream in self._streams:
            return
        self._streams[stream] = known
        self.new_stream(stream, self._orders_itself(stream))

    def stream(self, which: StreamId) -> Any:
        """The object of a stream."""
        known = self._streams.get(which)
        if known is None:
            cuda = self._torch.cuda
            if which.handle == 0:
                known = cuda.default_stream(which.device)
            else:
                known = cuda.ExternalStream(which.handle, device=which.device)
            self._streams[which] = known
        return known

    def id_of(self, stream: Any) -> StreamId:
        """What a stream object names: torch.cuda.Stream, or the general torch.Stream."""
        handle = getattr(stream, "cuda_stream", None)
        index = getattr(stream.device, "index", None) or 0
        if handle is None:
            stream = self._torch.cuda.Stream(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            )
            handle = stream.cuda_stream
        found = StreamId(index, int(handle))
        self.meet(found, stream)
        return found

    def current_device(self) -> int:
        """This thread's."""
        return int(self._torch.cuda.current_device())

    def event(self, stream: StreamId) -> Any:
        """A new event, recorded on a stream."""
        event = self._torch.cuda.Event()
        self._record(event, self.stream(stream))
        return event

    def wait(self, stream: StreamId, event: Any) -> None:
        """Lets a stream wait for an event; the host goes on."""
        self._wait(event, self.stream(stream))

    def host_wait(self, event: Any) -> None:
        """Lets the host wait for an event."""
        self._synchronize(event)

    def done(self, event: Any) -> bool:
        """Whether an event has been reached."""
        return bool(self._query(event))

    def capturing(self) -> bool:
        """Whether this thread's work goes into a graph instead of running."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def address(self, storage: Any) -> int:
        """Where a storage lies; 0 if it cannot be told."""
        if not self.real:
            return 0
        try:
            return int(storage.data_ptr())
        except RuntimeError:
            return 0

    def _orders_itself(self, stream: StreamId) -> bool:
        """Whether a stream and the default one wait for each other by themselves."""
        if not self.real or stream.handle == 0:
            return False
        flags = ctypes.c_uint(_NON_BLOCKING)
        try:
            library = ctypes.CDLL("libcuda.so.1")
            library.cuStreamGetFlags(ctypes.c_void_p(stream.handle), ctypes.byref(flags))
        except (OSError, AttributeError):  # not there: PyTorch's own streams never do
            return False
        return not flags.value & _NON_BLOCKING
