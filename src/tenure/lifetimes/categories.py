"""What an allocation is for, inferred from who made it, when, and how long it lived.

A snapshot does not say what a tensor is. These are inferences, and are called so in reports:
stacks decide where there are any; optimizer annotations, repetitions and lifetimes decide the
rest. Autograd's own threads have no Python frames: what they make and also free is the work of
backward; what they make and others free, or keep, is a gradient.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes.codes import lifetimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.rounds import Rounds
    from tenure.lifetimes.steps import Steps
    from tenure.traces import Frame, Trace

    Ints = NDArray[np.int64]


class Category(StrEnum):
    """What live bytes are for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    BACKWARD = "backward"  # what backward makes and frees again
    WORKSPACE = "workspace"
    INPUTS = "inputs"
    TEMPORARY = "temporary"
    UNKNOWN = "unknown"


ORDER = tuple(Category)
CODE = {category: code for code, category in enumerate(ORDER)}
# cuBLAS workspaces, by card generation (spec: CublasHandlePool.cpp, torch 2.6 to 2.11), in bytes.
WORKSPACES = (8_519_680, 33_554_432)
MODULE_FILE = "nn/modules/module.py"
LT_WORKSPACE = 1 << 20  # bytes; cublasLt's own, made right after the other
NAMES_OF_PARAMETERS = {"_apply", "reset_parameters", "load_state_dict", "_load_from_state_dict"}
# What Module.to() and its kin are called, where `_apply` itself is not among the frames.
NAMES_OF_MOVES = {"convert", "to", "to_empty", "cuda", "half", "bfloat16", "float", "double"}
NAMES_OF_UNSHARDING = {"unshard", "_unshard", "alloc_storage", "foreach_all_gather"}
NAMES_OF_REDUCTION = {"_reduce_grad", "_post_backward_hook", "foreach_reduce"}


def categorise(trace: Trace, steps: Steps | None, rounds: Rounds | None = None) -> Ints:
    """For each allocation, its index in `ORDER`.

    Args:
        trace: The trace.
        steps: Its optimizer steps, if known.
        rounds: Its repetitions, if known.
    """
    category = _by_stack(trace, rounds)
    if trace.has_stacks:
        _mark_gradients(trace, category)
    elif steps is not None:
        _by_steps_alone(trace, steps, category)
    _mark_workspaces(trace, category)
    if steps is not None and trace.has_stacks:
        _use_steps(trace, steps, category)
    return category


def _by_stack(trace: Trace, rounds: Rounds | None) -> Ints:
    allocations = trace.allocations
    by_stack = np.full(len(trace.stacks) + 1, CODE[Category.UNKNOWN], np.int64)
    plain = np.zeros(len(trace.stacks) + 1, bool)  # stacks of the user's own lines
    for stack in np.unique(allocations.stack).tolist():
        if stack >= 0:
            found = _of_stack(trace.stacks.frames(stack))
            by_stack[stack] = CODE[found or Category.TEMPORARY]
            plain[stack] = found is None
    if trace.has_stacks:
        by_stack[-1] = CODE[Category.BACKWARD]
    category = by_stack[allocations.stack]
    category[(allocations.born < 0) & (allocations.stack < 0)] = CODE[Category.UNKNOWN]
    _mark_plain(trace, rounds, plain[allocations.stack], category)
    return category


def _of_stack(frames: tuple[Frame, ...]) -> Category | None:
    """The category that a stack speaks of; None for the user's own code."""
    names = {f.name for f in frames}
    files = [f.file for f in frames]
    moved = any(f.name in NAMES_OF_MOVES and f.file.endswith(MODULE_FILE) for f in frames)
    if any("/torch/optim/" in file for file in files):
        return Category.OPTIMIZER_STATE
    if files and files[0].endswith("/nn/parallel/distributed.py"):
        return Category.GRADIENTS  # the buckets in which gradients are summed
    if names & NAMES_OF_REDUCTION:
        return Category.GRADIENTS
    made = "__init__" in names and any("/torch/nn/" in file for file in files)
    if moved or made or names & (NAMES_OF_PARAMETERS | NAMES_OF_UNSHARDING):
        return Category.PARAMETERS
    if "backward" in names and "forward" not in names:
        return Category.BACKWARD
    if "forward" in names or any("/torch/nn/" in file for file in files):
        return Category.ACTIVATIONS
    return None if frames else Category.UNKNOWN


def _mark_plain(
    trace: Trace, rounds: Rounds | None, plain: NDArray[np.bool_], category: Ints
) -> None:
    """The user's own lines: what stays, what a round begins with, what backward frees."""
    born, gone = lifetimes(trace)
    freed = trace.allocations.freed
    by_autograd = np.zeros(len(freed), bool)
    by_autograd[freed >= 0] = trace.events.stack[freed[freed >= 0]] < 0
    at_work = np.isin(category, (CODE[Category.ACTIVATIONS], CODE[Category.BACKWARD])) & ~plain
    category[plain & by_autograd] = CODE[Category.ACTIVATIONS]
    if not at_work.any():  # no model: nothing tells an input from anything else
        category[plain & ~by_autograd] = CODE[Category.UNKNOWN]
        return
    if rounds is None:
        category[plain & ~by_autograd] = CODE[Category.INPUTS]
        return
    start = min(int(rounds.begin[0]), int(born[at_work & (born >= 0)].min(initial=len(freed))))
    again = np.unique(trace.allocations.stack[born >= start])
    stays = (born < start) & (gone >= rounds.end[-1]) & ~np.isin(trace.allocations.stack, again)
    category[plain & stays] = CODE[Category.PARAMETERS]
    # A batch is made before the model sees it: first of its round.
    of_round = np.searchsorted(rounds.begin, born, "right") - 1
    inside = (of_round >= 0) & (born < rounds.end[np.maximum(of_round, 0)])
    first_work = np.full(len(rounds), len(trace.events), np.int64)
    np.minimum.at(first_work, of_round[inside & at_work], born[inside & at_work])
    early = inside & (born < first_work[np.maximum(of_round, 0)])
    early |= (born >= 0) & (born < start)
    category[plain & early & ~stays & ~by_autograd] = CODE[Category.INPUTS]


def _mark_gradients(trace: Trace, category: Ints) -> None:
    """Made by autograd's threads, but freed by others or never."""
    allocations = trace.allocations
    freed = allocations.freed
    by_others = freed < 0
    by_others[freed >= 0] = trace.events.stack[freed[freed >= 0]] >= 0
    silent = (allocations.stack < 0) & (allocations.born >= 0)
    category[silent & by_others] = CODE[Category.GRADIENTS]


def _mark_workspaces(trace: Trace, category: Ints) -> None:
    """Workspaces of cuBLAS: of their exact sizes, never freed, one a stream and thread."""
    allocations = trace.allocations
    kept = (allocations.freed < 0) & (allocations.born >= 0)
    sized = np.flatnonzero(kept & np.isin(allocations.requested, WORKSPACES))
    seen: dict[tuple[int, bool], int] = {}
    most = 1 if trace.has_stacks else 2  # the user's thread and autograd's, not told apart
    for number in sized.tolist():
        owner = (int(allocations.stream[number]), bool(allocations.stack[number] >= 0))
        if seen.get(owner, 0) == most:
            continue
        frames = trace.stacks.frames(int(allocations.stack[number]))
        if _of_stack(frames) is Category.PARAMETERS:
            continue  # a weight that happens to be as large
        seen[owner] = seen.get(owner, 0) + 1
        category[number] = CODE[Category.WORKSPACE]
        after = number + 1
        if (
            after < len(allocations)
            and kept[after]
            and allocations.requested[after] == LT_WORKSPACE
            and allocations.stack[after] == allocations.stack[number]
        ):
            category[after] = CODE[Category.WORKSPACE]


def _use_steps(trace: Trace, steps: Steps, category: Ints) -> None:
    """Optimizer steps: its temporaries die with the step; gradients reach it."""
    born, gone = lifetimes(trace)
    begun = np.searchsorted(steps.begin, np.maximum(born, 0), "right")  # steps begun before birth
    current = np.maximum(begun - 1, 0)
    inside = (begun > 0) & (born < steps.end[current])
    made_by_optimizer = category == CODE[Category.OPTIMIZER_STATE]
    category[made_by_optimizer & inside & (gone <= steps.end[current])] = CODE[Category.TEMPORARY]
    has_next = begun < len(steps.begin)
    reaches = has_next & (gone > steps.begin[np.minimum(begun, len(steps.begin) - 1)])
    silent = (trace.allocations.stack < 0) & (born >= 0)
    of_backward = np.isin(category, (CODE[Category.BACKWARD], CODE[Category.GRADIENTS])) & silent
    category[of_backward & reaches] = CODE[Category.GRADIENTS]
    early = of_backward & has_next & ~reaches
    category[early] = CODE[Category.BACKWARD]


def _by_steps_alone(trace: Trace, steps: Steps, category: Ints) -> None:
    """Without stacks: lifetimes against optimizer steps, and sizes against parameters."""
    born, gone = lifetimes(trace)
    requested = trace.allocations.requested
    begun = np.searchsorted(steps.begin, np.maximum(born, 0), "right")
    current = np.maximum(begun - 1, 0)
    inside = (begun > 0) & (born < steps.end[current])
    after = np.minimum(current + 1, len(steps.end) - 1)
    outlives = gone > steps.end[np.where(current + 1 < len(steps.end), after, current)]
    category[inside & outlives] = CODE[Category.OPTIMIZER_STATE]
    category[inside & ~outlives] = CODE[Category.TEMPORARY]
    before = born < steps.begin[0]
    stays = before & (gone > steps.end[-1])
    category[stays] = CODE[Category.PARAMETERS]
    between = ~inside & (begun < len(steps.begin)) & ~stays
    _forward_and_backward(trace, steps, between, category)
    next_begin = steps.begin[np.minimum(begun, len(steps.begin) - 1)]
    like_parameter = np.isin(requested, np.unique(requested[stays]))
    category[between & like_parameter & (gone > next_begin)] = CODE[Category.GRADIENTS]


def _forward_and_backward(
    trace: Trace, steps: Steps, between: NDArray[np.bool_], category: Ints
) -> None:
    """What lives across its step's peak is an activation; what is made after it is backward's."""
    born, gone = lifetimes(trace)
    events = len(trace.events)
    size = trace.allocations.requested
    change = np.zeros(events + 1, np.int64)
    np.add.at(change, np.clip(born, 0, events), size)
    np.add.at(change, np.clip(gone, 0, events), -size)
    level = np.cumsum(change)
    bounds = np.append(0, steps.end)
    peaks = [
        int(a) + int(np.argmax(level[a:b])) if b > a else int(a)
        for a, b in zip(bounds[:-1].tolist(), steps.begin.tolist(), strict=True)
    ]
    mine = np.array(peaks, np.int64)[
        np.minimum(np.searchsorted(steps.end, np.maximum(born, 0), "right"), len(peaks) - 1)
    ]
    category[between & (born <= mine) & (gone > mine)] = CODE[Category.ACTIVATIONS]
    category[between & (born > mine)] = CODE[Category.BACKWARD]
