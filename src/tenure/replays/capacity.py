"""The smallest card: the least limit under which a whole trace runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tenure.replays.feeding import Call, feed
from tenure.traces import Action

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces import Trace

STEP = 2 << 20  # bytes; the driver's granularity, and how fine the answer is
MOST_ASKED = 1 << 42  # bytes; requests above were a mistake, and no device has what they need


def runs(trace: Trace, settings: AllocatorSettings, limit: int, calls: list[Call]) -> bool:
    """Whether every request of the trace is served under the limit, retries included.

    A limit above the device's memory asks about a larger device.
    """
    memory = max(settings.device_memory, limit)
    limited = replace(settings, limit=limit, device_memory=memory)
    plain = feed(trace, limited, calls=calls, compare=False, stop_at_oom=True)
    return plain["first_oom"] is None


def smallest_capacity(
    trace: Trace, settings: AllocatorSettings, *, calls: list[Call], enough: int, within: int = STEP
) -> int:
    """The least limit in bytes, a multiple of 2 MiB, under which the trace runs.

    Found by bisection through the allocator's own way out (garbage collection, release, retry).
    Whether a trace runs is nearly, but not strictly, monotone in the limit: the answer is a limit
    that runs with one that does not 2 MiB below, or as many more as `within` allows.

    Args:
        trace: What to replay.
        settings: Under which settings; their limit is ignored.
        calls: Of `recorded_replay(trace)`.
        enough: Bytes under which it is known to run: at least its peak reserved without a limit.
        within: Bytes by which the answer may be too large: each halving costs a replay.
    """
    failed = trace.events.size[trace.events.action == Action.OOM]
    asked = int(failed.max(initial=0))
    if asked > MOST_ASKED:  # no card: beside all else that was reserved it would fit
        rest = enough - asked if enough >= asked else enough
        return -(-(rest + asked) // STEP) * STEP
    low, high = 0, max(-(-enough // STEP), 1)  # in steps; `low` fails, `high` runs
    if not _is_enough(trace, settings):
        while not runs(trace, settings, high * STEP, calls):
            low, high = high, high * 2
    while high - low > max(within // STEP, 1):
        middle = (low + high) // 2
        if runs(trace, settings, middle * STEP, calls):
            high = middle
        else:
            low = middle
    return high * STEP


def _is_enough(trace: Trace, settings: AllocatorSettings) -> bool:
    """Whether a limit at the peak reserved without one changes nothing.

    It does where garbage or chunks depend on it, and for requests that failed in the recording:
    these are tried, but not in the peak.
    """
    unlimited = not settings.garbage_collection_threshold and settings.rules == "torch"
    return unlimited and not (trace.events.action == Action.OOM).any()
