"""From a trace to a plan."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine
from tenure.errors import TenureError, UsageError
from tenure.plans.checking import check_against
from tenure.plans.placement import Plan, Streams, buffers_of

if TYPE_CHECKING:
    from tenure.traces import Trace


def plan(trace: Trace, *, seconds: float = 2.0, streams_apart: bool = False) -> Plan:
    """Finds a place for each allocation of a trace, so that all together need little memory.

    First fit in several orders, then a search; it stops as soon as the result is within 0.2 % of
    the bound. The same trace gives the same plan, unless time runs out.

    Args:
        trace: What to place.
        seconds: How long it may look for a better one; the first order is always finished.
        streams_apart: Never let two streams use the same byte, at any time: needs no events, but
            more memory.

    Raises:
        BadInputError: An allocation ends before it begins, or its size cannot be.
        UsageError: `seconds` is not a time.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"cannot plan for {seconds} seconds; give 0 or more")
    start = time.perf_counter()
    buffers = buffers_of(trace)
    packed = _engine.pack_plan(buffers.columns, seconds=seconds, streams_apart=streams_apart)
    offsets = packed["offsets"]
    streams = Streams(
        count=len(np.unique(buffers.stream)),
        hand_overs=_engine.count_hand_overs(buffers.columns, offsets),
        apart=streams_apart,
    )
    made = Plan(
        live_peak=packed["live_peak"],
        size=packed["size"],
        buffers=buffers,
        offsets=offsets,
        checked=False,
        seconds=0.0,
        streams=streams,
        device=trace.device,
        events=len(trace.events),
    )
    fault = check_against(buffers, made)
    if fault is not None or (streams_apart and streams.hand_overs):
        what = fault.text if fault else "a byte is used by two streams"
        raise TenureError(f"the plan that was made is wrong: {what}")
    return replace(made, checked=True, seconds=time.perf_counter() - start)
