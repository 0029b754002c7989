"""Evidence into findings: every diagnosis in turn, what matters most first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.diagnoses import (
    checkpoints,
    churn,
    fragmentation,
    graph_order,
    growing,
    idle,
    idle_pools,
    normal,
    out_of_memory,
    outside_step,
    overlapping,
    pending,
    recording,
    retries,
    settings,
    staircase,
    stale_gradients,
    stranded,
)
from tenure.diagnoses.evidence import DEFAULT, ELASTIC, TRIED, Evidence, Progress, Share
from tenure.diagnoses.finding import Finding, Severity

if TYPE_CHECKING:
    from tenure.diagnoses.device import DeviceUse
    from tenure.diagnoses.split import Split
    from tenure.lifetimes import Rounds
    from tenure.replays import Candidate, Replay
    from tenure.streams import StreamUsage
    from tenure.traces import Trace

DIAGNOSES = (
    out_of_memory,
    growing,
    overlapping,
    stale_gradients,
    checkpoints,
    outside_step,
    fragmentation,
    staircase,
    pending,
    stranded,
    graph_order,
    idle_pools,
    churn,
    retries,
    settings,
    idle,
    normal,
    recording,
)
RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2, Severity.NORMAL: 3}
ABOUT_THE_RECORDING = 4


@dataclass(frozen=True)
class Explanation:
    """What `explain` has to say about one trace.

    Attributes:
        trace: What was explained.
        replay: The trace as replayed: as recorded, or under the capacity asked about.
        capacity: Limit in bytes that was asked about; None for none.
        complete: Whether the recording began empty and lacks nothing that limits the answer.
        missing: What it lacks, in sentences.
        split: Reserved bytes by meaning: just before the failure, if there was one, else when most
            was reserved.
        split_event: The event of that moment.
        device: What was on the device then; None where the record does not have it.
        by_site: Live bytes by line when most was allocated.
        by_category: The same by category.
        streams: Bytes per stream.
        rounds: Steps or other repetitions; None if the recording shows none.
        flat_since: The round, as people count, from which on live memory is level; None if none.
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
    split_event: int
    device: DeviceUse | None
    by_site: tuple[Share, ...]
    by_category: tuple[Share, ...]
    streams: tuple[StreamUsage, ...]
    rounds: Rounds | None
    flat_since: int | None
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
    findings = find_all(evidence)
    tried = bool(len(trace.events))
    return Explanation(
        trace=trace,
        replay=evidence.replay,
        capacity=capacity,
        complete=trace.starts_empty and not trace.notes,
        missing=tuple(note.text for note in recording.notes_of(evidence)),
        split=evidence.telling[0],
        split_event=evidence.telling[1],
        device=evidence.device,
        by_site=evidence.by_site(evidence.at_live_peak),
        by_category=evidence.by_category(evidence.at_live_peak),
        streams=evidence.streams,
        rounds=evidence.rounds,
        flat_since=evidence.flat_since,
        candidates=_worth_showing(evidence, findings) if tried else (),
        recorded_candidate=evidence.as_recorded if tried else None,
        findings=tuple(findings),
    )


def find_all(evidence: Evidence) -> list[Finding]:
    """Every finding, what matters most first."""
    return _in_order([f for diagnosis in DIAGNOSES for f in diagnosis.diagnose(evidence)])


def _worth_showing(evidence: Evidence, findings: list[Finding]) -> tuple[Candidate, ...]:
    """The settings tried; those that were derived from the trace only where they are advised."""
    advised = {advice.conf for finding in findings for advice in finding.advice}
    usual = {evidence.setting, DEFAULT, ELASTIC, *TRIED}
    tried = evidence.candidates.items()
    return tuple(candidate for name, candidate in tried if name in usual or name in advised)


def _in_order(findings: list[Finding]) -> list[Finding]:
    """By severity, then by bytes; what follows from another finding after that one."""
    largest = {f.code: f.bytes for f in sorted(findings, key=lambda f: f.bytes)}

    def weight(finding: Finding) -> tuple[int, int, bool]:
        size = finding.bytes
        if finding.because_of in largest:
            size = min(size, largest[finding.because_of])
        recording = finding.code.startswith("trace.")
        rank = ABOUT_THE_RECORDING if recording else RANK[finding.severity]
        return rank, -size, finding.because_of in largest

    return sorted(findings, key=weight)
