"""Steps of a run: what each left allocated, whether that grows, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

MOST = 4096  # marks kept; then every other one is dropped
FEWEST = 4  # steps after the settling ones that show a growth
SETTLING = 2  # steps in which optimizer state and workspaces are born
LEAST = 1 << 12  # bytes a step


@dataclass(frozen=True)
class StepMark:
    """The end of one step.

    Attributes:
        number: From 1.
        time: Unix time.
        allocated: Bytes live then.
        peak: Most bytes live in this step, as far as it is known.
        pending: Bytes freed but waiting for another stream then.
        begun: Unix time at which the optimizer's part of it began; 0 where not known.
    """

    number: int
    time: float
    allocated: int
    peak: int
    pending: int = 0
    begun: float = 0.0


@dataclass
class Steps:
    """Marks of steps, thinned out evenly where there are many."""

    marks: list[StepMark] = field(default_factory=list)
    count: int = 0
    _stride: int = 1

    def mark(
        self, time: float, allocated: int, peak: int, pending: int = 0, begun: float = 0.0
    ) -> StepMark:
        """The end of a step."""
        self.count += 1
        one = StepMark(self.count, time, allocated, peak, pending, begun)
        if self.count % self._stride == 0:
            self.marks.append(one)
            if len(self.marks) >= MOST:
                del self.marks[::2]
                self._stride *= 2
        return one


@dataclass(frozen=True)
class Rise:
    """Live bytes that rise from step to step.

    Attributes:
        bytes_per_step: Median rise.
        first: The step from which it was measured.
        last: The last one.
        total: Bytes risen in all.
    """

    bytes_per_step: int
    first: int
    last: int
    total: int


def rise_of(marks: list[StepMark]) -> Rise | None:
    """The growth of live bytes at the ends of steps; None where they level off or fall.

    Several steps may belong to one round (two optimizers, a longer batch now and then), so a
    level that repeats is no growth: the later third must lie above all of the earlier two.
    """
    known = [m for m in marks if m.number > SETTLING]
    if len(known) < FEWEST:
        return None
    cut = max(len(known) * 2 // 3, 2)
    before, after = known[:cut], known[cut:]
    first, last = known[0], known[-1]
    if min(m.allocated for m in after) <= max(m.allocated for m in before):
        return None
    slopes = [
        (b.allocated - a.allocated) / (b.number - a.number)
        for a, b in zip(known, known[len(known) // 2 :], strict=False)
    ]
    slope = int(median(slopes))
    if slope < LEAST:
        return None
    return Rise(slope, first.number, last.number, last.allocated - first.allocated)
