"""Calls that order streams: replaced while a guard is on, and heard of from within PyTorch.

On a card PyTorch itself tells of every event, wait and synchronisation in its C++ code (the hooks
its own sanitizer uses), so that autograd, NCCL and blocking copies are heard too. On a virtual card
only the Python classes exist, and what is called on them is all there is.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from tenure.patches import Patches
from tenure.streams import StreamId

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.live.guards.recorder import Recorder

_STAMP = "_tenure_stamp"  # attribute of an event: what it comes after


class Calls:
    """The replaced calls of one guard.

    Attributes:
        hears_all: Whether PyTorch's C++ code tells of its events too.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.hears_all = False
        self._torch: Any = sys.modules["torch"]
        self._patches = Patches()
        self._heard: list[tuple[Any, Any]] = []
        self._handles: dict[int, int] = {}  # raw handle of a stream -> its device

    def install(self) -> None:
        """Replaces the calls, and begins to listen."""
        self._events()
        self._streams()
        self._others()
        if self.recorder.device.real:
            self._listen()

    def undo(self) -> None:
        """Puts everything back."""
        self._patches.undo()
        while self._heard:
            registry, callback = self._heard.pop()
            if callback in registry.callback_list:
                registry.callback_list.remove(callback)
        self.hears_all = False

    def _around(
        self,
        owner: Any,
        name: str,
        before: Callable[..., object] | None = None,
        after: Callable[..., object] | None = None,
    ) -> None:
        """Calls `before(*values)` and `after(result, *values)` around a function of the owner's."""
        original = getattr(owner, name, None)
        if original is None:
            return
        quietly = self.recorder.quietly

        @functools.wraps(original)
        def replaced(*args: Any, **named: Any) -> Any:
            values = (*args, *named.values())
            if before is not None:
                quietly(before, *values)
            result = original(*args, **named)
            if after is not None:
                quietly(after, result, *values)
            return result

        self._patches.set(owner, name, replaced)

    def _events(self) -> None:
        recorder, kind = self.recorder, self._torch.cuda.Event

        def recorded(_result: Any, event: Any, stream: Any = None) -> None:
            _mark(event, recorder.event_recorded(self._id(stream)))

        def waited(_result: Any, event: Any, stream: Any = None) -> None:
            recorder.stream_waited(self._id(stream), getattr(event, _STAMP, None))

        def synchronized(_result: Any, event: Any) -> None:
            recorder.host_waited(getattr(event, _STAMP, None))

        def queried(done: Any, event: Any) -> None:
            if done:
                recorder.host_waited(getattr(event, _STAMP, None))

        self._around(kind, "record", after=recorded)
        self._around(kind, "wait", after=waited)
        self._around(kind, "synchronize", after=synchronized)
        self._around(kind, "query", after=queried)

    def _streams(self) -> None:
        recorder, kind = self.recorder, self._torch.cuda.Stream

        def waited(_result: Any, stream: Any, other: Any) -> None:
            recorder.stream_waited_for(self._id(stream), self._id(other))

        def waited_event(_result: Any, stream: Any, event: Any) -> None:
            recorder.stream_waited(self._id(stream), getattr(event, _STAMP, None))

        def recorded(result: Any, stream: Any, *_event: Any) -> None:
            _mark(result, recorder.event_recorded(self._id(stream)))

        def synchronized(_result: Any, stream: Any) -> None:
            recorder.host_waited_for(self._id(stream))

        def queried(done: Any, stream: Any) -> None:
            if done:
                recorder.host_waited_for(self._id(stream))

        self._around(kind, "wait_stream", after=waited)
        self._around(kind, "wait_event", after=waited_event)
        self._around(kind, "record_event", after=recorded)
        self._around(kind, "synchronize", after=synchronized)
        self._around(kind, "query", after=queried)

    def _others(self) -> None:
        torch, recorder = self._torch, self.recorder

        def synchronized(_result: Any, device: Any = None) -> None:
            recorder.host_waited_for_device(self._index(device))

        self._around(torch.cuda, "synchronize", after=synchronized)
        for owner in (torch.cuda, torch.cuda.memory):
            self._around(owner, "empty_cache", after=lambda *_: recorder.cache_emptied())
        graph = getattr(torch.cuda, "CUDAGraph", None)
        if graph is not None:
            self._around(graph, "capture_begin", before=lambda *_: recorder.capture(1))
            self._around(graph, "capture_end", after=lambda *_: recorder.capture(-1))
        self._around(torch.Tensor, "tolist", before=recorder.host_reads)
        self._around(
            torch.UntypedStorage,
            "resize_",
            before=recorder.resizes,
            after=lambda _result, storage, *_: recorder.resized(storage),
        )
        runtime = getattr(torch._C, "_cudart", None)  # noqa: SLF001  cudart() would start CUDA
        if runtime is not None:
            register = recorder.registered.add
            self._around(
                runtime, "cudaHostRegister", after=lambda _, address, *_size: register(address)
            )
            self._around(runtime, "cudaHostUnregister", before=recorder.unregistered)
        if not recorder.device.real:
            # Neither reaches the dispatcher there.
            self._record_stream()
            self._around(torch.Tensor, "pin_memory", after=lambda out, *_: recorder.pin(out))

    def _record_stream(self) -> None:
        """Asks before PyTorch is told of a use; a fault of ours leaves the call as it was."""
        recorder, original = self.recorder, self._torch.Tensor.record_stream

        def record_stream(tensor: Any, stream: Any) -> None:
            if recorder.quietly(recorder.recorded, tensor, stream) is not False:
                original(tensor, stream)

        self._patches.set(self._torch.Tensor, "record_stream", record_stream)

    def _listen(self) -> None:
        """Registers with PyTorch's own hooks, where this version has them."""
        try:
            trace = __import__("torch.cuda._gpu_trace", fromlist=["_gpu_trace"])
            heard = self._heard_by(trace)
            self._torch._C._activate_gpu_trace()  # noqa: SLF001  has no public name
        except (ImportError, AttributeError):
            return
        for registry, callback in heard:
            quiet = functools.partial(self.recorder.quietly, callback)
            registry.add_callback(quiet)
            self._heard.append((registry, quiet))
        self.hears_all = True

    def _heard_by(self, trace: Any) -> list[tuple[Any, Any]]:
        recorder = self.recorder
        stamps: dict[int, Any] = {}

        def created(event: int) -> None:
            stamps.pop(event, None)

        def recorded(event: int, stream: int) -> None:
            stamps[event] = recorder.event_recorded(self._of(stream))

        def waited(event: int, stream: int) -> None:
            recorder.stream_waited(self._of(stream), stamps.get(event))

        def synchronized(event: int) -> None:
            recorder.host_waited(stamps.get(event))

        def all_done() -> None:
            recorder.host_waited_for_device(recorder.device.current_device())

        return [
            (trace.EventCreationCallbacks, created),
            (trace.EventDeletionCallbacks, created),
            (trace.EventRecordCallbacks, recorded),
            (trace.EventWaitCallbacks, waited),
            (trace.EventSynchronizationCallbacks, synchronized),
            (trace.StreamSynchronizationCallbacks, lambda s: recorder.host_waited_for(self._of(s))),
            (trace.DeviceSynchronizationCallbacks, all_done),
        ]

    def _id(self, stream: Any) -> StreamId:
        if stream is None:
            return self.recorder.device.current(self.recorder.device.current_device())
        found = self.recorder.device.id_of(stream)
        self._handles[found.handle] = found.device
        return found

    def _of(self, handle: int) -> StreamId:
        """The stream of a raw handle; the default ones of all devices have the same."""
        device = self._handles.get(handle) if handle else None
        if device is None:
            device = self.recorder.device.current_device()
            if handle:
                self._handles[handle] = device
        return StreamId(device, handle)

    def _index(self, device: Any) -> int:
        if device is None:
            return self.recorder.device.current_device()
        if isinstance(device, int):
            return device
        index = self._torch.device(device).index
        return self.recorder.device.current_device() if index is None else int(index)


def _mark(event: Any, stamp: Any) -> None:
    try:
        setattr(event, _STAMP, stamp)
    except AttributeError:  # a class without attributes of its own: the hooks tell of it
        return
