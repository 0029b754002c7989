"""stream.stranded: memory cached by streams that no longer use it, or that take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.diagnoses.naming import some, stream_name
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.streams import StreamUsage

LEAST_BYTES = 32 << 20
LEAST_SHARE = 0.05  # of reserved, for what idle streams keep
TURNS_SHARE = 0.25  # of reserved, for what streams keep that take turns
DONE = 0.5  # of the recording's events, without a request


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding for all streams that keep memory from the others; elastic rules move it."""
    usages = evidence.streams
    if evidence.elastic or len(usages) < 2 or not len(evidence.trace.events):
        return ()
    idle = [u for u in usages if _is_done(evidence, u) and u.cached_end]
    kept = sum(u.cached_end for u in idle)
    reserved = evidence.recorded.peak.reserved
    if kept >= max(LEAST_BYTES, LEAST_SHARE * reserved):
        return (_idle(evidence, idle, kept),)
    return _turns(evidence)


def _is_done(evidence: Evidence, usage: StreamUsage) -> bool:
    return 0 <= usage.last <= DONE * len(evidence.trace.events)


def _idle(evidence: Evidence, idle: list[StreamUsage], kept: int) -> Finding:
    idle = sorted(idle, key=lambda u: -u.cached_end)
    names = some([stream_name(u.stream) for u in idle], 2)
    verb = "caches" if len(idle) == 1 else "cache"
    lines = [
        (
            f"{format_bytes(u.cached_end)} of {stream_name(u.stream)}, whose last request was "
            f"event {u.last:,} of {len(evidence.trace.events):,}"
        )
        for u in idle[:4]
    ]
    lines.append("cached blocks serve requests of their own stream only, under every setting")
    return Finding(
        "stream.stranded",
        Severity.WARNING,
        kept,
        f"{names} {verb} {format_bytes(kept)} that no other stream can use",
        tuple(lines),
        (
            Advice(
                "allocate on the stream that goes on working (make tensors before entering "
                "torch.cuda.stream), or call empty_cache() once after the side stream's phase"
            ),
        ),
    )


def _turns(evidence: Evidence) -> tuple[Finding, ...]:
    """Streams that never need their memory at the same time, but each keep their own."""
    split, reserved = evidence.split, evidence.recorded.peak.reserved
    others = split.other_streams.bytes
    alone = sum(u.live_peak + u.pending_peak for u in evidence.streams)
    together = evidence.recorded.peak.active
    if others < max(LEAST_BYTES, TURNS_SHARE * reserved) or alone < 1.5 * together:
        return ()
    lines = [
        (
            f"{format_bytes(u.reserved_peak)} reserved by {stream_name(u.stream)}, at most "
            f"{format_bytes(u.live_peak)} live"
        )
        for u in evidence.streams[:4]
    ]
    lines.append(
        f"together they never need more than {format_bytes(together)}, but cached blocks serve "
        "requests of their own stream only"
    )
    return (
        Finding(
            "stream.stranded",
            Severity.WARNING,
            others,
            (
                f"{len(evidence.streams)} streams take turns and each keeps its own cache: "
                f"{format_bytes(others)} of it serves nobody at the peak"
            ),
            tuple(lines),
            (Advice("use fewer streams, or allocate on one and only compute on the others"),),
        ),
    )
