"""setting.clash and setting.not_in_force: what was asked for and what holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Finding, Severity
from tenure.errors import UsageError
from tenure.settings import known_clashes, parse_alloc_conf

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

COMPARED = {
    "expandable_segments": "expandable_segments",
    "max_split_size": "max_split_size_mb",
    "garbage_collection_threshold": "garbage_collection_threshold",
    "roundup_power2_divisions": "roundup_power2_divisions",
}


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Settings of the recording that do nothing, or defeat each other; elastic rules have none."""
    if evidence.elastic:
        return ()
    settings = evidence.trace.settings
    if evidence.capacity is not None:
        settings = replace(settings, limit=evidence.capacity)
    clashes = [
        Finding("setting.clash", Severity.WARNING, 0, text) for text in known_clashes(settings)
    ]
    return (*clashes, *_not_in_force(evidence))


def _not_in_force(evidence: Evidence) -> tuple[Finding, ...]:
    settings = evidence.trace.settings
    if not settings.conf:
        return ()
    try:
        asked = parse_alloc_conf(settings.conf, torch_version=settings.torch_version)
    except UsageError:
        return ()
    different = [
        key for field, key in COMPARED.items() if getattr(asked, field) != getattr(settings, field)
    ]
    return tuple(
        Finding(
            "setting.not_in_force",
            Severity.WARNING,
            0,
            f"{key} was asked for ({settings.conf}) but another value was in force when the "
            "snapshot was written",
        )
        for key in different
    )
