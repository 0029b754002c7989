"""cache.retries: requests that made the allocator return its whole cache and try again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.advice import settings_advice
from tenure.diagnoses.finding import Finding, Severity
from tenure.diagnoses.naming import some
from tenure.traces import Action

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if any request was served only after such a retry."""
    failed = evidence.replay.first_oom
    retries = [e for e in evidence.replay.retries if failed is None or e != failed.event]
    if not retries:
        return ()
    times = "once" if len(retries) == 1 else f"{len(retries):,} times"
    events = some([f"{event:,}" for event in retries], 8)
    if evidence.elastic:
        return (_waits(times, events),)
    returned = _returned(evidence, retries)
    return (
        Finding(
            "cache.retries",
            Severity.WARNING,
            returned,
            (
                f"memory was short {times}: PyTorch waited for the whole device, returned its "
                "cache and asked again"
            ),
            (
                f"at events {events}",
                (
                    f"{int(evidence.replay.statistics['num_device_free']):,} segments or ranges "
                    "were given back in the run; each retry stops the GPU until all its work is "
                    "done"
                ),
            ),
            settings_advice(evidence),
        ),
    )


def _waits(times: str, events: str) -> Finding:
    """Elastic rules: nothing free could be moved until work on it was over."""
    return Finding(
        "cache.retries",
        Severity.WARNING,
        0,
        f"memory was short {times}: the host had to wait for work on memory that was freed",
        (
            f"at events {events}, as replayed: when the GPU was done is not in the record",
            "a wait lets the GPU run dry; less live, or a larger limit, avoids it",
        ),
    )


def _returned(evidence: Evidence, retries: list[int]) -> int:
    """Bytes that went back because of the retries; 0 where the retries are not in the record."""
    events = evidence.trace.events
    released = (events.action == Action.SEGMENT_FREE) | (events.action == Action.SEGMENT_UNMAP)
    if not evidence.replay.compared:
        return 0
    chosen = np.zeros(len(events), bool)
    for retry in retries:  # recorded just before the request's own segment
        event = retry
        while event > 0 and not released[event - 1] and retry - event < 3:
            event -= 1
        while event > 0 and released[event - 1]:
            event -= 1
            chosen[event] = True
    return int(events.size[chosen].sum()) or int(events.size[released].sum())
