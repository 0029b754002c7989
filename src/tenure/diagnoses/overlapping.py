"""holder.overlap: a name still bound from the round before, while the next one is at its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.diagnoses.naming import at, kind
from tenure.lifetimes import ORDER
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.lifetimes import Rounds

LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.15  # of the live peak
FEWEST_ROUNDS = 3
USUALLY = 0.6  # of the rounds, in which the old one lives on beside the new one


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if what a loop makes outlives its round, each time, and counts at the peak."""
    overlap, rounds = evidence.overlap, evidence.rounds
    peak = evidence.recorded.peak.allocated
    if overlap is None or rounds is None or len(rounds) < FEWEST_ROUNDS:
        return ()
    if overlap.remade < max(LEAST_BYTES, LEAST_SHARE * peak) or evidence.growths:
        return ()
    numbers = [n for n in overlap.allocations if _takes_turns(evidence, rounds, n)]
    size = evidence.trace.allocations.requested
    total = sum(int(size[n]) for n in numbers)
    if total < max(LEAST_BYTES, LEAST_SHARE * peak):
        return ()
    here = rounds.first_number + overlap.round
    lines = [
        (
            f"    {format_bytes(int(size[n]))}  {kind(ORDER[int(evidence.category[n])].value)} of "
            f"{evidence.label(n)} at {at(int(evidence.trace.allocations.address[n]))}"
        )
        for n in numbers[:4]
    ]
    lines.append(
        f"made in {rounds.per} {here - 1:,}, freed in {rounds.per} {here:,} only after "
        "the new one was made: the name still held the old one"
    )
    return (
        Finding(
            "holder.overlap",
            Severity.WARNING,
            total,
            (
                f"{format_bytes(total)} of the live peak, {format_bytes(peak)}, is left over from "
                f"the {rounds.per} before"
            ),
            tuple(lines),
            (
                Advice(
                    "del the name (or move the loop's body into a function) at the end of the "
                    "loop, if the new value is not computed from the old one"
                ),
            ),
            Confidence.INFERRED,
        ),
    )


def _takes_turns(evidence: Evidence, rounds: Rounds, number: int) -> bool:
    """Whether its line makes one block a round, and frees the old one after the new one is made."""
    allocations = evidence.trace.allocations
    kind = allocations.stack == allocations.stack[number]
    if allocations.stack[number] < 0:
        kind &= allocations.requested == allocations.requested[number]
    mine = np.flatnonzero(kind & (allocations.born >= rounds.begin[0]))
    if not FEWEST_ROUNDS <= len(mine) <= len(rounds) + 1 or len(mine) < USUALLY * len(rounds):
        return False
    born, freed = allocations.born[mine], allocations.freed[mine]
    beside = (freed[:-1] > born[1:]) & (freed[:-1] >= 0)
    alone = beside[:-1] & (freed[:-2] < born[2:])
    return bool(alone.sum() >= USUALLY * len(alone))
