"""cache.staircase: whole segments cached that were too small for what came later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.advice import settings_advice, worth_a_setting
from tenure.diagnoses.finding import Finding, Severity
from tenure.diagnoses.growing import code_of
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_UNUSED = 0.15  # of peak reserved, above peak live; below, caching costs what it costs
LEAST_SHARE = 0.05  # of reserved
LEAST_BYTES = 64 << 20
DISTINCT_SIZES = 4  # of one line's requests, above which sizes vary


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if much is cached whole at the peak although requests keep coming.

    Under elastic rules whole chunks go where requests need them, whatever their sizes.
    """
    if evidence.elastic:
        return ()
    split, live = evidence.split, evidence.recorded.peak.allocated
    whole = split.whole.bytes
    if not len(evidence.trace.events) or split.reserved - live < LEAST_UNUSED * split.reserved:
        return ()
    if whole < max(LEAST_BYTES, LEAST_SHARE * split.reserved):
        return ()
    varying = varying_site(evidence)
    advice = settings_advice(evidence)
    if varying is None and not advice:
        return ()
    site, name = varying or (-1, "")
    wrong = worth_a_setting(advice)
    title = (
        f"{format_bytes(split.reserved)} reserved for {format_bytes(live)} of live tensors at the "
        f"peak ({split.reserved / max(live, 1):.2f} x)"
    )
    if not wrong:
        title = (
            f"{format_bytes(whole)} is cached in whole segments, too small for what came next; "
            "PyTorch returns it under pressure"
        )
    return (
        Finding(
            "cache.staircase",
            Severity.WARNING if wrong else Severity.NORMAL,
            whole,
            title,
            tuple(_evidence(evidence, name)),
            advice,
            because_of=_cause(evidence, site),
        ),
    )


def _cause(evidence: Evidence, site: int) -> str | None:
    """A tensor that is made anew, larger each time, outgrows the cache by itself."""
    for growth in evidence.growths:
        made_larger = any(s.replaced and site in {s.site, -1} for s in growth.sites)
        if made_larger or not evidence.trace.has_stacks:
            return code_of(growth)
    return None


def _evidence(evidence: Evidence, varying: str) -> list[str]:
    whole = evidence.split.whole
    lines = [
        (
            f"{format_bytes(whole.bytes)} in {whole.blocks:,} whole segments or chunks is cached "
            "and unused at that moment; under pressure PyTorch returns it, and empty_cache() would"
        ),
        (
            f"sizes vary from request to request, for example at {varying}: each larger one "
            "outgrew the cached segments"
            if varying
            else "what was cached did not fit what was asked for next"
        ),
    ]
    smallest = evidence.as_recorded.smallest_capacity
    lines.append(
        f"it is not yet a problem where the card has more than {format_bytes(smallest)}: that much "
        "the run needs with its settings as they are"
    )
    return lines


def varying_site(evidence: Evidence) -> tuple[int, str] | None:
    """The line with most bytes among those whose large requests come in many sizes."""
    allocations = evidence.trace.allocations
    large = np.flatnonzero((allocations.requested > 1 << 20) & (allocations.born >= 0))
    if not len(large):
        return None
    sites = evidence.sites.of_allocation[large]
    size = allocations.requested[large]
    totals = np.bincount(sites, weights=size)
    totals[0] = 0  # without frames there is no line to name
    for site in np.argsort(-totals)[:8].tolist():
        if totals[site] and len(np.unique(size[sites == site])) >= DISTINCT_SIZES:
            return site, evidence.label_of_site(site)
    return None
