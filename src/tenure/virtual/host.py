"""CPU tensors in the place of a GPU's: they are computed, and their storages counted."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tenure.cards import Card
from tenure.settings import AllocatorSettings
from tenure.traces import Trace
from tenure.units import TIB
from tenure.virtual import recording
from tenure.virtual.memory import Memory
from tenure.virtual.tracker import tensors_in

_HOST = Card("cpu", "CPU tensors", 64 * TIB, context=0)


class HostRecorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not there for mypy
    """Counts the storages that are made while it is there, as a GPU's allocator would.

    Attributes:
        where: What is measured, for people.
    """

    where = "tensors of the CPU"

    def __init__(self) -> None:
        super().__init__()
        self._memory = Memory(_HOST, AllocatorSettings, unlimited=True)
        self._known: dict[int, Any] = {}  # storage -> its weak reference
        self.__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = {storage._cdata for storage in _storages((args, tuple((kwargs or {}).values())))}  # noqa: SLF001
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in before:  # noqa: SLF001
                self._born(storage)
        return result

    def _born(self, storage: Any) -> None:
        key = storage._cdata  # noqa: SLF001
        known = self._known.get(key)
        if known is not None and known() is storage:
            return
        address = self._memory.allocate(int(storage.nbytes()))

        def dead(reference: Any) -> None:
            if self._known.get(key) is reference:
                del self._known[key]
            self._memory.free(address)

        self._known[key] = weakref.ref(storage, dead)

    def peak(self) -> dict[str, int]:
        """Most bytes at a time."""
        return self._memory.peak()

    def trace(self) -> Trace:
        """All that happened."""
        return recording.trace(self._memory)

    def end(self) -> None:
        """Stops counting."""
        self.__exit__(None, None, None)


def _storages(value: Any) -> list[Any]:
    return [
        tensor.untyped_storage()
        for tensor in tensors_in(value)
        if tensor.device.type == "cpu" and tensor.layout is torch.strided
    ]
