"""pool.graph_order: captures from small to large leave a pool that holds the sum of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine
from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.diagnoses.naming import pool_name
from tenure.settings import engine_settings
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

LEAST_BYTES = 16 << 20
FEWEST = 3  # captures in one pool
GAIN = 0.8  # of what the pool reserves, below which another order is worth it


@dataclass(frozen=True)
class Order:
    """One private pool whose captures would fit in less, made in another order.

    Attributes:
        pool: Index into the trace's pools.
        captures: How many were told apart.
        as_recorded: Bytes that the pool reserves when they are made in the order recorded.
        largest_first: Bytes with the largest first.
    """

    pool: int
    captures: int
    as_recorded: int
    largest_first: int


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if a pool would hold much less with its largest capture first."""
    order = find_order(evidence)
    if order is None:
        return ()
    pool = evidence.trace.pools[order.pool]
    saved = order.as_recorded - order.largest_first
    return (
        Finding(
            "pool.graph_order",
            Severity.WARNING,
            saved,
            (
                f"{pool_name(pool)} holds {format_bytes(order.as_recorded)} for graphs captured "
                f"from small to large; largest first it would hold "
                f"{format_bytes(order.largest_first)}"
            ),
            (
                (
                    f"{order.captures} captures: each one that needed more than those before it "
                    "got new segments, and a private pool never gives its segments back while a "
                    "graph lives"
                ),
                (
                    "both figures are replays of the pool's requests alone, in the order recorded "
                    "and with the largest capture first"
                ),
            ),
            (Advice("capture the largest shape first"),),
            Confidence.INFERRED,
        ),
    )


def find_order(evidence: Evidence) -> Order | None:
    """The pool that gains most, or None."""
    private = np.unique(evidence.trace.events.pool)
    found = [o for o in (_of_pool(evidence, int(p)) for p in private if p > 0) if o is not None]
    return max(found, key=lambda o: o.as_recorded - o.largest_first, default=None)


def _of_pool(evidence: Evidence, pool: int) -> Order | None:
    captures = _captures(evidence, pool)
    if len(captures) < FEWEST:
        return None
    recorded = _reserved(evidence, captures)
    ordered = sorted(captures, key=lambda c: -_most_live(evidence, c))
    best = _reserved(evidence, ordered)
    if best > GAIN * recorded or recorded - best < LEAST_BYTES:
        return None
    return Order(pool, len(captures), recorded, best)


def _captures(evidence: Evidence, pool: int) -> list[list[int]]:
    """The pool's allocations by capture: between two captures few or none are live.

    What stays live to the end (a graph's outputs) is part of the capture that made it.
    """
    trace = evidence.trace
    mine = np.flatnonzero((trace.events.pool == pool) & (trace.events.action == 0))
    numbers = trace.events.allocation[mine]
    freed = trace.allocations.freed[numbers]
    passing = freed >= 0
    groups: list[list[int]] = []
    open_until = -1
    for number, event, end, goes in zip(
        numbers.tolist(), mine.tolist(), freed.tolist(), passing.tolist(), strict=True
    ):
        if not groups or (event > open_until and goes):
            groups.append([])
        groups[-1].append(number)
        if goes:
            open_until = max(open_until, end)
    return groups


def _changes(evidence: Evidence, capture: list[int]) -> list[tuple[int, int, bool]]:
    """(event, allocation, whether it is freed) of a capture, in order."""
    a = evidence.trace.allocations
    births = [(int(a.born[n]), n, False) for n in capture]
    deaths = [(int(a.freed[n]), n, True) for n in capture if a.freed[n] >= 0]
    return sorted(births + deaths)


def _most_live(evidence: Evidence, capture: list[int]) -> int:
    live = most = 0
    for _, number, freed in _changes(evidence, capture):
        size = int(evidence.trace.allocations.requested[number])
        live += -size if freed else size
        most = max(most, live)
    return most


def _reserved(evidence: Evidence, captures: list[list[int]]) -> int:
    """Bytes that a fresh pool reserves when the captures are made in this order."""
    a = evidence.trace.allocations
    allocator = _engine.Allocator(engine_settings(evidence.trace.settings), _engine.VirtualDevice())
    address: dict[int, int] = {}
    for capture in captures:
        for _, number, freed in _changes(evidence, capture):
            if freed:
                allocator.free(address.pop(number))
            else:
                address[number] = allocator.allocate(
                    int(a.requested[number]), int(a.stream[number])
                )
    return int(allocator.statistics()["reserved_bytes.all.current"])
