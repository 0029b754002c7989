"""normal.*: what looks like a leak or a loss and is neither; it stops here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Confidence, Finding, Severity
from tenure.diagnoses.naming import some, stream_name
from tenure.lifetimes import ORDER, Category
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence, Share


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Optimizer state, workspaces and the device's floor, where the record has them."""
    shares = {s.category: s for s in evidence.by_category(evidence.at_live_peak)}
    found = []
    state = shares.get(Category.OPTIMIZER_STATE)
    if state:
        found.append(_state(evidence, state))
    workspace = shares.get(Category.WORKSPACE)
    if workspace:
        found.append(_workspace(evidence, workspace))
    return (*found, *_floor(evidence))


def _state(evidence: Evidence, state: Share) -> Finding:
    return Finding(
        "normal.optimizer_state",
        Severity.NORMAL,
        state.bytes,
        f"{format_bytes(state.bytes)} of optimizer state, born in the first step",
        (
            (
                f"{state.blocks:,} blocks, kept for the life of the optimizer; it does not grow "
                "after that, and the second step needs more than the first because of it"
            ),
            _born(evidence),
        ),
        confidence=Confidence.INFERRED,
    )


def _born(evidence: Evidence) -> str:
    state = evidence.category == ORDER.index(Category.OPTIMIZER_STATE)
    born = evidence.trace.allocations.born[state]
    known = born[born >= 0]
    if not len(known):
        return "it was there before the recording began"
    return f"made between events {int(np.min(known)):,} and {int(np.max(known)):,}"


def _workspace(evidence: Evidence, workspace: Share) -> Finding:
    mine = np.flatnonzero(evidence.category == ORDER.index(Category.WORKSPACE))
    streams = np.unique(evidence.trace.allocations.stream[mine])
    names = some([stream_name(int(s)) for s in streams])
    return Finding(
        "normal.workspace",
        Severity.NORMAL,
        workspace.bytes,
        (f"{format_bytes(workspace.bytes)} of cuBLAS workspaces, one for each handle and stream"),
        (
            (
                f"{workspace.blocks:,} blocks, on {names}; kept for the life of the process. Fewer "
                "streams, or CUBLAS_WORKSPACE_CONFIG, make it less"
            ),
        ),
        confidence=Confidence.INFERRED,
    )


def _floor(evidence: Evidence) -> tuple[Finding, ...]:
    """Nothing is left at the end: what a monitor still shows is not PyTorch's to give back."""
    end, peak = evidence.recorded.end, evidence.recorded.peak
    if not len(evidence.trace.events) or not peak.reserved or end.active:
        return ()
    if end.reserved == 0:
        text = "at the end nothing is live and nothing is cached: all of it went back to the driver"
    else:
        text = (
            f"at the end nothing is live; {format_bytes(end.reserved)} is cached, which "
            "empty_cache() would return"
        )
    return (
        Finding(
            "normal.floor",
            Severity.NORMAL,
            0,
            text,
            (
                (
                    "what nvidia-smi still shows for the process is the CUDA context, loaded "
                    "kernels and libraries, some hundred MiB; it goes back when the process ends"
                ),
            ),
        ),
    )
