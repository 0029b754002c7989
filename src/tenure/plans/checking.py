"""Whether a plan is right, found out without the code that makes plans."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine
from tenure.plans.placement import UNIT, buffers_of

if TYPE_CHECKING:
    from tenure.plans.placement import Buffers, Plan
    from tenure.traces import Trace


class FaultKind(StrEnum):
    """The exact way in which a plan is wrong; the names of engine/plans/check_plan.hpp."""

    MISSING = "missing"
    SURPLUS = "surplus"
    WRONG_LIFE = "wrong_life"
    WRONG_SIZE = "wrong_size"
    MISALIGNED = "misaligned"
    OUT_OF_RANGE = "out_of_range"
    OVERLAP = "overlap"
    WRONG_BOUND = "wrong_bound"


@dataclass(frozen=True)
class Fault:
    """The first thing that is wrong with a plan.

    Attributes:
        kind: In which way.
        buffer: Which buffer, by allocation number; -1 if it is the whole. Of an overlap: the later.
        other: The buffer that it overlaps; -1 for other kinds.
        text: One sentence for people.
    """

    kind: FaultKind
    buffer: int
    other: int
    text: str


def check(plan: Plan, trace: Trace) -> Fault | None:
    """Holds a plan against the trace that it is meant for.

    Args:
        plan: Made, loaded, or put together by hand.
        trace: Says what has to be placed; nothing that the plan says about it is believed.

    Returns:
        The first fault, or None: every allocation has its place, at its size, for its whole life,
        inside the plan, and no two that are alive together share a byte.
    """
    return check_against(buffers_of(trace), plan)


def check_against(wanted: Buffers, plan: Plan) -> Fault | None:
    """Holds a plan against the buffers that it should place."""
    name, buffer, other = _engine.check_plan(
        wanted.columns,
        plan.buffers.columns,
        np.ascontiguousarray(plan.offsets, np.int64),
        size=plan.size,
        live_peak=plan.live_peak,
    )
    if name == "none":
        return None
    kind = FaultKind(name)
    return Fault(kind, buffer, other, _text(kind, buffer, other, wanted, plan))


def _text(kind: FaultKind, buffer: int, other: int, wanted: Buffers, plan: Plan) -> str:
    planned = plan.buffers
    if kind is FaultKind.MISSING:
        return f"allocation {buffer} has no place"
    if kind is FaultKind.SURPLUS:
        return f"it places {len(planned)} buffers where {len(wanted)} were allocated"
    if kind is FaultKind.WRONG_LIFE:
        return (
            f"allocation {buffer} lives from moment {wanted.begin[buffer]} to "
            f"{wanted.end[buffer]}, in the plan from {planned.begin[buffer]} to "
            f"{planned.end[buffer]}"
        )
    if kind is FaultKind.WRONG_SIZE:
        return (
            f"allocation {buffer} takes {wanted.size[buffer]} bytes, "
            f"in the plan {planned.size[buffer]}"
        )
    if kind is FaultKind.MISALIGNED:
        return f"allocation {buffer} at offset {plan.offsets[buffer]}, no multiple of {UNIT}"
    if kind is FaultKind.OUT_OF_RANGE:
        return (
            f"allocation {buffer} of {wanted.size[buffer]} bytes at offset {plan.offsets[buffer]} "
            f"is not inside the plan's {plan.size} bytes"
        )
    if kind is FaultKind.OVERLAP:
        low = max(int(plan.offsets[buffer]), int(plan.offsets[other]))
        return (
            f"allocations {other} and {buffer} are both alive at moment {wanted.begin[buffer]} and "
            f"share the byte at offset {low}"
        )
    return f"{plan.live_peak} bytes are not what is live at the peak"
