"""trace.*: what the recording lacks, so that nobody reads more into it than it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.lifetimes import NO_FRAMES
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_SHARE = 0.05  # of live bytes at the peak


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """The reader's notes, and live bytes without a line."""
    notes = [Finding(note.code, Severity.INFO, 0, note.text) for note in evidence.trace.notes]
    if not evidence.trace.has_stacks:
        return tuple(notes)
    shares = evidence.by_site(evidence.at_live_peak)
    silent = sum(s.bytes for s in shares if s.label == NO_FRAMES)
    blocks = sum(s.blocks for s in shares if s.label == NO_FRAMES)
    if silent < LEAST_SHARE * max(evidence.recorded.peak.allocated, 1):
        return tuple(notes)
    missing = Finding(
        "trace.no_frames",
        Severity.INFO,
        silent,
        f"{format_bytes(silent)} of the live peak ({blocks:,} blocks) has no Python frames: made "
        "by autograd's own threads, in backward",
        (),
        (Advice("record with stacks='all' to see the C++ frames of backward"),),
    )
    return (*notes, missing)
