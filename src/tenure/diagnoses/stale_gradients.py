"""holder.gradients: gradients of the step before are alive while the next forward pass peaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.lifetimes import ORDER, Category, block_sizes, lifetimes
from tenure.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.diagnoses.evidence import Evidence
    from tenure.lifetimes import Steps
    from tenure.traces import Trace

    Ints = NDArray[np.int64]

FEWEST_STEPS = 4
LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.05  # of the live peak
MOST_SPANS = 2_000_000  # gradients times the steps that they live through


@dataclass(frozen=True)
class _Spans:
    """Stretches in which a gradient is held, but not needed: one for each step it lives into.

    Attributes:
        number: The allocation.
        begin: First event after the optimizer's step.
        end: The event at which it is freed, or at the earliest made anew.
    """

    number: Ints
    begin: Ints
    end: Ints


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if dropping gradients right after each step would lower the live peak."""
    trace, steps = evidence.trace, evidence.steps
    if steps is None or len(steps) < FEWEST_STEPS or not trace.has_stacks or evidence.growths:
        return ()
    stale = _outliving(evidence, steps)
    spans = _spans(trace, steps, stale) if len(stale) else None
    if spans is None:
        return ()
    peak = evidence.recorded.peak.allocated
    after = _peak_without(trace, evidence.allocated, spans)
    if peak - after < max(LEAST_BYTES, LEAST_SHARE * peak):
        return ()
    return (_finding(evidence, spans, peak, after),)


def _outliving(evidence: Evidence, steps: Steps) -> Ints:
    """Gradients that autograd made and that outlive the optimizer step that used them."""
    trace = evidence.trace
    born, gone = lifetimes(trace)
    mine = (evidence.category == ORDER.index(Category.GRADIENTS)) & (born >= 0)
    mine &= trace.allocations.stack < 0
    used = np.searchsorted(steps.begin, born, "left")
    mine &= used < len(steps)
    return np.flatnonzero(mine & (gone > steps.end[np.minimum(used, len(steps) - 1)]))


def _spans(trace: Trace, steps: Steps, stale: Ints) -> _Spans | None:
    """From each step that used them to where they are freed or may be made anew.

    A gradient that stays is added to: the new one is made beside it, of the same size. Up to the
    first request of that size by autograd's threads nobody needs the old one.
    """
    born, gone = lifetimes(trace)
    used = np.searchsorted(steps.begin, born[stale], "left")
    into = np.searchsorted(steps.end, gone[stale], "left") - used  # steps that it lives into
    if int(into.sum()) > MOST_SPANS:
        return None
    number = np.repeat(stale, into)
    of_gradient = np.arange(len(number)) - np.repeat(np.cumsum(into) - into, into)
    step = np.repeat(used, into) + of_gradient
    begin = steps.end[step]
    events = len(trace.events)
    until = np.append(steps.end, events)[step + 1]
    end = np.minimum(np.minimum(gone[number], until), _next_made(trace, number, begin))
    kept = end > begin
    return _Spans(number[kept], begin[kept], end[kept])


def _next_made(trace: Trace, number: Ints, begin: Ints) -> Ints:
    """The first event at or after `begin` at which autograd makes a block of the same size."""
    allocations, events = trace.allocations, len(trace.events)
    silent = np.flatnonzero((allocations.stack < 0) & (allocations.born >= 0))
    sizes = np.unique(allocations.requested[silent])
    key = np.searchsorted(sizes, allocations.requested[silent]) * (events + 1)
    key = np.sort(key + allocations.born[silent])
    asked = np.searchsorted(sizes, allocations.requested[number]) * (events + 1)
    place = np.searchsorted(key, asked + begin, "left")
    found = np.append(key, -1)[place] - asked
    return np.where((found >= begin) & (found <= events), found, events)


def _peak_without(trace: Trace, allocated: Ints, spans: _Spans) -> int:
    change = np.zeros(len(allocated) + 1, np.int64)
    size = block_sizes(trace)[spans.number]
    np.add.at(change, spans.begin, size)
    np.add.at(change, spans.end, -size)
    return int((allocated - np.cumsum(change)[:-1]).max())


def _finding(evidence: Evidence, spans: _Spans, peak: int, after: int) -> Finding:
    trace, event = evidence.trace, evidence.recorded.peak_event.allocated
    at_peak = np.unique(spans.number[(spans.begin <= event) & (event < spans.end)])
    held = int(block_sizes(trace)[at_peak].sum())
    freed = trace.allocations.freed[at_peak]
    lines = [
        (
            f"{len(at_peak):,} blocks ({format_bytes(held)}), made in backward, used by the "
            f"optimizer's step before, and alive at the live peak (event {event:,})"
        )
    ]
    freed = freed[freed >= 0]
    where = evidence.line_of_event(int(freed.min())) if len(freed) else ""
    if len(freed) < len(at_peak):
        lines.append("they are never freed: zero_grad(set_to_none=False) fills them with zeros")
    elif where:
        lines.append(f"freed at event {int(freed.min()):,} at {where}")
    lines.append(
        f"without them the live peak is {format_bytes(after)} or less, instead of "
        f"{format_bytes(peak)} (counted on this recording)"
    )
    return Finding(
        "holder.gradients",
        Severity.WARNING,
        peak - after,
        (
            f"{format_bytes(held)} of gradients of the step before are alive at the live peak of "
            f"{format_bytes(peak)}"
        ),
        tuple(lines),
        (
            Advice(
                "call optimizer.zero_grad() right after optimizer.step(), before the next forward "
                "pass, with set_to_none=True (the default)"
            ),
        ),
        Confidence.INFERRED,
    )
