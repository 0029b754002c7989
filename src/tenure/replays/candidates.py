"""The same trace under several settings: what each reserves, and the smallest card it runs on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.replays.capacity import STEP, smallest_capacity
from tenure.replays.costs import torch_stall
from tenure.replays.feeding import feed
from tenure.settings import AllocatorSettings, parse_alloc_conf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenure.replays.feeding import Call
    from tenure.traces import Trace

ROUGHLY = 1_000  # parts of a peak, one of which a rough answer may be off by


@dataclass(frozen=True)
class Trial:
    """A setting to try.

    Attributes:
        rules: "torch" or "elastic".
        conf: As for PYTORCH_CUDA_ALLOC_CONF; "" is the default. Elastic rules have none.
    """

    rules: str
    conf: str


@dataclass(frozen=True)
class Candidate:
    """A setting, tried.

    Attributes:
        rules: "torch" or "elastic".
        conf: As for PYTORCH_CUDA_ALLOC_CONF; "" is PyTorch's default.
        peak_reserved: Most bytes reserved under the capacity asked about, or without any.
        spread: Least and most of that over the placements tried.
        smallest_capacity: The least limit in bytes under which the whole trace runs; where tried
            roughly, one that is less than a thousandth of the peak above it.
        device_allocs: Calls that asked the driver for memory.
        device_frees: Calls that gave it back.
        chunk_moves: Chunks moved instead of returned; 0 under torch rules.
        stall_seconds: Estimated time in calls to the driver beyond a job's first growth.
        retries: Requests that made the allocator wait for the device and return its whole cache.
        fits: Whether every request was served under the capacity; True without one.
    """

    rules: str
    conf: str
    peak_reserved: int
    spread: tuple[int, int]
    smallest_capacity: int
    device_allocs: int
    device_frees: int
    chunk_moves: int
    stall_seconds: float
    retries: int
    fits: bool


def try_settings(
    trace: Trace,
    trials: Sequence[Trial],
    *,
    calls: list[Call],
    capacity: int | None = None,
    roughly: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> tuple[Candidate, ...]:
    """Replays the trace under each setting, on all cores.

    Args:
        trace: What to replay.
        trials: Which settings.
        calls: Of `recorded_replay(trace)`.
        capacity: Limit on reserved bytes to ask about; None for none.
        roughly: Save replays: the smallest capacity to a thousandth, and one placement only.
        progress: Called after each setting.
    """

    def one(trial: Trial) -> Candidate:
        result = _try(trace, trial, calls, capacity, roughly=roughly)
        progress()
        return result

    with ThreadPoolExecutor() as pool:  # the engine runs without the interpreter's lock
        return tuple(pool.map(one, trials))


def _settings(trace: Trace, trial: Trial) -> AllocatorSettings:
    base = AllocatorSettings(device_memory=trace.settings.device_memory)
    version = trace.settings.torch_version
    settings = parse_alloc_conf(trial.conf, torch_version=version, base=base)
    if trial.rules == settings.rules:
        return settings
    return replace(settings, rules=trial.rules, soft_limit=trace.settings.soft_limit)


def _try(
    trace: Trace, trial: Trial, calls: list[Call], capacity: int | None, *, roughly: bool
) -> Candidate:
    settings = _settings(trace, trial)
    free = feed(trace, settings, calls=calls, compare=False)
    peaks = [free["peaks"]["reserved"]["bytes"]]
    if not roughly and trial.rules == "torch":  # addresses decide ties there; ours are our own
        other = feed(trace, settings, calls=calls, compare=False, ascending=True)
        peaks.append(other["peaks"]["reserved"]["bytes"])
    within = max(peaks) // ROUGHLY if roughly else STEP
    least = smallest_capacity(trace, settings, calls=calls, enough=max(peaks), within=within)
    if trace.start:  # its requests may run in less than was live before them
        live = free["peaks"]["allocated"]["bytes"]
        least = max(least, -(-live // STEP) * STEP)
    asked = free
    if capacity is not None:
        asked = feed(trace, replace(settings, limit=capacity), calls=calls, compare=False)
    statistics = asked["statistics"]
    elastic = trial.rules == "elastic"
    return Candidate(
        rules=trial.rules,
        conf=trial.conf,
        peak_reserved=asked["peaks"]["reserved"]["bytes"],
        spread=(min(peaks), max(peaks)),
        smallest_capacity=least,
        device_allocs=statistics["num_device_alloc"],
        device_frees=statistics["num_device_free"],
        chunk_moves=asked["chunk_moves"] if elastic else 0,
        stall_seconds=asked["stall_seconds"] if elastic else torch_stall(statistics, settings),
        retries=statistics["num_alloc_retries"],
        fits=asked["first_oom"] is None,
    )
