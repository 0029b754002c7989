"""Counters of each device: PyTorch's own, and the engine's."""

from __future__ import annotations

from typing import Any

from tenure import _engine
from tenure.live.process import require_started

ALLOCATED = "allocated_bytes.all.current"
RESERVED = "reserved_bytes.all.current"


def memory_stats(device: int | None = None) -> dict[str, int | float]:
    """The counters of torch.cuda.memory_stats(), and those of elastic rules as `elastic.*`.

    Args:
        device: Which GPU; by default the first one in use.

    Raises:
        UsageError: tenure does not manage memory in this process.
    """
    require_started()
    number = first_device() if device is None else device
    stats: dict[str, int | float] = dict(sorted(_engine.Live.statistics(number).items()))
    for key, value in (_engine.Live.elastic_statistics(number) or {}).items():
        stats[f"elastic.{key}"] = value
    return stats


def first_device() -> int:
    """The first GPU in use; 0 before the first allocation."""
    return min(_engine.Live.devices(), default=0)


def nested(flat: dict[str, int]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}: what PyTorch's own native function returns."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        inner = result
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return result
