"""A trace in the form that the engine takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tenure import _engine
from tenure.settings import AllocatorSettings, engine_settings
from tenure.traces import Action

if TYPE_CHECKING:
    from tenure.traces import StartSegment, Trace

Call = tuple[int, tuple[int, int], bool]  # event, pool, whether the pool's owner let go


def feed(
    trace: Trace, settings: AllocatorSettings, *, calls: list[Call], compare: bool, **options: Any
) -> dict[str, Any]:
    """Runs the trace through the engine.

    Args:
        trace: What to replay.
        settings: Under which settings; a capacity is its `limit`.
        calls: Inferred calls, for a what-if.
        compare: Hold every address against the record.
        options: `ascending`, `stop_at_oom`, `until`, `timeline` of the engine's replay; and
            `lead_us`, elastic rules only: work on freed memory ends so long after the free, as it
            does where the host runs ahead. By default it ends with the free.

    Returns:
        The engine's plain result; see engine/python/replay.cpp.
    """
    events = trace.events
    if "lead_us" in options:
        options["time_us"] = np.ascontiguousarray(events.time_us)
    return _engine.replay(
        engine_settings(settings),
        np.ascontiguousarray(events.action),
        np.ascontiguousarray(events.address),
        np.ascontiguousarray(events.size),
        np.ascontiguousarray(events.stream),
        np.ascontiguousarray(events.pool),
        np.ascontiguousarray(events.allocation),
        pools=list(trace.pools),
        start=[_saved(segment, trace.pools) for segment in trace.start],
        allocations=len(trace.allocations),
        calls=calls,
        known_calls=_known_calls(trace) if compare else [],
        recorded_peak=recorded_peak(trace) if compare else 0,
        compare=compare,
        slack=[(b.allocation, b.slack) for s in trace.start for b in s.blocks if b.slack],
        **options,
    )


def _saved(segment: StartSegment, pools: tuple[tuple[int, int], ...]) -> tuple[Any, ...]:
    blocks = [(b.address, b.size, b.requested, b.pending, b.allocation) for b in segment.blocks]
    return (
        segment.address,
        segment.size,
        segment.stream,
        pools[segment.pool],
        segment.small,
        segment.arena,
        list(segment.runs),
        blocks,
    )


def recorded_peak(trace: Trace) -> int:
    """Most bytes reserved at any time of the recording, from its segment events alone."""
    events = trace.events
    sign = np.zeros(len(Action), np.int64)
    sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
    sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
    start = sum(sum(size for _, size in s.runs) if s.arena else s.size for s in trace.start)
    changes = sign[events.action] * events.size
    return start + max(int(np.cumsum(changes).max(initial=0)), 0)


def _known_calls(trace: Trace) -> list[int]:
    """Releases whose stack says that somebody called empty_cache()."""
    events = trace.events
    releases = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    asked: dict[int, bool] = {-1: False}
    known = []
    for i in np.flatnonzero(releases).tolist():
        stack = int(events.stack[i])
        if stack not in asked:
            asked[stack] = any(f.name == "empty_cache" for f in trace.stacks.frames(stack))
        if asked[stack]:
            known.append(i)
    return known
