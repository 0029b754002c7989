"""Lines and steps of storages whose making was not watched, from the run's own trace."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from tenure.lifetimes import Sites, lifetimes
from tenure.live.runs.attribution import event_at
from tenure.live.runs.record import Birth

if TYPE_CHECKING:
    from tenure.lifetimes.holders import Holder
    from tenure.live.runs.record import Look, Record
    from tenure.traces import Trace


def name_births(record: Record, trace: Trace) -> None:
    """Gives each look the births that it lacks, by the addresses of its storages.

    Args:
        record: Of the run; its looks are completed.
        trace: Of its main device.
    """
    births = _Births(record, trace)
    window = record.gpu.window
    for look in record.looks:
        if window is not None and not window.covers(look.time):
            continue  # by then the addresses may be those of others
        event = event_at(trace, look.time)
        for holder in look.holders.holders:
            if holder.address and holder.storage not in look.births:
                births.add(look, holder, event)


class _Births:
    def __init__(self, record: Record, trace: Trace) -> None:
        self._born, self._gone = lifetimes(trace)
        self._sites = Sites(trace)
        self._times = trace.events.time_us
        self._passes = record.passes
        self._ends = [mark.time for mark in record.steps]
        self._steps = record.steps[-1].number if record.steps else 0
        self._numbers: dict[int, list[int]] = defaultdict(list)  # of an address, in order of birth
        for number, address in enumerate(trace.allocations.address.tolist()):
            self._numbers[address].append(number)

    def add(self, look: Look, holder: Holder, event: int) -> None:
        numbers = self._numbers.get(holder.address, [])
        place = bisect_left(numbers, event, key=lambda n: int(self._born[n])) - 1
        if place < 0 or self._gone[numbers[place]] < event:
            return
        number = numbers[place]
        frame = self._sites.table[int(self._sites.of_allocation[number])].user
        lines = ((frame.file, frame.line, frame.name),) if frame else ()
        birth = Birth(-1 - number, holder.bytes, holder.device, lines, self._passes_at(number))
        gone = int(self._gone[number])
        if gone < len(self._times):
            birth.fate = "backward"  # or dropped: the trace cannot tell, and this accuses nobody
            birth.fate_passes = self._passes_before(gone)
        look.births[holder.storage] = birth

    def _passes_at(self, number: int) -> int:
        born = int(self._born[number])
        return self._passes_before(born) if born >= 0 else 0

    def _passes_before(self, event: int) -> int:
        """Backward passes begun before an event: each step since then has had one at least."""
        moment = int(self._times[event]) / 1e6
        before = bisect_left(self._ends, moment)
        kept = len(self._ends)
        after = round((kept - before) * self._steps / kept) if kept else 0
        return max(self._passes - after, 0)
