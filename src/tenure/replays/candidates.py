"""The same trace under several settings: what each reserves, and the smallest card it runs on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.replays.capacity import smallest_capacity
from tenure.replays.feeding import feed
from tenure.settings import AllocatorSettings, parse_alloc_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenure.replays.feeding import Call
    from tenure.traces import Trace


@dataclass(frozen=True)
class Candidate:
    """A setting, tried.

    Attributes:
        conf: As for PYTORCH_CUDA_ALLOC_CONF; "" is PyTorch's default.
        peak_reserved: Most bytes reserved under the capacity asked about, or without any.
        spread: Least and most of that over the placements tried.
        smallest_capacity: The least limit in bytes under which the whole trace runs.
        device_allocs: Calls that asked the driver for memory.
        device_frees: Calls that gave it back.
        retries: Requests that made the allocator return its whole cache first.
        fits: Whether every request was served under the capacity; True without one.
    """

    conf: str
    peak_reserved: int
    spread: tuple[int, int]
    smallest_capacity: int
    device_allocs: int
    device_frees: int
    retries: int
    fits: bool


def try_settings(
    trace: Trace,
    confs: Sequence[str],
    *,
    calls: list[Call],
    capacity: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> tuple[Candidate, ...]:
    """Replays the trace under each setting, on all cores.

    Args:
        trace: What to replay.
        confs: Settings as strings; "" for the default.
        calls: Of `recorded_replay(trace)`.
        capacity: Limit on reserved bytes to ask about; None for none.
        progress: Called after each setting.
    """

    def one(conf: str) -> Candidate:
        result = _try(trace, conf, calls, capacity)
        progress()
        return result

    with ThreadPoolExecutor() as pool:  # the engine runs without the interpreter's lock
        return tuple(pool.map(one, confs))


def _try(trace: Trace, conf: str, calls: list[Call], capacity: int | None) -> Candidate:
    base = AllocatorSettings(device_memory=trace.settings.device_memory)
    settings = parse_alloc_conf(conf, torch_version=trace.settings.torch_version, base=base)
    free = feed(trace, settings, calls=calls, compare=False)
    other = feed(trace, settings, calls=calls, compare=False, ascending=True)
    peaks = sorted(plain["peaks"]["reserved"]["bytes"] for plain in (free, other))
    least = smallest_capacity(trace, settings, calls=calls, enough=peaks[-1])
    asked = free
    if capacity is not None:
        asked = feed(trace, replace(settings, limit=capacity), calls=calls, compare=False)
    statistics = asked["statistics"]
    return Candidate(
        conf,
        asked["peaks"]["reserved"]["bytes"],
        (peaks[0], peaks[1]),
        least,
        statistics["num_device_alloc"],
        statistics["num_device_free"],
        statistics["num_alloc_retries"],
        asked["first_oom"] is None,
    )
