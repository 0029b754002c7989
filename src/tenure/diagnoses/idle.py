"""cache.idle: whole segments that nothing has used for a long time, and nothing needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.traces import BlockState
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_SHARE = 0.2  # of what is reserved at the end
LEAST_BYTES = 64 << 20
LONG = 0.5  # of the recording's events, without a use
FEWEST_EVENTS = 50  # a shorter recording shows no phases


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if much is cached whole at the end and was last used long before."""
    trace = evidence.trace
    if len(trace.events) < FEWEST_EVENTS or not len(trace.end.segments.address):
        return ()
    idle, last = idle_segments(evidence)
    reserved = evidence.recorded.end.reserved
    total = int(trace.end.segments.size[idle].sum())
    if total < max(LEAST_BYTES, LEAST_SHARE * reserved):
        return ()
    biggest = evidence.recorded.peak.allocated - evidence.recorded.end.allocated
    return (
        Finding(
            "cache.idle",
            Severity.NORMAL,
            total,
            (
                f"{format_bytes(total)} in {int(idle.sum()):,} whole segments is cached and has "
                f"not been used since event {last:,} of {len(trace.events):,}"
            ),
            (
                _why_kept(evidence),
                f"{format_bytes(max(biggest, 0))} less is live at the end than at the live peak",
            ),
            (
                Advice(
                    "if another process, NCCL or another library needs the memory, call "
                    "torch.cuda.empty_cache() once where that phase ends; otherwise leave it"
                ),
            ),
            Confidence.MEASURED,
        ),
    )


def _why_kept(evidence: Evidence) -> str:
    if evidence.elastic:
        return (
            "a larger phase before needed it; tenure keeps it in case it comes back, and moves it "
            "to where memory is needed when it runs short in this process"
        )
    return (
        "a larger phase before needed it; PyTorch keeps it in case it comes back, and returns it "
        "by itself when memory runs short in this process"
    )


def idle_segments(evidence: Evidence) -> tuple[np.ndarray, int]:
    """Which segments of the end state were free for the last half of the recording or longer.

    Only of streams and pools that are still at work: others are stranded, which is another matter.

    Returns:
        A flag for each segment, and the last event that used any of them.
    """
    trace = evidence.trace
    segments, blocks = trace.end.segments, trace.end.blocks
    free = np.ones(len(segments.address), bool)
    free[blocks.segment[blocks.state != BlockState.CACHED]] = False
    order = np.argsort(segments.address, kind="stable")
    place = np.searchsorted(segments.address[order], trace.allocations.address, "right") - 1
    home = order[np.maximum(place, 0)]
    address = trace.allocations.address
    inside = (place >= 0) & (address < segments.address[home] + segments.size[home].astype("u8"))
    last_use = np.full(len(segments.address), -1, np.int64)
    # A block that came and went at an address before its segment did counts as a use: no harm.
    np.maximum.at(last_use, home[inside], trace.allocations.done[inside])
    since = int((1 - LONG) * len(trace.events))
    at_work = {u.stream for u in evidence.streams if u.last >= since}
    idle = free & (last_use >= 0) & (last_use < since) & ~segments.arena & (segments.pool == 0)
    idle &= np.isin(segments.stream, np.array(sorted(at_work), np.uint64))
    return idle, int(last_use[idle].max(initial=-1))
