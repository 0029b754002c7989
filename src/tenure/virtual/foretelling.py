"""What a run would need with another value of its argument, from two runs that were made.

With one value more every tensor grows by its own amount, so two runs that ask for the same things
in the same order tell every request of a third. Those go to the allocator like any others: what it
rounds, splits and keeps is foretold with them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tenure import _engine
from tenure.errors import OutOfMemoryError
from tenure.settings import AllocatorSettings, engine_settings
from tenure.virtual.memory import ALLOC, FREE_COMPLETED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.virtual.memory import Memory


@dataclass(frozen=True)
class Requests:
    """What a run asked for and gave back, in order.

    Attributes:
        number: Of the allocation that each event is about, counted from 0.
        begins: Whether the event is its birth; else its end.
        size: Bytes of each allocation.
        stream: Of each allocation.
    """

    number: NDArray[np.int64]
    begins: NDArray[np.bool_]
    size: NDArray[np.int64]
    stream: NDArray[np.uint64]

    @staticmethod
    def of(memory: Memory) -> Requests:
        """Of a run that was made."""
        number: list[int] = []
        begins: list[bool] = []
        size: list[int] = []
        stream: list[int] = []
        living: dict[int, int] = {}
        events = zip(memory.actions, memory.addresses, memory.sizes, memory.streams, strict=True)
        for action, address, bytes_, of_stream in events:
            if action == ALLOC:
                living[address] = len(size)
                size.append(bytes_)
                stream.append(of_stream)
            elif action != FREE_COMPLETED:
                continue
            number.append(living[address])
            begins.append(action == ALLOC)
        return Requests(
            np.array(number, np.int64),
            np.array(begins, np.bool_),
            np.array(size, np.int64),
            np.array(stream, np.uint64),
        )

    def save(self, path: Path) -> None:
        """Writes them to a file."""
        with path.open("wb") as file:
            np.savez(file, **vars(self))

    @staticmethod
    def read(path: Path) -> Requests:
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            return Requests(**{f.name: arrays[f.name] for f in fields(Requests)})

    def is_like(self, other: Requests) -> bool:
        """Whether another run asks for the same things in the same order, whatever their sizes.

        Between two births any order of ends will do: autocast's cache has none.
        """
        return np.array_equal(self._ends(), other._ends())

    def _ends(self) -> NDArray[np.int64]:
        """For each allocation the number of births before its end; -1 where it has none."""
        found = np.full(len(self.size), -1, np.int64)
        ends = ~self.begins
        found[self.number[ends]] = np.cumsum(self.begins)[ends]
        return found

    def fit(self, size: NDArray[np.int64], settings: AllocatorSettings, usable: int) -> bool:
        """Whether they are all served, with other sizes.

        Args:
            size: Bytes of each allocation.
            settings: Of the allocator.
            usable: Bytes of the card that tensors can use.
        """
        allocator = _engine.Allocator(
            engine_settings(settings), _engine.VirtualDevice(usable, "descending")
        )
        sizes, streams = size.tolist(), self.stream.tolist()
        addresses = [0] * len(sizes)
        try:
            for number, begins in zip(self.number.tolist(), self.begins.tolist(), strict=True):
                if begins:
                    addresses[number] = allocator.allocate(sizes[number], streams[number])
                else:
                    allocator.free(addresses[number])
        except OutOfMemoryError:
            return False
        return True


def largest_that_fits(
    runs: dict[int, Requests], settings: AllocatorSettings, usable: int, bounds: tuple[int, int]
) -> int | None:
    """The largest value within bounds with which a run is foretold to fit.

    Args:
        runs: The requests of two values.
        settings: Of the allocator.
        usable: Bytes of the card that tensors can use.
        bounds: The least value, which is taken to fit, and the least that is taken not to.

    Returns:
        None where the two runs do not ask for the same things.
    """
    (first, one), (second, other) = sorted(runs.items())
    if not one.is_like(other):
        return None
    rise = (other.size - one.size) / (second - first)

    def fits(value: int) -> bool:
        sizes: Any = np.maximum(np.rint(one.size + rise * (value - first)), 1).astype(np.int64)
        return one.fit(sizes, settings, usable)

    low, high = bounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
