"""Recorded parts of a run: what a snapshot shows, and which of two is the better evidence."""

from __future__ import annotations

import gc
import pickle
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SLACK = 0.001  # seconds, between the clock that events were stamped with and ours


@dataclass(frozen=True)
class Window:
    """A snapshot, and what it covers.

    Attributes:
        snapshot: Pickled, as PyTorch gave it.
        begun: Unix time from which everything was recorded.
        ended: Unix time at which it was taken.
        peak: Most bytes requested within, summed over the devices; with those that were freed and
            wait for a stream, as the allocator's counter has them.
        reserved: Bytes of segments at its end.
        out_of_memory: Whether memory ran out within.
    """

    snapshot: bytes
    begun: float
    ended: float
    peak: int
    reserved: int
    out_of_memory: bool = False

    def covers(self, moment: float) -> bool:
        """Whether a moment (Unix time) lies within."""
        return self.begun - SLACK <= moment <= self.ended + SLACK

    def says_more_than(self, other: Window | None) -> bool:
        """Whether it is the better evidence: of an out-of-memory, or of more memory in use."""
        return other is None or self.rank > other.rank

    @property
    def rank(self) -> tuple[bool, int, int]:
        """What it is evidence of, what matters most first."""
        return self.out_of_memory, self.peak, self.reserved


def window_of(
    snapshot: dict[str, Any], begun: float, ended: float, most: int, *, out_of_memory: bool
) -> Window:
    """What a snapshot shows.

    Args:
        snapshot: As `torch.cuda.memory._snapshot()` gives it.
        begun: Unix time from which everything was recorded.
        ended: Unix time at which it was taken.
        most: Events that the history holds; of more the first are lost.
        out_of_memory: Whether memory ran out in between.
    """
    traces = snapshot.get("device_traces") or []
    full = [trace[0].get("time_us", 0) / 1e6 for trace in traces if len(trace) >= most]
    begun = max([begun, *full])
    peak = sum(_peak(trace, _requested(snapshot, d)) for d, trace in enumerate(traces))
    reserved = sum(segment.get("total_size", 0) for segment in snapshot.get("segments") or [])
    data = pickle.dumps(snapshot, protocol=4)
    return Window(data, begun, ended, peak, reserved, out_of_memory)


@contextmanager
def no_collections() -> Iterator[None]:
    """A snapshot's many objects do not make Python collect the script's garbage earlier."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _requested(snapshot: dict[str, Any], device: int) -> int:
    return sum(
        block.get("requested_size", block["size"])
        for segment in snapshot.get("segments") or []
        if segment.get("device", 0) == device
        for block in segment.get("blocks") or []
        if block["state"] != "inactive"
    )


def _peak(trace: list[dict[str, Any]], live: int) -> int:
    """Most bytes live, reckoned back from those at the end."""
    highest = live
    for event in reversed(trace):
        if event["action"] == "alloc":
            live -= event["size"]
        elif event["action"] == "free_completed":
            live += event["size"]
            highest = max(highest, live)
    return highest
