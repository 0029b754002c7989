"""pool.idle: memory cached in private pools, which nothing else can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Finding, Severity
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.05  # of reserved


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if private pools cache much at the peak."""
    split = evidence.split
    if split.private.bytes < max(LEAST_BYTES, LEAST_SHARE * split.reserved):
        return ()
    pools = sum(1 for pool in evidence.trace.pools if pool != (0, 0))
    return (
        Finding(
            "pool.idle",
            Severity.WARNING,
            split.private.bytes,
            f"{format_bytes(split.private.bytes)} is free inside {pools} private pools (CUDA "
            "graphs, MemPools), where only they can use it",
            ("PyTorch's own message counts these bytes as reserved but unallocated",),
        ),
    )
