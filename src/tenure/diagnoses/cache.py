"""cache.churn and cache.retries: memory given back to the driver only to be asked for again."""

from __future__ import annotations

import numpy as np

from tenure.diagnoses.evidence import Evidence
from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.traces import Action
from tenure.units import format_bytes

OFTEN = 3  # empty_cache() calls that returned memory; once or twice is a phase change


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings about calls to the driver."""
    if not len(evidence.trace.events):
        return ()
    return (*_churn(evidence), *_retries(evidence))


def _emptied(evidence: Evidence) -> list[int]:
    """Events before which an empty_cache() returned memory."""
    action = evidence.trace.events.action
    releases = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    return sorted(
        {
            event
            for event, _, let_go in evidence.recorded.calls
            if not let_go and action[event] in releases
        }
    )


def _churn(evidence: Evidence) -> tuple[Finding, ...]:
    calls = _emptied(evidence)
    if len(calls) < OFTEN:
        return ()
    events = evidence.trace.events
    released = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    given = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    first = calls[0]
    returned = int(events.size[released].sum())
    again = int(events.size[given][np.flatnonzero(given) > first].sum())
    back = min(returned, again)
    if back < returned // 4:
        return ()
    return (
        Finding(
            "cache.churn",
            Severity.WARNING,
            back,
            f"empty_cache() ran {len(calls)} times and gave back {format_bytes(returned)} in all, "
            f"of which {format_bytes(back)} was asked for again",
            (
                (
                    f"{int(released.sum()):,} calls returned memory and {int(given.sum()):,} asked "
                    "for it; each waits for the device or costs tens of microseconds"
                ),
            ),
            (Advice("call empty_cache() once at a change of phase, not in the loop"),),
        ),
    )


def _retries(evidence: Evidence) -> tuple[Finding, ...]:
    retries = [
        event
        for event in evidence.replay.retries
        if evidence.replay.first_oom is None or event != evidence.replay.first_oom.event
    ]
    if not retries:
        return ()
    events = evidence.trace.events
    released = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    size = int(events.size[released].sum())
    times = "once" if len(retries) == 1 else f"{len(retries):,} times"
    return (
        Finding(
            "cache.retries",
            Severity.WARNING,
            size,
            f"memory was short {times}: PyTorch waited for the whole device, returned its cache "
            "and asked again",
            (
                f"at events {', '.join(f'{event:,}' for event in retries[:8])}"
                + (" ..." if len(retries) > 8 else ""),
                (
                    f"{int(evidence.replay.statistics['num_device_free']):,} segments or ranges "
                    "were given back; each retry stops the GPU until all its work is done"
                ),
            ),
        ),
    )
