"""pool.idle: memory free inside private pools, which nothing else can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.diagnoses.naming import pool_name
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.05  # of reserved


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if private pools cache much at the peak, for another reason than their order."""
    from tenure.diagnoses.graph_order import find_order

    split = evidence.split
    if split.private.bytes < max(LEAST_BYTES, LEAST_SHARE * split.reserved):
        return ()
    if find_order(evidence) is not None:
        return ()
    private = [p for p in split.pools if p.pool != (0, 0)]
    lines = [
        (
            f"    {pool_name(p.pool)}: {format_bytes(p.reserved)} reserved, "
            f"{format_bytes(p.live)} live, {format_bytes(p.whole + p.pinned)} free"
        )
        for p in private[:4]
    ]
    lines.append("PyTorch's own message counts these bytes as reserved but unallocated")
    advice = "capture with one pool, torch.cuda.graph(g, pool=torch.cuda.graph_pool_handle())"
    owners = {p.pool for p in private}
    return (
        Finding(
            "pool.idle",
            Severity.WARNING,
            split.private.bytes,
            (
                f"{format_bytes(split.private.bytes)} is free inside {len(owners)} private "
                f"{'pool' if len(owners) == 1 else 'pools'} (CUDA graphs, MemPools), where only "
                "they can use it"
            ),
            tuple(lines),
            (
                Advice(
                    f"{advice}, shared by graphs that never run at the same time and whose outputs "
                    "are copied out before the next one runs"
                ),
            )
            if len(owners) > 1
            else (),
        ),
    )
