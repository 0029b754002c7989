"""What one round leaves alive into the next one's peak, to be freed only there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes.codes import allocation_codes, block_sizes, lifetimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.rounds import Rounds
    from tenure.traces import Trace


@dataclass(frozen=True)
class Overlap:
    """Blocks of the round before that are live at the peak and freed before the round ends.

    Attributes:
        bytes: Of all of them.
        allocations: Their numbers, largest first.
        remade: Bytes of those that a new block of the same kind joins before they are freed, as
            when a name is bound anew in a loop.
        round: Index of the round with the peak.
    """

    bytes: int
    allocations: tuple[int, ...]
    remade: int
    round: int


def find_overlap(trace: Trace, rounds: Rounds | None, peak_event: int) -> Overlap | None:
    """What the round before the peak left alive; None without rounds, or with nothing left.

    Args:
        trace: The trace.
        rounds: Its repetitions.
        peak_event: The event after which most was live.
    """
    if rounds is None or rounds.inside_module:
        return None
    here = int(np.searchsorted(rounds.begin, peak_event, "right")) - 1
    if here < 1 or peak_event >= rounds.end[here]:
        return None
    begin, end = int(rounds.begin[here]), int(rounds.end[here])
    born, gone = lifetimes(trace)
    left = (born >= rounds.begin[here - 1]) & (born < begin) & (gone > peak_event) & (gone < end)
    numbers = np.flatnonzero(left)
    if not len(numbers):
        return None
    size = block_sizes(trace)
    numbers = numbers[np.argsort(-size[numbers], kind="stable")]
    remade = _remade(trace, numbers, begin, born, gone)
    return Overlap(
        int(size[numbers].sum()), tuple(numbers.tolist()), int(size[numbers[remade]].sum()), here
    )


def _remade(
    trace: Trace,
    numbers: NDArray[np.int64],
    begin: int,
    born: NDArray[np.int64],
    gone: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Which of them live on beside a new block of the same kind."""
    code = allocation_codes(trace)
    new = np.flatnonzero(born >= begin)
    first: dict[int, int] = {}
    for kind, event in zip(code[new].tolist(), born[new].tolist(), strict=True):
        first.setdefault(kind, event)
    return np.array([first.get(int(code[n]), gone[n]) < gone[n] for n in numbers], bool)
