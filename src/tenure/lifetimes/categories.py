"""What an allocation is for, inferred from who made it, when, and how long it lived.

A snapshot does not say what a tensor is. These are inferences, and are called so in reports:
stacks decide where there are any; optimizer annotations and lifetimes decide the rest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.steps import Steps
    from tenure.traces import Frame, Trace


class Category(StrEnum):
    """What live bytes are for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    BACKWARD = "backward"
    WORKSPACE = "workspace"
    INPUTS = "inputs"
    TEMPORARY = "temporary"
    UNKNOWN = "unknown"


ORDER = tuple(Category)
# cuBLAS workspaces, by card generation (spec: CublasHandlePool.cpp, torch 2.6 to 2.11), in bytes.
WORKSPACES = (8_519_680, 33_554_432)


def categorise(trace: Trace, steps: Steps | None) -> NDArray[np.int64]:
    """For each allocation, its index in `ORDER`.

    Args:
        trace: The trace.
        steps: Its optimizer steps, if known.
    """
    allocations = trace.allocations
    by_stack = np.full(len(trace.stacks) + 1, ORDER.index(Category.UNKNOWN), np.int64)
    if trace.has_stacks:
        by_stack[-1] = ORDER.index(Category.BACKWARD)  # autograd's threads have no Python frames
        for stack in np.unique(allocations.stack).tolist():
            if stack >= 0:
                by_stack[stack] = ORDER.index(_of_stack(trace.stacks.frames(stack)))
    category = by_stack[allocations.stack]
    category = np.where(
        (allocations.born < 0) & (allocations.stack < 0), ORDER.index(Category.UNKNOWN), category
    )
    _mark_workspaces(trace, category)
    if steps is not None:
        _use_steps(trace, steps, category)
    return category


def _of_stack(frames: tuple[Frame, ...]) -> Category:
    names = {f.name for f in frames}
    files = [f.file for f in frames]
    if any("/torch/optim/" in file for file in files):
        return Category.OPTIMIZER_STATE
    if names & {"_apply", "reset_parameters", "load_state_dict"} or (
        "__init__" in names and any("/torch/nn/" in file for file in files)
    ):
        return Category.PARAMETERS
    if "backward" in names and not names & {"forward"}:
        return Category.BACKWARD
    if any("/torch/nn/" in file for file in files) or "forward" in names:
        return Category.ACTIVATIONS
    return Category.INPUTS if len(frames) else Category.UNKNOWN


def _mark_workspaces(trace: Trace, category: NDArray[np.int64]) -> None:
    """Blocks of exactly a cuBLAS workspace's size that were never freed."""
    allocations = trace.allocations
    sized = np.isin(allocations.requested, WORKSPACES)
    category[sized & (allocations.freed < 0) & (allocations.born >= 0)] = ORDER.index(
        Category.WORKSPACE
    )


def _use_steps(trace: Trace, steps: Steps, category: NDArray[np.int64]) -> None:
    """Lifetimes against optimizer steps: what lives through one is a gradient or a state."""
    allocations = trace.allocations
    last = len(trace.events)
    born = np.maximum(allocations.born, 0)
    freed = np.where(allocations.freed < 0, last, allocations.freed)
    stepping = np.searchsorted(steps.begin, born, "right")  # steps begun before birth
    inside = (stepping > 0) & (born < steps.end[np.maximum(stepping - 1, 0)])
    # Born while the optimizer steps, dead before the next step: its temporaries.
    ends_with_step = freed <= steps.end[np.maximum(stepping - 1, 0)]
    made_by_optimizer = category == ORDER.index(Category.OPTIMIZER_STATE)
    category[made_by_optimizer & inside & ends_with_step] = ORDER.index(Category.TEMPORARY)
    # Made in backward and still there when the optimizer begins: gradients.
    next_step = np.searchsorted(steps.begin, born, "right")
    has_next = next_step < len(steps.begin)
    reaches = has_next & (freed > steps.begin[np.minimum(next_step, len(steps.begin) - 1)])
    backward = category == ORDER.index(Category.BACKWARD)
    category[backward & reaches] = ORDER.index(Category.GRADIENTS)
