"""The lines whose live bytes rise from round to round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.course import Course

    Ints = NDArray[np.int64]

FEWEST_RISES = 3  # of one line's live bytes
EXPLAINED = 0.5  # of the growth, that lines must account for
MOST_RISE = 0.6  # of the rounds, for the median of their rises to be the usual one
FALLS = 0.5  # of a line's rises, that its falls must stay below
AT_A_TIME = 2  # blocks of a line live together, while one replaces the other


@dataclass(frozen=True)
class GrowingSite:
    """One line whose allocations pile up.

    Attributes:
        site: Index in the table of sites.
        requested: Bytes of each request where all have the same; -1 otherwise.
        bytes_per_round: Usual growth of its live bytes from one round to the next.
        blocks: How many of its blocks are kept in the end.
        held: Their bytes.
        replaced: One block at a time, each larger than the one it replaces.
        allocations: Numbers of the blocks kept, oldest first.
        kind: What is counted together: the site, or -1 less the requested bytes.
        restarts: How often a smaller block followed a larger one, of those that replace each other:
            it grew and began anew, as a cache does with each request.
    """

    site: int
    requested: int
    bytes_per_round: int
    blocks: int
    held: int
    replaced: bool
    allocations: tuple[int, ...]
    kind: int
    restarts: int = 0


def find_growing_sites(course: Course, first: int, last: int) -> tuple[GrowingSite, ...]:
    """The lines whose live bytes rise over a run of levels, most bytes first.

    Args:
        course: What is looked at.
        first: Index of the first level.
        last: Index of the last one.
    """
    counting = _Counting(course, course.at[first : last + 1])
    site = course.sites.of_allocation.astype(np.int64)
    # What is counted together: a line; without a stack, requests of one size, or else all.
    by_size = np.where(site > 0, site, -1 - course.trace.allocations.requested)
    found = counting.rising(by_size)
    if sum(s.held for s in found) < EXPLAINED * counting.kept_bytes:
        found = counting.rising(site)
    found = [end_of_chain(course, s) if s.replaced else s for s in found]
    return tuple(sorted(found, key=lambda s: -s.held))


class _Counting:
    """Live bytes and blocks at a few events, by kind of allocation."""

    def __init__(self, course: Course, at: Ints) -> None:
        self._course = course
        self._levels = len(at)
        first = np.searchsorted(at, course.born, "left")  # first level that sees it
        after = np.searchsorted(at, course.gone, "left")  # first level that no longer does
        seen = (first < after) & (course.born > at[0]) & ~course.lasting
        self._seen = np.flatnonzero(seen)
        self._first, self._after = first, after

    @property
    def kept_bytes(self) -> int:
        """Bytes made since the first event and live at the last."""
        kept = self._after[self._seen] >= self._levels
        return int(self._course.size[self._seen[kept]].sum())

    def rising(self, kinds: Ints) -> list[GrowingSite]:
        """The kinds whose live bytes rise."""
        seen = self._seen[np.argsort(kinds[self._seen], kind="stable")]
        bounds = np.flatnonzero(np.diff(kinds[seen])) + 1
        found = (self._site(mine, kinds) for mine in np.split(seen, bounds) if len(mine))
        return [site for site in found if site is not None]

    def _site(self, mine: Ints, kinds: Ints) -> GrowingSite | None:
        course, levels = self._course, self._levels
        held = mine[self._after[mine] >= levels]
        if not len(held):
            return None
        size = course.size[mine]
        level = self._cumulated(mine, size)
        if not _keeps_rising(np.diff(level)):
            return None
        requested = np.unique(course.trace.allocations.requested[held])
        together = int(self._cumulated(mine, np.ones_like(size)).max())
        return GrowingSite(
            site=int(course.sites.of_allocation[held[0]]),
            requested=int(requested[0]) if len(requested) == 1 else -1,
            bytes_per_round=_usual_rise(level) // course.stride,
            blocks=len(held),
            held=int(course.size[held].sum()),
            replaced=together <= AT_A_TIME and len(mine) > AT_A_TIME * len(held),
            allocations=tuple(held.tolist()),
            kind=int(kinds[held[0]]),
        )

    def _cumulated(self, mine: Ints, weight: Ints) -> Ints:
        change = np.zeros(self._levels + 1, np.int64)
        np.add.at(change, self._first[mine], weight)
        np.add.at(change, np.minimum(self._after[mine], self._levels), -weight)
        return np.cumsum(change)[: self._levels]


def _usual_rise(level: Ints) -> int:
    """What most rounds add; where most add nothing, the mean."""
    steps = np.diff(level)
    up = steps[steps > 0]
    if len(up) > MOST_RISE * len(steps):
        return int(np.median(up))
    return int(level[-1] - level[0]) // max(len(steps), 1)


def _keeps_rising(steps: Ints) -> bool:
    up, down = steps[steps > 0], steps[steps < 0]
    return bool(len(up) >= FEWEST_RISES and -down.sum() < FALLS * up.sum())


def end_of_chain(course: Course, site: GrowingSite) -> GrowingSite:
    """The site with the last and largest of the blocks that replace each other."""
    allocations = course.trace.allocations
    number = site.allocations[-1]
    same = np.flatnonzero(allocations.stack == allocations.stack[number])
    known = allocations.stack[number] >= 0
    restarts = int((np.diff(allocations.requested[same]) < 0).sum()) if known else 0
    for later in same[same > number].tolist():
        if allocations.requested[later] <= allocations.requested[number]:
            break
        number = later
    return replace(
        site,
        requested=int(allocations.requested[number]),
        held=int(course.size[number]),
        blocks=1,
        allocations=(number,),
        restarts=restarts,
    )


def held_at(course: Course, site: GrowingSite, event: int) -> GrowingSite:
    """The site with all the blocks of its kinds that are live after an event."""
    if site.replaced or site.kind == 0:
        return site
    numbers = np.flatnonzero(course.live(event) & course.like(np.array(site.allocations)))
    if len(numbers) < len(site.allocations):
        return site
    held = int(course.size[numbers].sum())
    return replace(site, blocks=len(numbers), held=held, allocations=tuple(numbers.tolist()))
