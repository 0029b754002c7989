"""stream.pending and stream.stranded: memory that other streams wait for, or cannot use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.streams import StreamUsage

LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.05  # of reserved


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings about streams other than by fragmentation."""
    usages = evidence.streams
    floor = max(LEAST_BYTES, int(LEAST_SHARE * evidence.recorded.peak.reserved))
    pending = [_pending(u) for u in usages if u.pending_peak >= floor]
    stranded = [
        _stranded(evidence, u)
        for u in usages
        if len(usages) > 1 and _idle_bytes(evidence, u) >= floor
    ]
    return (*pending, *stranded)


def name(stream: int) -> str:
    """The stream as people know it."""
    return "the default stream" if stream == 0 else f"stream {stream:#x}"


def _pending(usage: StreamUsage) -> Finding:
    lines = [f"{usage.waited:,} frees waited for another stream (record_stream)"]
    if usage.longest_wait_us:
        lines.append(
            f"the longest for {usage.longest_wait_us / 1000:,.0f} ms: so far the host ran ahead of "
            "the GPU"
        )
    return Finding(
        "stream.pending",
        Severity.WARNING,
        usage.pending_peak,
        f"up to {format_bytes(usage.pending_peak)} of {name(usage.stream)} was freed but waited "
        "for other streams (active is larger than allocated by that)",
        tuple(lines),
        (
            Advice(
                "let the using stream be waited for (wait_stream, an event at the last use) "
                "before the tensor is freed, instead of record_stream; or keep the host from "
                "running ahead"
            ),
        ),
    )


def _idle_bytes(evidence: Evidence, usage: StreamUsage) -> int:
    """Cached to the end by a stream that asked for nothing in the last half of the recording."""
    if usage.last < 0 or usage.last > len(evidence.trace.events) // 2:
        return 0
    return usage.cached_end


def _stranded(evidence: Evidence, usage: StreamUsage) -> Finding:
    events = len(evidence.trace.events)
    return Finding(
        "stream.stranded",
        Severity.WARNING,
        usage.cached_end,
        f"{name(usage.stream)} caches {format_bytes(usage.cached_end)} that no other stream can "
        "use",
        (f"its last request was event {usage.last:,} of {events:,}",),
        (
            Advice(
                "allocate on the stream that goes on working, or call empty_cache() once after the "
                "side stream's phase"
            ),
        ),
    )
