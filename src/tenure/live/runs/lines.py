"""Lines for the steps that were recorded without, from a step that asked for the same.

Where reading the stacks shows in the time of a step, `tenure run` keeps them in some steps only. A
training step asks for the same sizes in the same order as the one before it, so a step without
lines takes those of the nearest step with lines whose events are the same; of one that differs in
its middle, such as a shorter batch's, the beginning and the end that agree.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenure.live.runs.stepping import StepMark
    from tenure.snapshots import Annotations, Events, Snapshot

SLACK = 16  # events around the end of a step that may count to either
STEP = "Optimizer.step#tenure"


def completed(snapshot: Snapshot, marks: Sequence[StepMark]) -> Snapshot:
    """The snapshot with lines and steps that its recording left out for the sake of time.

    Args:
        snapshot: As PyTorch gave it.
        marks: Ends of the run's steps.
    """
    times = np.array([int(mark.time * 1e6) for mark in marks], np.int64)
    devices = [with_lines(events, times) for events in snapshot.devices]
    return _with_steps(replace(snapshot, devices=devices), marks)


def with_lines(events: Events, ends: NDArray[np.int64]) -> Events:
    """One device's events, lines carried over from step to step.

    Args:
        events: As recorded.
        ends: Moments at which steps ended, in microseconds.
    """
    if not len(events) or not len(ends) or not events.time_us.any():
        return events
    bounds = np.unique(np.searchsorted(events.time_us, ends, "right"))
    parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
    has = [bool((events.stack[part] >= 0).any()) for part in parts]
    donors = [number for number, known in enumerate(has) if known]
    if not donors or all(has):
        return events
    kind = events.action.astype(np.int64) << 48 | events.size
    stack = events.stack.copy()
    for number, part in enumerate(parts):
        if not has[number]:
            near = sorted(donors, key=lambda donor: abs(donor - number))[:4]
            _carry(kind, stack, part, [parts[donor] for donor in near])
    return replace(events, stack=stack)


def _carry(
    kind: NDArray[np.int64], stack: NDArray[np.int32], part: slice, donors: list[slice]
) -> None:
    """Takes the lines of the donor that agrees longest, from both ends."""
    mine, lines = kind[part], stack[part]
    best: tuple[int, NDArray[np.int32]] = (0, lines)
    for donor in donors:
        theirs, theirs_lines = kind[donor], stack[donor]
        skip, theirs_skip, head = _longest(mine, theirs)
        found = lines.copy()
        found[skip : skip + head] = theirs_lines[theirs_skip : theirs_skip + head]
        rest = skip + head
        behind, theirs_behind, tail = _longest(mine[rest:][::-1], theirs[::-1])
        if tail:
            end, theirs_end = len(mine) - behind, len(theirs) - theirs_behind
            found[end - tail : end] = theirs_lines[theirs_end - tail : theirs_end]
        if head + tail > best[0]:
            best = (head + tail, found)
        if head >= len(mine) - min(SLACK, len(mine) // 8):
            break
    stack[part] = best[1]


def _longest(one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[int, int, int]:
    """How many first elements of each to skip so that most of those that follow agree; and those.

    The end of a step is known by the clock only, so a few events may count to the next one.
    """
    best = (0, 0, 0)
    for shift in sorted(range(-SLACK, SLACK + 1), key=abs):
        skip, other_skip = max(shift, 0), max(-shift, 0)
        length = _agree(one[skip:], other[other_skip:])
        if length > best[2]:
            best = (skip, other_skip, length)
        shorter = min(len(one), len(other))
        if best[2] >= shorter - min(SLACK, shorter // 8):
            break
    return best


def _agree(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many first elements are the same."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


def _with_steps(snapshot: Snapshot, marks: Sequence[StepMark]) -> Snapshot:
    """PyTorch forgets the steps' annotations whenever its history is changed: ours take over."""
    begun = [(int(m.begun * 1e6), int(m.time * 1e6)) for m in marks if m.begun]
    raw = snapshot.annotations
    strings = snapshot.strings
    known = {i for i, text in enumerate(strings) if text.startswith("Optimizer.step#")}
    there = np.isin(raw.name, np.array(sorted(known), raw.name.dtype)) if known else None
    if not begun or (there is not None and int((there & (raw.start == 0)).sum()) >= len(begun)):
        return snapshot
    kept = ~there if there is not None else np.ones(len(raw.name), bool)
    devices = [i for i, events in enumerate(snapshot.devices) if len(events)]
    name = len(strings)
    rows = [(name, flag, device, span[1 - flag]) for device in devices for span in begun
            for flag in (1, 0)]  # fmt: skip
    return replace(
        snapshot, strings=[*strings, STEP], annotations=_joined(raw, kept, np.array(rows, np.int64))
    )


def _joined(raw: Annotations, kept: NDArray[np.bool_], rows: NDArray[np.int64]) -> Annotations:
    def column(name: str, values: NDArray[np.int64]) -> Any:
        before = getattr(raw, name)
        return np.append(before[kept], values.astype(before.dtype))

    return replace(
        raw,
        name=column("name", rows[:, 0]),
        start=column("start", rows[:, 1]),
        device=column("device", rows[:, 2]),
        time_us=column("time_us", rows[:, 3]),
    )
