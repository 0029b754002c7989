"""A long snapshot, made by repeating whole training steps of a recorded one.

    python -m benchmarks.repeating SOURCE TARGET [EVENTS]

The requests of the recorded steps, stacks included, are put through the allocator again and again,
which gives each its address: a file as PyTorch would have written it after a longer run.
"""

from __future__ import annotations

import lzma
import pickle
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tenure import _engine
from tenure.settings import engine_settings
from tenure.snapshots import load
from tenure.traces import Action, Trace

MILLION = 1_000_000
SEGMENT = {Action.SEGMENT_ALLOC: "segment_alloc", Action.SEGMENT_FREE: "segment_free"}
SEGMENT |= {Action.SEGMENT_MAP: "segment_map", Action.SEGMENT_UNMAP: "segment_unmap"}
STATES = ("inactive", "active_allocated", "active_pending_free")

Plain = dict[str, Any]


def repeat_steps(source: Path, target: Path, events: int = MILLION) -> int:
    """Writes a snapshot of at least so many events; how many it has.

    The recording must begin empty, have optimizer annotations, and use one stream.
    """
    trace = load(source)
    packed = source.read_bytes()
    plain = pickle.loads(  # noqa: S301  as PyTorch's own tools do; the recordings are ours
        lzma.decompress(packed) if source.suffix == ".xz" else packed
    )
    recorded = plain["device_traces"][trace.device]
    first, last = _whole_steps(trace)
    rounds = -(-(events - len(recorded)) // (last - first))
    writer = _Writer(trace, recorded)
    writer.run(0, last)
    carried = _carried(trace, first, last)
    times = trace.events.time_us
    begin, end = int(times[first]), int(times[last])
    for _ in range(max(rounds, 0)):
        writer.enter(carried, end - begin)
        writer.run(first, last)
    writer.run(last, len(recorded))
    result = {
        **plain,
        "segments": writer.segments(),
        "device_traces": [
            writer.events if each is recorded else [] for each in plain["device_traces"]
        ],
        "external_annotations": _annotations(plain, begin, end, max(rounds, 0)),
    }
    with target.open("wb") as file:
        pickle.dump(result, file, protocol=4)
    return len(writer.events)


def _whole_steps(trace: Trace) -> tuple[int, int]:
    """The events at which the second step ends, and the last one."""
    ends = [a.end_us for a in trace.annotations if a.name.startswith("Optimizer.step#")]
    at = np.searchsorted(trace.events.time_us, np.array(ends, np.int64))
    return int(at[1]), int(at[-1])


def _carried(trace: Trace, first: int, last: int) -> dict[int, int]:
    """What is live when the repeated steps begin -> what has its part when they end."""
    allocations = trace.allocations

    def live(event: int) -> dict[int, list[int]]:
        found = defaultdict(list)
        gone = np.where(allocations.freed < 0, len(trace.events), allocations.freed)
        for number in np.flatnonzero((allocations.born < event) & (gone >= event)).tolist():
            found[int(allocations.stack[number])].append(number)
        return found

    begin, end = live(first), live(last)
    if {k: len(v) for k, v in begin.items()} != {k: len(v) for k, v in end.items()}:
        raise SystemExit("these steps do not begin as they end: they cannot be repeated")
    pairs = (zip(begin[k], end[k], strict=True) for k in begin)
    return dict(pair for each in pairs for pair in each)


class _Writer:
    """Runs recorded requests through the allocator and writes down what PyTorch would."""

    def __init__(self, trace: Trace, recorded: list[Plain]) -> None:
        self.events: list[Plain] = []
        self._recorded = recorded
        self._numbers = trace.events.allocation.tolist()
        settings = engine_settings(trace.settings)
        self._allocator = _engine.Allocator(settings, _engine.VirtualDevice())
        self._address: dict[int, int] = {}
        self._frames: dict[int, list[Plain]] = {}  # of each live address
        self._later = 0  # microseconds, by which what is repeated is later than recorded

    def enter(self, carried: dict[int, int], length: int) -> None:
        """What the last round left takes the part of what the first began with."""
        self._address = {begin: self._address[end] for begin, end in carried.items()}
        self._later += length

    def run(self, begin: int, end: int) -> None:
        """Repeats the recorded events begin <= e < end."""
        for event, number in zip(self._recorded[begin:end], self._numbers[begin:end], strict=True):
            if event["action"] == "alloc":
                frames = list(event["frames"])  # PyTorch writes a list for each request
                address = self._allocator.allocate(event["size"], event["stream"])
                for action, start, size in self._allocator.segment_events():
                    self._write(event, frames, start, SEGMENT[Action(action)], size)
                self._address[number] = address
                self._frames[address] = frames
                self._write(event, frames, address)
            elif event["action"] == "free_requested":
                address = self._address.pop(number)
                del self._frames[address]
                self._allocator.free(address)
                frames = list(event["frames"])
                self._write(event, frames, address)
                self._write(event, frames, address, "free_completed")

    def _write(
        self, event: Plain, frames: list[Plain], address: int, action: str = "", size: int = 0
    ) -> None:
        written = {**event, "addr": address, "frames": frames}
        written["time_us"] += self._later
        if action:
            written["action"] = action
        if size:
            written["size"] = size
        self.events.append(written)

    def segments(self) -> list[Plain]:
        """The end state, as a snapshot lists it."""
        found: dict[int, Plain] = {}
        for segment, address, size, requested, state, stream, _pool in self._allocator.blocks():
            one = found.setdefault(
                segment,
                {
                    "device": 0,
                    "address": segment,
                    "total_size": 0,
                    "stream": stream,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [],
                },
            )
            one["total_size"] += size
            one["blocks"].append(
                {
                    "address": address,
                    "size": size,
                    "requested_size": requested,
                    "state": STATES[state],
                    "frames": self._frames.get(address, []),
                }
            )
        for one in found.values():
            if one["total_size"] == 2 << 20:
                one["segment_type"] = "small"
        return list(found.values())


def _annotations(plain: Plain, begin: int, end: int, rounds: int) -> list[Plain]:
    recorded = plain["external_annotations"]
    before = [a for a in recorded if a["time_us"] < end]
    inside = [a for a in before if a["time_us"] >= begin]
    after = [a for a in recorded if a["time_us"] >= end]

    def later(annotations: list[Plain], times: int) -> list[Plain]:
        return [{**a, "time_us": a["time_us"] + times * (end - begin)} for a in annotations]

    repeated = [a for k in range(rounds) for a in later(inside, k + 1)]
    return [*before, *repeated, *later(after, rounds)]


if __name__ == "__main__":
    print(repeat_steps(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
