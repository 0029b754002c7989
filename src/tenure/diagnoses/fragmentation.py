"""fragmentation.* and cache.staircase: much more reserved than live, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tenure.diagnoses.advice import settings_advice
from tenure.diagnoses.evidence import Evidence
from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.diagnoses.split import pins
from tenure.units import format_bytes

LEAST_UNUSED = 0.15  # of peak reserved, above peak live; below, caching costs what it costs
LEAST_SHARE = 0.05  # of reserved, for one kind of cached bytes
LEAST_BYTES = 16 << 20
DISTINCT_SIZES = 4  # of one line's requests, above which sizes vary


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings about bytes that are reserved, cached, and of no use to the requests that came."""
    if not len(evidence.trace.events):
        return ()
    split = evidence.split
    if split.reserved - evidence.recorded.peak.allocated < LEAST_UNUSED * split.reserved:
        return ()
    found = []
    if _matters(evidence, split.whole.bytes):
        found.append(_staircase(evidence))
    if _matters(evidence, split.remainders.bytes):
        found.append(_remainders(evidence))
    kept = sorted((finding for finding in found if finding), key=lambda f: -f.bytes)
    if kept:  # the larger part speaks for the whole
        kept[0] = replace(kept[0], title=_ratio(evidence))
    return tuple(kept)


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
        f"sizes vary from request to request, for example at {varying}: each larger one outgrew "
        "the cached segments"
        if varying
        else "what was cached did not fit what was asked for next"
    )
    title = f"{format_bytes(split.whole.bytes)} is cached in whole segments that did not fit"
    lines = [
        (
            f"{format_bytes(split.whole.bytes)} in {split.whole.blocks:,} whole segments or chunks "
            "is cached and unused at that moment; under pressure PyTorch returns it"
        ),
        why,
    ]
    return Finding(
        "cache.staircase", _severity(advice), split.whole.bytes, title, tuple(lines), advice
    )


def varying_site(evidence: Evidence) -> str | None:
    """The line with most bytes among those whose large requests come in many sizes."""
    trace = evidence.trace
    large = np.flatnonzero((trace.allocations.requested > 1 << 20) & (trace.allocations.born >= 0))
    if not len(large):
        return None
    sites = evidence.sites.of_allocation[large]
    size = trace.allocations.requested[large]
    totals = np.bincount(sites, weights=size)
    totals[0] = 0  # without frames there is no line to name
    for site in np.argsort(-totals)[:8].tolist():
        if totals[site] and len(np.unique(size[sites == site])) >= DISTINCT_SIZES:
            return evidence.label_of_site(site)
    return None


def _remainders(evidence: Evidence) -> Finding:
    """Cached bytes beside live blocks."""
    split, layout = evidence.split, evidence.at_reserved_peak
    in_arenas = bool(layout.in_arena.any())
    code = "fragmentation.holes" if in_arenas else "fragmentation.remainders"
    what = "holes between live blocks of expandable segments" if in_arenas else "remainders"
    advice = settings_advice(evidence)
    title = f"{format_bytes(split.remainders.bytes)} is cached beside live blocks, which pin it"
    lines = [
        (
            f"{format_bytes(split.remainders.bytes)} in {split.remainders.blocks:,} {what}, each "
            "pinned by a live neighbour: PyTorch cannot return it, and only smaller requests can "
            "use it"
        )
    ]
    at = evidence.recorded.peak_event.reserved
    for pin in pins(layout)[:3]:
        number = int(layout.allocation[pin.row])
        born = int(evidence.trace.allocations.born[number])
        age = "since before the recording" if born < 0 else f"for {at - born:,} events"
        lines.append(
            f"    {format_bytes(pin.pinned)} pinned by {format_bytes(int(layout.size[pin.row]))} "
            f"of {evidence.label(number)}, alive {age}"
        )
    return Finding(code, _severity(advice), split.remainders.bytes, title, tuple(lines), advice)
