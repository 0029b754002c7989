"""Counters of each device: PyTorch's own, and the engine's."""

from __future__ import annotations

from typing import Any

from tenure import _engine
from tenure.errors import UsageError
from tenure.live.process import require_started

ALLOCATED = "allocated_bytes.all.current"
RESERVED = "reserved_bytes.all.current"
COUNTS = ("requested", "allocated", "active", "reserved")

# Device -> its peaks when PyTorch's were last reset.
_before_reset: dict[int, dict[str, int]] = {}


def memory_stats(device: Any = None) -> dict[str, int | float]:
    """The counters of torch.cuda.memory_stats(), and tenure's own.

    Those of elastic rules are `elastic.*`. PyTorch's peaks are reset by whoever likes, trainers
    and loggers among them; `process.allocated_bytes.peak` and the other three are not.

    Args:
        device: Which GPU, as a number, "cuda:1" or a torch.device; by default the first in use.

    Raises:
        UsageError: tenure does not manage memory in this process, or there is no such GPU.
    """
    require_started()
    number = device_number(device)
    stats: dict[str, int | float] = dict(sorted(_engine.Live.statistics(number).items()))
    for key, value in (_engine.Live.elastic_statistics(number) or {}).items():
        stats[f"elastic.{key}"] = value
    for name, peak in peaks(number).items():
        stats[f"process.{name}_bytes.peak"] = peak
    return stats


def peaks(device: int) -> dict[str, int]:
    """Most bytes of each count since the process began, whoever has reset PyTorch's peaks."""
    now, before = _engine.Live.statistics(device), _before_reset.get(device, {})
    return {name: max(now[f"{name}_bytes.all.peak"], before.get(name, 0)) for name in COUNTS}


def reset_peak(device: int) -> None:
    """What torch.cuda.reset_peak_memory_stats() calls."""
    _before_reset[device] = peaks(device)
    _engine.Live.reset_peak(device)


def device_number(device: Any = None) -> int:
    """Which GPU is meant; by default the first in use, or 0 before the first allocation.

    Args:
        device: A number, "cuda:1" or a torch.device.

    Raises:
        UsageError: There is no such GPU.
    """
    known = _engine.Live.devices()
    if device is None or str(device) == "cuda":
        return min(known, default=0)
    text = str(device).removeprefix("cuda:")
    if not text.isdecimal():
        raise UsageError(f'device: {device!r} names no GPU; write 1, "cuda:1" or "cuda"')
    number = int(text)
    if number not in known and number >= (count := _engine.Live.driver()["devices"]):
        raise UsageError(f"device: there is no GPU {number}; the driver shows {count}, from 0")
    return number


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
