"""Evidence into findings: every diagnosis in turn, what matters most first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.diagnoses import (
    cache,
    fragmentation,
    growing,
    normal,
    out_of_memory,
    pools,
    recording,
    settings,
    streams,
)
from tenure.diagnoses.evidence import Evidence, Progress, Share
from tenure.diagnoses.finding import Finding, Severity

if TYPE_CHECKING:
    from tenure.diagnoses.split import Split
    from tenure.replays import Candidate, Replay
    from tenure.streams import StreamUsage
    from tenure.traces import Trace

DIAGNOSES = (
    out_of_memory,
    growing,
    fragmentation,
    streams,
    cache,
    pools,
    settings,
    normal,
    recording,
)
RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NORMAL: 2, Severity.INFO: 3}


@dataclass(frozen=True)
class Explanation:
    """What `explain` has to say about one trace.

    Attributes:
        trace: What was explained.
        replay: The trace as replayed: as recorded, or under the capacity asked about.
        capacity: Limit in bytes that was asked about; None for none.
        complete: Whether the recording began empty and lacks nothing that limits the answer.
        missing: What it lacks, in sentences.
        split: Reserved bytes by meaning when most was reserved.
        by_site: Live bytes by line when most was allocated.
        by_category: The same by category.
        streams: Bytes per stream.
        candidates: Other settings, tried; empty where no advice needed them.
        recorded_candidate: The recorded settings, tried in the same way; None likewise.
        findings: What matters most first.
    """

    trace: Trace
    replay: Replay
    capacity: int | None
    complete: bool
    missing: tuple[str, ...]
    split: Split
    by_site: tuple[Share, ...]
    by_category: tuple[Share, ...]
    streams: tuple[StreamUsage, ...]
    candidates: tuple[Candidate, ...]
    recorded_candidate: Candidate | None
    findings: tuple[Finding, ...]


def explain(
    trace: Trace, *, capacity: int | None = None, progress: Progress = lambda _: None
) -> Explanation:
    """Says what held the memory, what went wrong, and what would have changed it.

    Args:
        trace: What to explain.
        capacity: Ask about a limit on reserved bytes; default: the run as it was.
        progress: Called with a word before anything that may take a second.
    """
    evidence = Evidence(trace, capacity, progress)
    findings = [finding for diagnosis in DIAGNOSES for finding in diagnosis.diagnose(evidence)]
    findings.sort(key=lambda f: (RANK[f.severity], -f.bytes))
    tried = bool(len(trace.events))
    return Explanation(
        trace=trace,
        replay=evidence.replay,
        capacity=capacity,
        complete=trace.starts_empty and not trace.notes,
        missing=tuple(note.text for note in trace.notes),
        split=evidence.split,
        by_site=evidence.by_site(evidence.at_live_peak),
        by_category=evidence.by_category(evidence.at_live_peak),
        streams=evidence.streams,
        candidates=tuple(evidence.candidates.values()) if tried else (),
        recorded_candidate=evidence.as_recorded if tried else None,
        findings=tuple(findings),
    )
