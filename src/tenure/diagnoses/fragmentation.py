"""fragmentation.* and cache.staircase: much more reserved than live, and why."""

from __future__ import annotations

import numpy as np

from tenure.diagnoses.advice import settings_advice
from tenure.diagnoses.evidence import Evidence
from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.diagnoses.split import pins
from tenure.units import format_bytes

LEAST_SHARE = 0.05  # of reserved; below, caching costs what caching costs
LEAST_BYTES = 16 << 20
DISTINCT_SIZES = 4  # of one line's requests, above which sizes vary


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings about bytes that are reserved, cached, and of no use to the requests that came."""
    if not len(evidence.trace.events):
        return ()
    split = evidence.split
    found = []
    if _matters(evidence, split.whole.bytes):
        found.append(_staircase(evidence))
    if _matters(evidence, split.remainders.bytes):
        found.append(_remainders(evidence))
    return tuple(finding for finding in found if finding)


def _matters(evidence: Evidence, cached: int) -> bool:
    return cached >= max(LEAST_BYTES, LEAST_SHARE * evidence.split.reserved)


def _ratio(evidence: Evidence) -> str:
    reserved, live = evidence.split.reserved, evidence.recorded.peak.allocated
    return (
        f"{format_bytes(reserved)} reserved for {format_bytes(live)} of live tensors at the peak "
        f"({reserved / max(live, 1):.2f} x)"
    )


def _severity(advice: tuple[Advice, ...]) -> Severity:
    return Severity.WARNING if advice else Severity.NORMAL


def _staircase(evidence: Evidence) -> Finding | None:
    """Whole segments cached: earlier ones were too small for what came later."""
    split = evidence.split
    varying = varying_site(evidence)
    advice = settings_advice(evidence)
    if varying is None and not advice:
        return None
    why = (
        f"sizes vary: {varying} asked for many different sizes, and each larger one outgrew the "
        "cached segments"
        if varying
        else "what was cached did not fit what was asked for next"
    )
    lines = [
        f"{format_bytes(split.whole.bytes)} in {split.whole.blocks:,} whole segments or chunks is "
        "cached and unused at that moment; under pressure PyTorch returns it",
        why,
    ]
    return Finding(
        "cache.staircase", _severity(advice), split.whole.bytes, _ratio(evidence), tuple(lines), advice
    )


def varying_site(evidence: Evidence) -> str | None:
    """The line with most bytes among those whose large requests come in many sizes."""
    trace = evidence.trace
    large = np.flatnonzero(
        (trace.allocations.requested > 1 << 20) & (trace.allocations.born >= 0)
    )
    if not len(large):
        return None
    sites = evidence.sites.of_allocation[large]
    size = trace.allocations.requested[large]
    totals = np.bincount(sites, weights=size)
    for site in np.argsort(-totals)[:8].tolist():
        if len(np.unique(size[sites == site])) >= DISTINCT_SIZES:
            return evidence.sites.table[site].label
    return None


def _remainders(evidence: Evidence) -> Finding:
    """Cached bytes beside live blocks."""
    split, layout = evidence.split, evidence.at_reserved_peak
    in_arenas = bool(layout.in_arena.any())
    code = "fragmentation.holes" if in_arenas else "fragmentation.remainders"
    what = "holes between live blocks of expandable segments" if in_arenas else "remainders"
    advice = settings_advice(evidence)
    lines = [
        f"{format_bytes(split.remainders.bytes)} in {split.remainders.blocks:,} {what}, each pinned "
        "by a live neighbour: PyTorch cannot return it, and only smaller requests can use it"
    ]
    at = evidence.recorded.peak_event.reserved
    for pin in pins(layout)[:3]:
        number = int(layout.allocation[pin.row])
        born = int(evidence.trace.allocations.born[number])
        age = "since before the recording" if born < 0 else f"for {at - born:,} events"
        lines.append(
            f"    {format_bytes(pin.pinned)} pinned by {format_bytes(int(layout.size[pin.row]))} of "
            f"{evidence.label(number)}, alive {age}"
        )
    return Finding(
        code, _severity(advice), split.remainders.bytes, _ratio(evidence), tuple(lines), advice
    )
