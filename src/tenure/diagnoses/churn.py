"""cache.churn: empty_cache() in the loop returns memory only to ask for it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Finding, Severity, Verified
from tenure.replays import smallest_capacity, what_if
from tenure.traces import Action
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

OFTEN = 3  # calls that returned memory; once or twice is a change of phase
LEAST_BYTES = 32 << 20
AGAIN = 0.25  # of what was returned, that was asked for again


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if empty_cache() ran often and most of it had to come back."""
    if not len(evidence.trace.events):
        return ()
    calls = emptied(evidence)
    if len(calls) < OFTEN:
        return ()
    events = evidence.trace.events
    released = _released_by(evidence, calls)
    given = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    given &= np.arange(len(events)) > calls[0]
    returned, again = int(events.size[released].sum()), int(events.size[given].sum())
    back = min(returned, again)
    if back < max(AGAIN * returned, LEAST_BYTES):
        return ()
    line = evidence.line_of_event(calls[len(calls) // 2])
    asked = "cudaFree and cudaMalloc, which wait for the device"
    if evidence.elastic:
        asked = "chunks unmapped, which waits for the device, and mapped"
    lines = [
        (
            f"each call returned {int(released.sum()) / len(calls):.1f} segments or ranges on "
            f"average; afterwards {int(given.sum()):,} were asked for anew: {asked}"
        )
    ]
    if line:
        lines.append(f"called from {line}")
    return (
        Finding(
            "cache.churn",
            Severity.WARNING,
            back,
            (
                f"{len(calls)} calls of empty_cache() gave back {format_bytes(returned)} in all, "
                f"of which {format_bytes(back)} was asked for again"
            ),
            tuple(lines),
            (_advice(evidence, calls),),
        ),
    )


def emptied(evidence: Evidence) -> list[int]:
    """Events before which an empty_cache() returned memory; those of graph captures left out."""
    action = evidence.trace.events.action
    releases = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    found = {
        event
        for event, _, let_go in evidence.recorded.calls
        if not let_go and action[event] in releases and not _by_capture(evidence, event)
    }
    return sorted(found)


def _by_capture(evidence: Evidence, event: int) -> bool:
    """torch.cuda.graph empties the cache when a capture begins."""
    frames = evidence.trace.stacks.frames(int(evidence.trace.events.stack[event]))
    return any(f.file.endswith("torch/cuda/graphs.py") for f in frames)


def _released_by(evidence: Evidence, calls: list[int]) -> np.ndarray:
    """Which events are releases of these calls: each call's run of releases."""
    action = evidence.trace.events.action
    release = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    mine = np.zeros(len(action), bool)
    for call in calls:
        end = call
        while end < len(action) and release[end]:
            end += 1
        mine[call:end] = True
    return mine


def _advice(evidence: Evidence, calls: list[int]) -> Advice:
    """The run without those calls, replayed."""
    trace = evidence.recorded.trace
    kept = [call for call in evidence.recorded.calls if call[0] not in set(calls)]
    without = what_if(trace, trace.settings, calls=kept)
    before, after = evidence.recorded.peak.reserved, without.peak.reserved
    smallest = smallest_capacity(trace, trace.settings, calls=kept, enough=without.spread[1])
    effect = "the peak stays" if after <= before else "the peak becomes"
    return Advice(
        (
            f"take empty_cache() out of the loop; {effect} {format_bytes(after)} (replayed). Call "
            "it once where a phase ends and another process or library needs the memory"
        ),
        None,
        Verified(before, after, evidence.as_recorded.smallest_capacity, smallest),
    )
