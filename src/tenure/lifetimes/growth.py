"""Live memory that grows from round to round, where it was made, and how it ended.

The level of a round is the least that was live within it: what is left when the round's own work
is gone. It does not depend on where in the loop a round is taken to begin, nor on how long the
sequences of a batch are. A run of rounds whose levels rise again and again is growth; it goes on
to the end of the recording, levels off, or is released at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes.course import Course
from tenure.lifetimes.growing_sites import GrowingSite, find_growing_sites, held_at
from tenure.lifetimes.releases import Release, find_release
from tenure.lifetimes.rising import Rise, find_rises

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.rounds import Rounds
    from tenure.lifetimes.sites import Sites
    from tenure.traces import Trace

    Ints = NDArray[np.int64]

LEAST_TOTAL = 4 << 20  # bytes grown in all; less is bookkeeping
LEAST_SHARE = 0.02  # of the live peak, grown in all
EXPLAINED = 0.5  # of the growth, that its lines must account for, or a release give back
LITTLE = 1 << 20  # bytes live before growth, with which it is what fills the memory first
WORKS = 1.2  # times what they keep, made by rounds that do more than keep
MUCH_MORE = 1.5  # times the bytes that the first third of the rounds made
UNEVEN = 0.2  # of the growth, by which the usual rise may miss it; beyond, the mean is told
FLAT = 0.02  # of the live peak, by which levels may differ and still be called flat
LAST_ROUNDS = 3  # after the last level that rose, that can belong to the growth


class Ending(StrEnum):
    """How growth ended."""

    UNBOUNDED = "unbounded"  # it goes on as long as the rounds do
    PLATEAU = "plateau"  # it levels off, and what has grown stays
    RELEASED = "released"  # it went back at once, and the rounds went on


@dataclass(frozen=True)
class Growth:
    """Live memory that rises from round to round.

    Attributes:
        ending: How it ended.
        per: What a round is: "step" or "repetition".
        bytes_per_round: Of the rounds in which it grew, the usual rise, in bytes.
        grown: Bytes kept in the end: just before the release, or at the last round.
        rounds: Rounds that it took to grow so far.
        flat: Rounds after that without growth, until the end of the recording.
        first_number: What people call the first of them.
        begin: Event at which the first is measured.
        end: Event at which the last is measured.
        live_at_end: Live bytes then.
        sites: Where the growing bytes were made, most first.
        builds_up: Nothing else was live before: what it made is all there is.
        works: The rounds make and free more than they keep.
        work_rises: So do the bytes that they make besides: batches become larger.
        release: How most of it went back, if it did.
        times: How often the recording shows such growth, this one included.
    """

    ending: Ending
    per: str
    bytes_per_round: int
    grown: int
    rounds: int
    flat: int
    first_number: int
    begin: int
    end: int
    live_at_end: int
    sites: tuple[GrowingSite, ...]
    builds_up: bool
    works: bool
    work_rises: bool
    release: Release | None
    times: int


def find_growth(
    trace: Trace,
    allocated: Ints,
    sites: Sites,
    rounds: Rounds | None,
    lasting: NDArray[np.bool_] | None = None,
) -> tuple[Growth, ...]:
    """Growth in a trace, most bytes first; empty where it is flat, or repeats nothing.

    Args:
        trace: The trace.
        allocated: Live bytes after each event.
        sites: Sites of its allocations.
        rounds: Its repetitions, as `find_rounds` gives them.
        lasting: Allocations that are known to be made once and kept, such as workspaces.
    """
    if rounds is None or rounds.inside_module or not len(allocated):
        return ()
    if lasting is None:
        lasting = np.zeros(len(trace.allocations), bool)
    course = Course(trace, allocated, sites, rounds, lasting)
    floor = max(LEAST_TOTAL, int(LEAST_SHARE * allocated.max()))
    found = []
    for rise in find_rises(course.level, floor):
        sited = find_growing_sites(course, rise.first, rise.last)
        if sum(s.held for s in sited) >= EXPLAINED * rise.total:
            found.append(_growth(course, rise, sited))
    counted = [replace(g, times=_times(g, found)) for g in found]
    return tuple(sorted(counted, key=lambda g: -g.grown))


def flat_since(allocated: Ints, sites: Sites, rounds: Rounds, trace: Trace) -> int | None:
    """The first round, as people count, from which on the level of live bytes hardly changes.

    None if it never settles, or the rounds are the layers of a model.
    """
    if rounds.inside_module or not len(allocated):
        return None
    course = Course(trace, allocated, sites, rounds, np.zeros(len(trace.allocations), bool))
    level = course.level[:-1] if len(course.level) > LAST_ROUNDS else course.level
    near = FLAT * int(allocated.max())
    later = np.maximum.accumulate(level[::-1])[::-1] - np.minimum.accumulate(level[::-1])[::-1]
    settled = np.flatnonzero(later <= near)
    if not len(settled) or len(level) - settled[0] < LAST_ROUNDS:
        return None
    return rounds.first_number + int(settled[0]) * course.stride


def _times(growth: Growth, found: list[Growth]) -> int:
    """How many runs are like this one: an inner loop climbs and falls every time.

    They are about as long; or of the same lines, longer, and over.
    """
    kinds = {site.kind for site in growth.sites}

    def alike(other: Growth) -> bool:
        as_long = abs(other.rounds - growth.rounds) <= growth.rounds // 4 + 1
        same = bool(kinds & {site.kind for site in other.sites})
        over = other.ending is Ending.RELEASED and other.rounds >= growth.rounds
        return other.ending is not Ending.PLATEAU and (as_long or (same and over))

    return 1 + sum(alike(other) for other in found if other is not growth)


def _growth(course: Course, rise: Rise, sited: tuple[GrowingSite, ...]) -> Growth:
    kept = np.array(sorted({n for s in sited for n in s.allocations}), np.int64)
    begin, end = int(course.at[rise.first]), int(course.at[rise.last])
    release = find_release(course, kept)
    ending = _ending(rise)
    until = course.last_event(rise.last) if ending is Ending.UNBOUNDED else end
    if release is not None and release.share >= EXPLAINED and release.event > end:
        # Nothing is made between this event and the release.
        until = int(course.born[course.born < release.event].max())
    sited = tuple(held_at(course, site, until) for site in sited)
    grown = max(rise.total, sum(site.held for site in sited))
    usual = max(rise.usual // course.stride, 1)
    counted, took = round(grown / usual), (rise.last - rise.first) * course.stride
    same = course.like(kept)
    before = (course.born <= begin) & (course.gone > begin) & ~same
    made = (course.born > begin) & (course.born <= end)
    return Growth(
        ending=ending,
        per=course.rounds.per,
        bytes_per_round=usual if abs(usual * took - grown) <= UNEVEN * grown else grown // took,
        grown=grown,
        rounds=counted if took <= counted <= took + LAST_ROUNDS * course.stride else took,
        flat=rise.flat * course.stride,
        first_number=course.rounds.first_number + rise.first * course.stride,
        begin=begin,
        end=end,
        live_at_end=int(course.level[rise.last]),
        sites=tuple(sorted(sited, key=lambda s: -s.held)),
        builds_up=int(course.size[before].sum()) < LITTLE,
        works=int(course.size[made].sum()) > WORKS * rise.total,
        work_rises=_work_rises(course, rise, made & ~same),
        release=release,
        times=1,
    )


def _ending(rise: Rise) -> Ending:
    if not rise.reaches_end:
        return Ending.RELEASED
    return Ending.PLATEAU if rise.flat else Ending.UNBOUNDED


def _work_rises(course: Course, rise: Rise, made: NDArray[np.bool_]) -> bool:
    """Whether what the rounds make besides becomes clearly more from the first to the last."""
    at = course.at[rise.first : rise.last + 1]
    round_of = np.clip(np.searchsorted(at, course.born[made], "left") - 1, 0, len(at) - 2)
    per_round = np.bincount(round_of, weights=course.size[made], minlength=len(at) - 1)
    third = max(len(per_round) // 3, 1)
    return bool(per_round[-third:].mean() > MUCH_MORE * max(per_round[:third].mean(), 1))
