"""trace.*: what the recording lacks, so that nobody reads more into it than it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.traces import Note
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_SHARE = 0.05  # of live bytes at the peak


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """The reader's notes, an overwritten ring, and live bytes without a line."""
    notes = [Finding(note.code, Severity.INFO, 0, note.text) for note in notes_of(evidence)]
    return (*_truncated(evidence), *notes, *_no_frames(evidence))


def notes_of(evidence: Evidence) -> tuple[Note, ...]:
    """The reader's notes; that it began late is left out where a better reason is known."""
    better = bool(_truncated(evidence)) or not len(evidence.trace.events)
    notes = tuple(n for n in evidence.trace.notes if not (better and n.code == "trace.late"))
    return (*notes, *_otherwise(evidence))


def _otherwise(evidence: Evidence) -> tuple[Note, ...]:
    """Elastic rules: that memory moved otherwise in the process, as far as it matters here."""
    replay = evidence.recorded
    recorded, ours = replay.recorded_reserved, replay.peak.reserved
    if not evidence.elastic or not len(evidence.trace.events) or recorded == ours:
        return ()
    return (
        Note(
            "trace.ambiguous",
            f"peak reserved is {format_bytes(recorded or 0)} in the record and "
            f"{format_bytes(ours)} in the replay that all below is taken from: elastic rules move "
            "what the GPU is done with, and when that was, or a limit that changed, is not in the "
            "record",
        ),
    )


def _truncated(evidence: Evidence) -> tuple[Finding, ...]:
    """Blocks from before the first event that have stacks: recording was on when they were made."""
    allocations = evidence.trace.allocations
    before = slice(0, allocations.before)
    known = int((allocations.stack[before] >= 0).sum())
    events = len(evidence.trace.events)
    if not known or not events:
        return ()
    return (
        Finding(
            "trace.truncated",
            Severity.INFO,
            0,
            (
                f"the recording's beginning is lost: the ring kept the last {events:,} events and "
                "overwrote those before"
            ),
            (
                (
                    f"{known:,} blocks that were live before the first event have stacks, so "
                    "history was being recorded when they were made"
                ),
                (
                    "peaks, growth and categories below are those of the events that are left; the "
                    "run's own peak may have been higher"
                ),
            ),
            (
                Advice(
                    "record with a larger max_entries "
                    "(torch.cuda.memory._record_memory_history(max_entries=1_000_000)), or start "
                    "later and dump sooner"
                ),
            ),
            Confidence.MEASURED,
        ),
    )


def _no_frames(evidence: Evidence) -> tuple[Finding, ...]:
    """Allocations of autograd's own threads, which Python stacks do not reach."""
    trace = evidence.trace
    if not trace.has_stacks:
        return ()
    layout = evidence.at_live_peak
    numbers = layout.allocation[(layout.state == 1) & (layout.allocation >= 0)]
    size = layout.size[(layout.state == 1) & (layout.allocation >= 0)]
    nameless = (trace.allocations.stack < 0) & (trace.forward_stack < 0)
    silent = nameless[numbers]
    held = int(size[silent].sum())
    if held < LEAST_SHARE * max(evidence.recorded.peak.allocated, 1):
        return ()
    all_silent = nameless & (trace.allocations.born >= 0)
    made = int(all_silent.sum())
    named = int((evidence.forward[all_silent] >= 0).sum())
    old = int(np.sum(trace.allocations.born[numbers[silent]] < 0))
    lines = [
        (
            f"{made:,} allocations in the recording have no frames; {named:,} of them are told as "
            "'backward of' the forward line whose saved tensors are freed next (inferred)"
        )
    ]
    if old:
        lines.append(f"{old:,} of the blocks at the peak were made before the recording began")
    return (
        Finding(
            "trace.no_frames",
            Severity.INFO,
            held,
            (
                f"{format_bytes(held)} of the live peak ({int(silent.sum()):,} blocks) has no "
                "Python frames: made by autograd's own threads, in backward"
            ),
            tuple(lines),
            (Advice("record with stacks='all' to see the C++ frames of backward"),),
            Confidence.MEASURED,
        ),
    )
