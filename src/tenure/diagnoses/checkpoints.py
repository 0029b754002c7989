"""holder.checkpoint: what was loaded from a file lives on beside the model it was copied into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.lifetimes import ORDER, Category, lifetimes
from tenure.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.diagnoses.evidence import Evidence
    from tenure.traces import Trace

LOADERS = ("/torch/serialization.py", "/safetensors/torch.py")
MODULES = "/torch/nn/"
AT_WORK = [ORDER.index(c) for c in (Category.ACTIVATIONS, Category.BACKWARD, Category.GRADIENTS)]
LEAST_BYTES = 32 << 20
LEAST_SHARE = 0.05  # of the live peak


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if loaded blocks have twins among the parameters while the model works."""
    trace, event = evidence.trace, evidence.recorded.peak_event.allocated
    if not trace.has_stacks:
        return ()
    loaded = _made_by(trace, LOADERS)
    if not loaded.any():
        return ()
    born, gone = lifetimes(trace)
    live = (born <= event) & (gone > event)
    if not (live & np.isin(evidence.category, AT_WORK)).any():
        return ()  # the peak is in the loading itself
    parameters = evidence.category == ORDER.index(Category.PARAMETERS)
    own = live & parameters & ~loaded & _made_by(trace, (MODULES,))
    kept = _with_twin(trace, np.flatnonzero(live & loaded), np.flatnonzero(own))
    total = int(trace.allocations.requested[kept].sum())
    peak = evidence.recorded.peak.allocated
    if total < max(LEAST_BYTES, LEAST_SHARE * peak):
        return ()
    return (_finding(evidence, kept, total, peak),)


def _made_by(trace: Trace, files: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which allocations have one of these files among their frames."""
    of_stack = np.zeros(len(trace.stacks) + 1, bool)  # last entry: no stack
    for stack in np.unique(trace.allocations.stack).tolist():
        if stack >= 0:
            frames = trace.stacks.frames(stack)
            of_stack[stack] = any(part in f.file for f in frames for part in files)
    return np.asarray(of_stack[trace.allocations.stack])


def _with_twin(
    trace: Trace, loaded: NDArray[np.int64], own: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of the loaded blocks those that pair off with a parameter of the same size, in order."""
    requested = trace.allocations.requested
    sizes, count = np.unique(requested[own], return_counts=True)
    left = dict(zip(sizes.tolist(), count.tolist(), strict=True))
    kept = []
    for number in loaded.tolist():
        size = int(requested[number])
        if left.get(size, 0):
            left[size] -= 1
            kept.append(number)
    return np.array(kept, np.int64)


def _finding(evidence: Evidence, kept: NDArray[np.int64], total: int, peak: int) -> Finding:
    line = evidence.label(int(kept[0]))
    return Finding(
        "holder.checkpoint",
        Severity.INFO,
        total,
        (
            f"{format_bytes(total)} loaded at {line} is alive at the live peak of "
            f"{format_bytes(peak)}, beside parameters of the same sizes"
        ),
        (
            f"{len(kept):,} blocks, each with a parameter of its size that was made elsewhere",
            (
                "if load_state_dict() copied them, they are not needed any more: del the "
                "checkpoint, or load it with map_location='cpu'"
            ),
            "if it is a second model that is in use, all is well",
        ),
        (
            Advice(
                "load checkpoints with map_location='cpu' (or mmap=True), and del them after "
                "load_state_dict()"
            ),
        ),
        Confidence.POSSIBLE,
    )
