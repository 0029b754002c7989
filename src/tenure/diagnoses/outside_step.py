"""outside.step: the peak is not in a training step but in what happens around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.lifetimes import block_sizes, lifetimes
from tenure.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.diagnoses.evidence import Evidence
    from tenure.lifetimes import Steps

FEWEST_STEPS = 4
ABOVE = 1.2  # times the usual peak of a step
LEAST_BYTES = 64 << 20  # above it
RARE = 0.25  # of the steps, in which the peak's lines occur
SITES_SHOWN = 4


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if lines that the usual step does not run through make the live peak."""
    steps, allocated = evidence.steps, evidence.allocated
    if steps is None or len(steps) < FEWEST_STEPS or not evidence.trace.has_stacks:
        return ()
    usual = _usual_peak(allocated, steps)
    event, peak = evidence.recorded.peak_event.allocated, evidence.recorded.peak.allocated
    if peak < max(ABOVE * usual, usual + LEAST_BYTES) or event < 0:
        return ()
    strange = _strange(evidence, steps, event)
    sizes = block_sizes(evidence.trace)[strange]
    total = int(sizes.sum())
    if total < (peak - usual) // 2:
        return ()
    return (_finding(evidence, steps, strange, peak, usual),)


def _usual_peak(allocated: NDArray[np.int64], steps: Steps) -> int:
    peaks = [
        int(allocated[a:b].max())
        for a, b in zip(steps.end[:-1].tolist(), steps.end[1:].tolist(), strict=True)
        if b > a
    ]
    return int(np.median(peaks)) if peaks else 0


def _strange(evidence: Evidence, steps: Steps, event: int) -> NDArray[np.int64]:
    """Allocations live at the event, made since the last step by lines that few steps run."""
    trace = evidence.trace
    born, gone = lifetimes(trace)
    here = int(np.searchsorted(steps.end, event, "right"))
    since = int(steps.end[here - 1]) if here else 0
    live = np.flatnonzero((born >= since) & (born <= event) & (gone > event))
    stack = trace.allocations.stack
    in_step = np.searchsorted(steps.end, born, "right")
    keep = []
    seen: dict[int, bool] = {}
    for number in live.tolist():
        mine = int(stack[number])
        if mine < 0:
            continue
        if mine not in seen:
            seen[mine] = len(np.unique(in_step[stack == mine])) <= RARE * (len(steps) + 1)
        if seen[mine]:
            keep.append(number)
    return np.array(keep, np.int64)


def _finding(
    evidence: Evidence, steps: Steps, strange: NDArray[np.int64], peak: int, usual: int
) -> Finding:
    event = evidence.recorded.peak_event.allocated
    here = int(np.searchsorted(steps.end, event, "right"))
    when = "before the first step" if here == 0 else f"after step {here:,}"
    totals: dict[str, int] = {}
    sizes = block_sizes(evidence.trace)
    for number in strange.tolist():
        label = evidence.label(number)
        totals[label] = totals.get(label, 0) + int(sizes[number])
    most = sorted(totals.items(), key=lambda item: -item[1])
    lines = [f"    {format_bytes(size)}  {label}" for label, size in most[:SITES_SHOWN]]
    lines.append(f"a usual step peaks at {format_bytes(usual)}, the run at event {event:,}, {when}")
    graph = _keeps_graph(evidence, strange)
    if graph:
        lines.append(
            "these activations stay until the result is dropped: gradients are enabled there"
        )
    return Finding(
        "outside.step",
        Severity.WARNING,
        peak - usual,
        (
            f"the peak of {format_bytes(peak)} is outside the training steps, which need at most "
            f"about {format_bytes(usual)}"
        ),
        tuple(lines),
        (
            Advice(
                "evaluate under torch.no_grad(), and in batches no larger than those of training"
                if graph
                else "do it in smaller parts, or drop what it makes before the next step begins"
            ),
        ),
        Confidence.INFERRED,
    )


def _keeps_graph(evidence: Evidence, strange: NDArray[np.int64]) -> bool:
    """Whether what several modules made is live together, as only a graph keeps it."""
    from tenure.lifetimes import ORDER, Category

    activations = ORDER.index(Category.ACTIVATIONS)
    mine = evidence.category[strange] == activations
    size = block_sizes(evidence.trace)[strange]
    return bool(mine.sum() >= 3 and size[mine].sum() > 0.5 * size.sum())
