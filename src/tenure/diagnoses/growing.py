"""growth: live memory that rises every step and does not level off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.lifetimes import ORDER, Category
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.lifetimes import GrowingSite


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if live memory grows to the end of the recording."""
    growth = evidence.growth
    if growth is None:
        return ()
    card = evidence.capacity or 24 << 30
    left = max(card - growth.live_at_last, 0) // growth.bytes_per_step
    lines = [_site_line(evidence, site, growth.per) for site in growth.sites[:4]]
    lines.append(
        f"at this rate a {format_bytes(card)} card is full after about {left:,} more {growth.per}s"
    )
    return (
        Finding(
            "growth",
            Severity.WARNING,
            growth.bytes_per_step * growth.steps,
            f"live memory grows {format_bytes(growth.bytes_per_step)} every {growth.per} and does "
            f"not level off ({growth.steps} {growth.per}s)",
            tuple(lines),
            (
                Advice(
                    "find what keeps it: a list that collects outputs, a loss summed without "
                    ".item() or .detach(), retain_graph, a hook or an exception that holds tensors"
                ),
            ),
        ),
    )


def _site_line(evidence: Evidence, site: GrowingSite, per: str) -> str:
    label = evidence.sites.table[site.site].label
    category = _category(evidence, site)
    return (
        f"    {format_bytes(site.bytes_per_step)} a {per}  {category} of {label}: "
        f"{site.blocks:,} blocks, {format_bytes(site.held)} held at the last {per}"
    )


def _category(evidence: Evidence, site: GrowingSite) -> str:
    mine = evidence.category[evidence.sites.of_allocation == site.site]
    found = ORDER[int(mine[-1])] if len(mine) else Category.UNKNOWN
    return "bytes" if found is Category.UNKNOWN else found.value
