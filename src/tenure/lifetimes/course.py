"""A trace with the events at which its rounds are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes.codes import allocation_codes, block_sizes, lifetimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.rounds import Rounds
    from tenure.lifetimes.sites import Sites
    from tenure.traces import Trace

    Ints = NDArray[np.int64]

MOST_LEVELS = 1_000  # rounds looked at; of longer traces, evenly spread ones


@dataclass(frozen=True)
class Course:
    """What growth is looked for in.

    Attributes:
        trace: The trace.
        allocated: Live bytes after each event.
        sites: Sites of its allocations.
        rounds: Its repetitions.
        lasting: Allocations known to be made once and kept, such as workspaces: not looked at.
    """

    trace: Trace
    allocated: Ints
    sites: Sites
    rounds: Rounds
    lasting: NDArray[np.bool_]

    @cached_property
    def chosen(self) -> Ints:
        """The rounds that are compared."""
        count = len(self.rounds)
        return np.unique(np.linspace(0, count - 1, min(count, MOST_LEVELS)).astype(np.int64))

    @cached_property
    def stride(self) -> int:
        """Rounds from one compared round to the next."""
        return max(len(self.rounds) // len(self.chosen), 1)

    @cached_property
    def at(self) -> Ints:
        """For each chosen round the event after which least was live."""
        begins, ends = self.rounds.begin[self.chosen], self._ends
        lowest = [
            int(b) + int(np.argmin(self.allocated[b:e])) if e > b else int(b)
            for b, e in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        return np.minimum(np.array(lowest, np.int64), len(self.allocated) - 1)

    @cached_property
    def level(self) -> Ints:
        """Live bytes then."""
        return self.allocated[self.at]

    def last_event(self, index: int) -> int:
        """The last event of a chosen round."""
        return min(int(self._ends[index]), len(self.allocated)) - 1

    @cached_property
    def _ends(self) -> Ints:
        # What is freed when the loop is over is not its work: the last round is as long as others.
        ends = self.rounds.end[self.chosen].copy()
        usual = int(np.median(self.rounds.end - self.rounds.begin))
        ends[-1] = min(ends[-1], self.rounds.begin[-1] + usual)
        return ends

    @cached_property
    def size(self) -> Ints:
        """Bytes of each allocation."""
        return block_sizes(self.trace)

    @cached_property
    def _life(self) -> tuple[Ints, Ints]:
        return lifetimes(self.trace)

    @property
    def born(self) -> Ints:
        """The event that made each allocation."""
        return self._life[0]

    @property
    def gone(self) -> Ints:
        """The event that freed it."""
        return self._life[1]

    @cached_property
    def code(self) -> Ints:
        """What kind each allocation is of."""
        return allocation_codes(self.trace)

    def like(self, numbers: Ints) -> NDArray[np.bool_]:
        """Which allocations are of the same kinds as these."""
        return np.isin(self.code, np.unique(self.code[numbers])) & ~self.lasting

    def live(self, event: int) -> NDArray[np.bool_]:
        """Which allocations made within the recording are live after an event."""
        return np.asarray((self.born >= 0) & (self.born <= event) & (self.gone > event))
