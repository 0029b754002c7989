"""Numba on the engine, as its external memory manager."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from tenure import _engine
from tenure.errors import OutOfMemoryError, UsageError
from tenure.live.process import share

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

_owners: dict[int, Any] = {}  # address -> the block, until Numba is done with it
_streams: dict[int, Any] = {}  # events are recorded on them when memory is freed: they must stay


def install(**options: Any) -> None:
    """Makes the engine Numba's memory manager; before Numba's first use of the device.

    Args:
        **options: As in tenure.live.process.Options; only where nothing was installed before.

    Raises:
        UsageError: Numba cannot be imported, or options came too late.
    """
    cuda = _numba_cuda()
    share(**options)
    cuda.set_memory_manager(manager_class(cuda))


def record_stream(array: Any, stream: Any) -> None:
    """Says that `stream` uses the array too: once it dies, its memory waits for that stream.

    Numba's own streams need no word of it: they and the default stream, for which memory is given
    out, wait for each other. A stream from elsewhere (`cuda.external_stream`) may not.

    Raises:
        UsageError: The array's memory is not the engine's.
    """
    address = array.__cuda_array_interface__["data"][0]
    for start, buffer in tuple(_owners.items()):
        if start <= address < start + buffer.size:
            _streams.setdefault(int(stream), stream)
            buffer.record_stream(int(stream))
            return
    raise UsageError("the array's memory is not managed by tenure")


def manager_class(cuda: Any) -> type:
    """The memory manager that Numba instantiates once a context.

    Args:
        cuda: The module numba.cuda.
    """

    class TenureManager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Device memory from the engine, for the default stream; host memory as Numba does it."""

        interface_version = 1

        def initialize(self) -> None:
            """Nothing to prepare: the engine makes a device ready at its first request."""

        def memalloc(self, size: int) -> Any:
            """A pointer that gives its block back when Numba finalises it."""
            try:
                buffer = _engine.LiveBuffer(size, self.context.device.id, 0)
            except OutOfMemoryError as error:
                raise cuda.cudadrv.driver.CudaAPIError(_OUT_OF_MEMORY, str(error)) from None
            address = buffer.address
            _owners[address] = buffer
            return cuda.MemoryPointer(
                self.context,
                ctypes.c_void_p(address),
                size,
                finalizer=lambda: _owners.pop(address, None),
            )

        def get_ipc_handle(self, memory: Any) -> Any:
            """Refused: mapped memory has no handle of that kind."""
            raise UsageError("memory that tenure manages cannot be sent to other processes (IPC)")

        def get_memory_info(self) -> Any:
            """Free and total bytes, as the driver says."""
            free, total = cuda.cudadrv.driver.driver.cuMemGetInfo()
            return cuda.MemoryInfo(free=free, total=total)

    return TenureManager


def _numba_cuda() -> Any:
    try:
        return importlib.import_module("numba.cuda")
    except ImportError as error:
        raise UsageError(f"Numba cannot be imported ({error})") from None
