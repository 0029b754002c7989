"""stream.pending and stream.late_event: memory that was freed but waits for another stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.diagnoses.naming import some, stream_name
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.streams import StreamUsage

LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.05  # of reserved
RUN_AHEAD = 3  # blocks waiting at a time, from which the host is ahead by rounds
LONG_US = 1_000  # a wait from which a single block waits for work, not for a launch


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """A finding for each stream whose frees wait long enough to matter."""
    floor = max(LEAST_BYTES, int(LEAST_SHARE * evidence.recorded.peak.reserved))
    return tuple(
        _late_event(evidence, usage)
        if usage.pending_blocks < RUN_AHEAD and usage.usual_wait_us >= LONG_US
        else _pending(evidence, usage)
        for usage in evidence.streams
        if usage.pending_peak >= floor
    )


def _pending(evidence: Evidence, usage: StreamUsage) -> Finding:
    lines = [
        (
            f"{usage.waited:,} frees waited for another stream (record_stream), up to "
            f"{usage.pending_blocks:,} of them at a time"
        )
    ]
    if usage.longest_wait_us:
        lines.append(
            f"the longest for {usage.longest_wait_us / 1000:,.0f} ms: so far the host ran ahead of "
            "the GPU"
        )
    lines += _whose(evidence, usage)
    peak = evidence.recorded.peak
    lines.append(
        f"active (live and pending) reached {format_bytes(peak.active)}, allocated (live) "
        f"{format_bytes(peak.allocated)}"
    )
    return Finding(
        "stream.pending",
        Severity.WARNING,
        usage.pending_peak,
        (
            f"up to {format_bytes(usage.pending_peak)} of {stream_name(usage.stream)} was freed "
            "but waited for other streams"
        ),
        tuple(lines),
        (
            Advice(
                "let the owning stream wait for the other one (wait_stream, or an event at the "
                "last use) before the tensor is freed, instead of record_stream"
            ),
            Advice("or keep the host from running ahead: synchronise on an event every few rounds"),
        ),
    )


def _late_event(evidence: Evidence, usage: StreamUsage) -> Finding:
    lines = [
        (
            f"{usage.waited:,} frees waited, at most {usage.pending_blocks} at a time, usually for "
            f"{usage.usual_wait_us / 1000:,.1f} ms: not run-ahead, but events that come late"
        ),
        (
            "record_stream takes its event when the tensor is freed, behind all that the other "
            "stream has queued by then, not behind the last use"
        ),
        *_whose(evidence, usage),
    ]
    return Finding(
        "stream.late_event",
        Severity.WARNING,
        usage.pending_peak,
        (
            f"{format_bytes(usage.pending_peak)} of {stream_name(usage.stream)} waits for work of "
            "another stream that does not use it"
        ),
        tuple(lines),
        (
            Advice(
                "record an event of your own right after the last use and let the owning stream "
                "wait for it, instead of record_stream"
            ),
        ),
        Confidence.INFERRED,
    )


def _whose(evidence: Evidence, usage: StreamUsage) -> list[str]:
    """The lines that made what was waiting at its peak."""
    trace, event = evidence.trace, usage.pending_at
    if event < 0 or not trace.has_stacks:
        return []
    a = trace.allocations
    gone = (a.done >= 0) & (a.done <= event)
    waiting = (a.stream == usage.stream) & (a.freed >= 0) & (a.freed <= event) & ~gone
    totals: dict[str, int] = {}
    for number in waiting.nonzero()[0].tolist():
        label = evidence.label(number)
        totals[label] = totals.get(label, 0) + int(a.requested[number])
    if not totals:
        return []
    most = sorted(totals.items(), key=lambda item: -item[1])
    named = [f"{format_bytes(size)} of {label}" for label, size in most]
    return [f"waiting at event {event:,}: {some(named, 3)}"]
