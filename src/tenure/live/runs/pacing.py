"""Whether the lines of allocations are worth their cost, measured on the run itself.

PyTorch reads the Python stack at every allocation and free. Where the GPU is the slower side that
costs nothing; where the host is, it shows in every step. So while steps that differ from each other
are recorded, lines are kept in one of three, until it is known which of the two this run is.
"""

from __future__ import annotations

from statistics import median

GAP = 3  # steps from one with lines to the next, while it is being tried
TRIED = 4  # steps with lines that are compared with their neighbours
BEARABLE = 1.01  # times a step without lines
SHARE = 0.01  # of the run's time that lines may cost


class Pace:
    """Told of each step's seconds, says whether the next one keeps lines.

    Attributes:
        every: 1: lines in every step; N: in one of N; 0: not decided yet.
        cost: Of lines, as a part of a step.
    """

    def __init__(self) -> None:
        self.every = 0
        self.cost = 0.0
        self._step = 0
        self._seconds: list[float] = []

    def next(self, seconds: float) -> bool:
        """Whether the step that now begins keeps lines.

        Args:
            seconds: That the step which has just ended took.
        """
        self._step += 1
        if not self.every:
            self._seconds.append(seconds)
            if len(self._seconds) > GAP * TRIED + 1:
                self._decide()
        if self.every:
            return self._step % self.every == 0
        return self._step % GAP == 0

    def interrupted(self) -> None:
        """Steps were left out: those before and those to come are no neighbours."""
        self._step = 0
        self._seconds.clear()

    def _decide(self) -> None:
        """Neighbours are compared, so that steps which grow longer do not mislead."""
        ratios = []
        for number in range(GAP, len(self._seconds) - 1, GAP):
            # The call of number N was told of the step before it; lines were kept in the next.
            before, with_lines, after = self._seconds[number - 1 : number + 2]
            ratios.append(2 * with_lines / max(before + after, 1e-9))
        ratio = median(ratios)
        self.cost = max(ratio - 1, 0.0)
        self.every = 1 if ratio <= BEARABLE else max(2, round(self.cost / SHARE))
