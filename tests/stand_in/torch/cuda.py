"""torch.cuda: thin functions over torch._C, as in PyTorch."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from torch import native as _C  # noqa: N812

initialized = False
memory = sys.modules[__name__]  # torch.cuda.memory has the same functions


def is_initialized() -> bool:
    return initialized


def memory_stats(device: int = 0) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    if initialized:
        add("", _C._cuda_memoryStats(device))
    return dict(sorted(flat.items()))


def memory_allocated(device: int = 0) -> int:
    return int(memory_stats(device).get("allocated_bytes.all.current", 0))


def max_memory_allocated(device: int = 0) -> int:
    return int(memory_stats(device).get("allocated_bytes.all.peak", 0))


def memory_reserved(device: int = 0) -> int:
    return int(memory_stats(device).get("reserved_bytes.all.current", 0))


def reset_peak_memory_stats(device: int = 0) -> None:
    _C._cuda_resetPeakMemoryStats(device)


def empty_cache() -> None:
    if initialized:
        _C._cuda_emptyCache()


def set_per_process_memory_fraction(fraction: float, device: int = 0) -> None:
    _C._cuda_setMemoryFraction(fraction, device)


def memory_snapshot() -> Any:
    return _C._cuda_memorySnapshot((0, 0, True))["segments"]


def _snapshot() -> Any:
    return _C._cuda_memorySnapshot(None)


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    with Path(filename).open("wb") as file:
        pickle.dump(_snapshot(), file)


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    clear_history: bool = False,
) -> None:
    _C._cuda_record_memory_history(enabled, context, stacks, max_entries, clear_history, False)
