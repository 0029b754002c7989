"""CuPy on the engine: its arrays come from the same memory as PyTorch's tensors."""

from __future__ import annotations

import importlib
from typing import Any

from tenure import _engine
from tenure.errors import OutOfMemoryError, UsageError
from tenure.live.process import require_started, share

_streams: dict[int, Any] = {}  # events are recorded on streams that had memory: they must stay


def install(**options: Any) -> None:
    """Makes the engine CuPy's allocator on every device.

    Shares the memory of PyTorch where tenure.install() came before; else starts the engine. Memory
    is given out for CuPy's current stream, and may be used again in the order of that stream; an
    array that another stream uses as well is told of it by `record_stream`.

    Args:
        **options: As in tenure.live.process.Options; only where nothing was installed before.

    Raises:
        UsageError: CuPy cannot be imported, or options came too late.
    """
    cupy = _cupy()
    share(**options)
    cupy.cuda.set_allocator(allocate)


def uninstall() -> None:
    """Gives CuPy its own memory pool back; arrays that live keep their memory."""
    cupy = _cupy()
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def allocate(size: int) -> Any:
    """Memory for CuPy's current device and stream; what `cupy.cuda.set_allocator` takes."""
    cupy = _cupy()
    require_started()
    stream = cupy.cuda.get_current_stream()
    device = cupy.cuda.device.get_device_id()
    if stream.ptr and stream.ptr not in _streams:
        _streams[stream.ptr] = stream
    try:
        buffer = _engine.LiveBuffer(size, device, stream.ptr)
    except OutOfMemoryError as error:
        raise _out_of_memory(cupy, str(error), size) from None
    memory = cupy.cuda.UnownedMemory(buffer.address, size, buffer, device)
    return cupy.cuda.MemoryPointer(memory, 0)


def record_stream(array: Any, stream: Any) -> None:
    """Says that `stream` uses the array too: once it dies, its memory waits for that stream.

    Raises:
        UsageError: The array's memory is not the engine's.
    """
    owner = getattr(array.data.mem, "_owner", None)
    if not isinstance(owner, _engine.LiveBuffer):
        raise UsageError("the array's memory is not managed by tenure")
    if stream.ptr:
        _streams.setdefault(stream.ptr, stream)
    owner.record_stream(stream.ptr)


def _out_of_memory(cupy: Any, text: str, size: int) -> Exception:
    """CuPy's own error, with the engine's words."""

    class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError):  # type: ignore[misc]
        def __str__(self) -> str:
            return text

    error: Exception = OutOfMemoryError(size, 0)
    return error


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise UsageError(f"CuPy cannot be imported ({error})") from None
