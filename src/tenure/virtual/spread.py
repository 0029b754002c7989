"""How far a run's peaks move if what was guessed is otherwise.

Which block serves a request depends on the sizes of those before it, so a guess that is off by a
little can cost a whole segment. The run's requests are replayed with other guesses: each size that
was guessed is kept, taken for nothing, or for more, about as often as guesses were wrong when they
were compared with a card (docs/virtual-operators.md).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tenure import _engine
from tenure.settings import engine_settings
from tenure.units import MIB
from tenure.virtual.foretelling import Requests
from tenure.virtual.memory import ALLOC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.virtual.memory import Memory

_TRIALS = 8
_MATTERS = MIB  # smaller requests share segments of 2 MiB, whatever their sizes
_KEPT, _NOTHING = 0.80, 0.92  # parts of the guesses: kept, or taken for nothing; the rest is more
_MORE = 8 * MIB  # what partial sums add to a workspace, as a rule


def peak_ranges(memory: Memory) -> dict[str, tuple[float, float]]:
    """The least and the most that is allocated and reserved at the peaks, as parts of what was.

    Returns:
        (1.0, 1.0) for each where nothing that matters was guessed, or memory pools were used.
    """
    as_they_were = {"allocated": (1.0, 1.0), "reserved": (1.0, 1.0)}
    guessed = _guessed(memory)
    if memory.pools or not guessed.any():
        return as_they_were
    requests = Requests.of(memory)
    guessed &= requests.size >= _MATTERS
    if not guessed.any():
        return as_they_were
    was = _peaks(memory, requests, requests.size)
    others = [
        _peaks(memory, requests, _otherwise(requests.size, guessed, seed))
        for seed in range(_TRIALS)
    ]
    return {
        name: (
            min(1.0, min(peaks[name] for peaks in others) / was[name]),
            max(1.0, max(peaks[name] for peaks in others) / was[name]),
        )
        for name in as_they_were
    }


def _guessed(memory: Memory) -> NDArray[np.bool_]:
    """Whether the size of each allocation was guessed."""
    begins = np.frombuffer(memory.actions, np.uint8) == ALLOC
    guessed = np.zeros(len(begins), np.bool_)
    guessed[memory.guesses] = True
    of_allocations: NDArray[np.bool_] = guessed[begins]
    return of_allocations


def _otherwise(
    sizes: NDArray[np.int64], guessed: NDArray[np.bool_], seed: int
) -> NDArray[np.int64]:
    """Sizes with other guesses: the same for equal ones, as a library chooses by shape."""
    chance = random.Random(seed)  # noqa: S311  no secret
    other = sizes.copy()
    for size in np.unique(sizes[guessed]).tolist():
        drawn = chance.random()
        if drawn >= _KEPT:
            other[guessed & (sizes == size)] = 1 if drawn < _NOTHING else size + _MORE
    return other


def _peaks(memory: Memory, requests: Requests, sizes: NDArray[np.int64]) -> dict[str, int]:
    """Bytes allocated and reserved at their peaks, with no limit."""
    device = _engine.VirtualDevice(-1, "descending")
    settings = replace(memory.settings, limit=-1)
    allocator = _engine.Allocator(engine_settings(settings), device)
    addresses = [0] * len(sizes)
    streams, wanted = requests.stream.tolist(), sizes.tolist()
    for number, begins in zip(requests.number.tolist(), requests.begins.tolist(), strict=True):
        if begins:
            addresses[number] = allocator.allocate(wanted[number], streams[number])
        else:
            allocator.free(addresses[number])
    statistics = allocator.statistics()
    return {name: int(statistics[f"{name}_bytes.all.peak"]) for name in ("allocated", "reserved")}
