"""normal.*: what looks like a leak or a loss and is neither; it stops here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Finding, Severity
from tenure.lifetimes import ORDER, Category
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Optimizer state and workspaces, where there are any at the live peak."""
    shares = {s.category: s for s in evidence.by_category(evidence.at_live_peak)}
    found = []
    state = shares.get(Category.OPTIMIZER_STATE)
    if state:
        found.append(
            Finding(
                "normal.optimizer_state",
                Severity.NORMAL,
                state.bytes,
                f"{format_bytes(state.bytes)} of optimizer state, born in the first step",
                (f"{state.blocks:,} blocks; it does not grow after that", _first_step(evidence)),
            )
        )
    workspace = shares.get(Category.WORKSPACE)
    if workspace:
        found.append(
            Finding(
                "normal.workspace",
                Severity.NORMAL,
                workspace.bytes,
                f"{format_bytes(workspace.bytes)} of cuBLAS workspaces, one for each handle "
                "and stream",
                (f"{workspace.blocks:,} blocks; kept for the life of the process",),
            )
        )
    return tuple(found)


def _first_step(evidence: Evidence) -> str:
    state = evidence.category == ORDER.index(Category.OPTIMIZER_STATE)
    born = evidence.trace.allocations.born[state]
    known = born[born >= 0]
    if not len(known):
        return "it was there before the recording began"
    return f"made between events {int(np.min(known)):,} and {int(np.max(known)):,}"
