"""torch._C: the interface for allocators, by addresses of C functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_NAME = "CUDAPluggableAllocator does not yet support"
_SIGNATURES: dict[str, Any] = {
    "set_record_stream_fn": (None, ctypes.c_void_p, ctypes.c_void_p),
    "set_reset_fn": (None,),
    "set_memory_fraction_fn": (None, ctypes.c_double, ctypes.c_int),
    "set_base_alloc_fn": (ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    "set_begin_allocate_to_pool": (None,),  # takes a C++ function: cannot be called from here
    "set_end_allocate_to_pool_fn": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    "set_release_pool": (None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
}


class PluggableAllocator:
    def __init__(self, allocate: int, free: int) -> None:
        assert allocate
        self.free = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        )(free)
        self.hooks: dict[str, Callable[..., Any]] = {}

    def allocate(self, size: int, device: int, stream: int) -> int:
        """The entry point raises a C++ exception, which ctypes cannot take: this is its twin."""
        from tenure import _engine

        buffer = _engine.LiveBuffer(size, device, stream)
        address = buffer.address
        buffer.release()
        return address

    def __getattr__(self, name: str) -> Callable[[int], None]:
        signature = _SIGNATURES.get(name)
        if signature is None:
            raise AttributeError(name)

        def setter(address: int) -> None:
            self.hooks[name] = ctypes.CFUNCTYPE(*signature)(address)

        return setter


current: Any = None


def _cuda_customAllocator(allocate: int, free: int) -> PluggableAllocator:  # noqa: N802
    return PluggableAllocator(allocate, free)


def _cuda_changeCurrentAllocator(allocator: PluggableAllocator) -> None:  # noqa: N802
    global current  # noqa: PLW0603
    if current is not None:
        raise RuntimeError("Can't swap an already initialized allocator")
    current = allocator


def _cuda_emptyCache() -> None:  # noqa: N802
    current.hooks["set_reset_fn"]()


def _cuda_setMemoryFraction(fraction: float, device: int) -> None:  # noqa: N802
    current.hooks["set_memory_fraction_fn"](fraction, device)


def _refuse(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{_NAME} {what}.")

    return refuse


_cuda_memoryStats = _refuse("getDeviceStats")  # noqa: N816
_cuda_resetAccumulatedMemoryStats = _refuse("resetAccumulatedStats")  # noqa: N816
_cuda_resetPeakMemoryStats = _refuse("resetPeakStats")  # noqa: N816
_cuda_memorySnapshot = _refuse("snapshot")  # noqa: N816
_cuda_record_memory_history = _refuse("recordHistory")
_cuda_attach_out_of_memory_observer = _refuse("attachOutOfMemoryObserver")
