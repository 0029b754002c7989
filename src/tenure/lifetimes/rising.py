"""Runs of a series that rise again and again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

FEWEST_RISES = 4  # fewer cannot be told from a start-up
STEADY = 0.9  # of all pairs of levels that differ, the later one is higher
FELL = 0.5  # of what has risen: a fall by more ends a run
LEVELLED = 0.25  # of a run's rounds without a rise at its end, and
PAUSES = 3  # so many times the usual distance between two rises, make a plateau
AFTER = 2  # levels at the end of the series in which a fall is the end of the loop
COMPARED = 400  # levels of a run that are compared pair by pair


@dataclass(frozen=True)
class Rise:
    """A run of levels that rise.

    Attributes:
        first: Index of the level from which it rises.
        last: Index of the last level that rose.
        flat: Levels after `last` that stay, up to the end of the run; 0 if it rises to its end.
        reaches_end: No fall follows but one at the very end, when the loop is over.
        total: By how much it rose.
        usual: The usual rise from one level to the next.
    """

    first: int
    last: int
    flat: int
    reaches_end: bool
    total: int
    usual: int


def find_rises(level: Ints, least: int) -> list[Rise]:
    """The runs that rise by at least so much, in order."""
    bounds = [0, *_falls(level, least), len(level)]
    found = []
    for begin, end in pairwise(bounds):
        rise = _rise(level, begin, end, least)
        if rise is not None:
            found.append(rise)
    return found


def _falls(level: Ints, least: int) -> list[int]:
    """Where the series drops by most of what it has risen since the last such place."""
    falls = []
    low = high = int(level[0])
    for i, value in enumerate(level.tolist()):
        if high - value > max(FELL * (high - low), least // 2):
            falls.append(i)
            low = high = value
        low, high = min(low, value), max(high, value)
    return falls


def _rise(level: Ints, begin: int, end: int, least: int) -> Rise | None:
    first = begin + int(np.argmin(level[begin:end]))
    run = level[first:end]
    steps = np.diff(run)
    # A rise counts if it is more than noise: a hundredth of a fair share of the whole.
    noise = max((int(run.max()) - int(run[0])) // max(len(run), 1) // 100, 511)
    up = np.flatnonzero(steps > noise)
    if len(up) < FEWEST_RISES:
        return None
    up = _without_start(run, steps, up)
    first, start = first + int(up[0]), int(up[0])
    last = first + int(up[-1]) + 1 - start
    total = int(level[last] - level[first])
    if len(up) < FEWEST_RISES or total < least or not _steady(level[first : last + 1]):
        return None
    pause = int(np.median(np.diff(up))) if len(up) > 1 else 1
    flat = end - 1 - last
    levelled = flat >= max(PAUSES * pause, LEVELLED * (last - first), FEWEST_RISES)
    usual = int(np.median(steps[up])) if len(up) > 0.6 * (last - first) else total // (last - first)
    return Rise(first, last, flat if levelled else 0, end >= len(level) - AFTER, total, usual)


def _without_start(run: Ints, steps: Ints, up: Ints) -> Ints:
    """The rises without those at the beginning that dwarf the rest: state, workspaces, caches."""
    while len(up) > FEWEST_RISES:
        rest = steps[up[1:]]
        if steps[up[0]] <= 3 * int(np.median(rest)) or up[0] > len(run) // 4:
            break
        up = up[1:]
    return up


def _steady(level: Ints) -> bool:
    """Whether nearly every later level lies above nearly every earlier one."""
    if len(level) > COMPARED:
        level = level[np.linspace(0, len(level) - 1, COMPARED).astype(int)]
    later = np.triu(level[None, :] > level[:, None], 1).sum()
    earlier = np.triu(level[None, :] < level[:, None], 1).sum()
    return bool(later >= STEADY * (later + earlier) and later > 0)
