"""As much of a CUDA build of PyTorch 2.11 as tenure's live part meets; memory is the host's.

Functions keep PyTorch's names and behaviour: those of `_C` raise under a plug-in allocator, and the
ones of `cuda` call them, as PyTorch's own do.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import cuda, version
from torch import native as _C  # noqa: N812 -- PyTorch's name

__version__ = "2.11.0+cu130"
__all__ = ["_C", "OutOfMemoryError", "Tensor", "cuda", "empty", "version"]


class OutOfMemoryError(RuntimeError):
    pass


class Tensor:
    """A storage of bytes on a device, freed when it dies."""

    def __init__(self, size: int, device: int = 0, stream: int = 0) -> None:
        from tenure.errors import OutOfMemoryError as EngineError

        cuda.initialized = True
        self._allocator = _C.current
        try:
            self._address = self._allocator.allocate(size, device, stream)
        except EngineError as error:  # what the exception of the entry point becomes in PyTorch
            raise OutOfMemoryError(str(error)) from None
        self._size, self._device, self._stream = size, device, stream

    def data_ptr(self) -> int:
        return int(self._address or 0)

    def fill(self, value: int) -> None:
        ctypes.memset(self.data_ptr(), value, self._size)

    def read(self) -> bytes:
        return ctypes.string_at(self.data_ptr(), self._size)

    def record_stream(self, stream: int) -> None:
        _C.current.hooks["set_record_stream_fn"](self.data_ptr(), stream)

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            self._allocator.free(self._address, self._size, self._device, self._stream)


def empty(size: int, device: int = 0, stream: int = 0) -> Any:
    return Tensor(size, device, stream)
