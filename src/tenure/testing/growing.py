"""Whether live memory grows from step to step, to the byte, and at which line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes import Rounds
from tenure.lifetimes.course import Course
from tenure.replays import state_at
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence

_FEWEST = 4  # steps, of which the first ones build up what stays
_SHOWN = 5  # lines of code
_FREED = 0.2  # of what it makes, that a repeated step frees


def growth_of(evidence: Evidence, limit: int, steps_at: list[int]) -> list[str]:
    """What broke a budget of growth, in lines of text; none if nothing did.

    The level of a step is the least that is live within it. The first third of the steps may build
    up what stays; what the levels rise by from there on is growth.

    Args:
        evidence: Of the test.
        limit: Most bytes a step.
        steps_at: When the optimizer made its steps, in microseconds as the trace counts them.
    """
    rounds = _rounds(evidence, steps_at)
    if rounds is None or len(rounds) < _FEWEST:
        seen = 0 if rounds is None else len(rounds)
        text = f"growth cannot be told from {seen} repeated steps; let the test make at least"
        return [f"gpu_memory: {text} {_FEWEST + 1}"]
    nothing = np.zeros(len(evidence.trace.allocations), bool)
    course = Course(evidence.trace, evidence.allocated, evidence.sites, rounds, nothing)
    first, last = len(course.at) // 3, len(course.at) - 1
    steps = (last - first) * course.stride
    grown = int(course.level[last] - course.level[first])
    if grown <= limit * steps:
        return []
    rise = f"{format_bytes(grown / steps)} each {rounds.per} ({format_bytes(grown)} in {steps})"
    return [
        f"gpu_memory: live memory grows by {rise}, the budget is {format_bytes(limit)}",
        *_growing_lines(evidence, int(course.at[first]), int(course.at[last]), steps),
    ]


def _rounds(evidence: Evidence, steps_at: list[int]) -> Rounds | None:
    """The optimizer's steps; without any, what the test does again and again."""
    if steps_at:
        time = np.asarray(evidence.trace.events.time_us)
        at = np.unique(np.searchsorted(time, np.array(steps_at, time.dtype), side="right"))
        return Rounds(at[:-1], at[1:], "step")
    rounds = evidence.rounds
    if rounds is None or rounds.inside_module or _only_builds(evidence, rounds):
        return None
    return rounds


def _only_builds(evidence: Evidence, rounds: Rounds) -> bool:
    """Whether the rounds keep what they make, as when the layers of a model are built."""
    change = np.diff(evidence.allocated[rounds.begin[0] : rounds.end[-1]])
    made, freed = int(change[change > 0].sum()), -int(change[change < 0].sum())
    return freed < _FREED * made


def _growing_lines(evidence: Evidence, first: int, last: int, steps: int) -> list[str]:
    trace = evidence.recorded.trace
    before = {(s.label, s.category): s.bytes for s in evidence.by_site(state_at(trace, first + 1))}
    grown = [
        (s.bytes - before.get((s.label, s.category), 0), s.category, s.label)
        for s in evidence.by_site(state_at(trace, last + 1))
    ]
    most = sorted((g for g in grown if g[0] > 0), reverse=True)[:_SHOWN]
    return [
        f"    {format_bytes(size / steps):>10} a step  {category:<15}  {label}"
        for size, category, label in most
    ]
