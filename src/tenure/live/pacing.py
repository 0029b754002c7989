"""Whether the lines of allocations are worth their cost, measured on the run itself.

PyTorch reads the Python stack at every allocation and free. Where the GPU is the slower side that
costs nothing; where the host is, it shows in every step. So some steps are made without, the two
are compared, and where it shows, lines are kept in some steps only.
"""

from __future__ import annotations

from statistics import median

WARM = 4  # steps before anything is compared
TRIED = 4  # steps of each kind that are compared
BEARABLE = 1.015  # times a step without lines
SHARE = 0.01  # of the run's time that lines may cost after that


class Pace:
    """Told of each step's seconds, says whether the next one keeps lines."""

    def __init__(self) -> None:
        self.every = 0  # 1: lines in every step, N: in one of N; 0: not decided yet
        self.cost = 0.0  # of lines, as a part of a step
        self._step = 0
        self._with: list[float] = []
        self._without: list[float] = []

    def next(self, seconds: float) -> bool:
        """Whether the step that now begins keeps lines.

        Args:
            seconds: That the step which has just ended took.
        """
        self._step += 1
        position = self._step - WARM
        if position <= 0:
            return True
        if self.every:
            return self._step % self.every == 0
        # The first step after a change pays for the change.
        (self._without if position % 2 == 0 else self._with).append(seconds)
        if len(self._without) >= TRIED:
            self._decide()
            return self._step % self.every == 0
        return position % 2 == 0

    def _decide(self) -> None:
        """Pairs of neighbours are compared, so that steps which grow longer do not mislead."""
        ratio = median(a / b for a, b in zip(self._with, self._without, strict=False) if b)
        self.cost = max(ratio - 1, 0.0)
        self.every = 1 if ratio <= BEARABLE else max(2, round(self.cost / SHARE))
