"""The reference model serves recorded runs of PyTorch address for address.

The recordings are our own files, so plain pickle may read them. A recording says where the device
put each segment, when a pending free completed and when memory went back; everything else, the
model has to find out by itself.
"""

from __future__ import annotations

import bisect
import json
import lzma
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from model.reference_allocator import ReferenceAllocator
from model.reference_blocks import (
    DEFAULT_POOL,
    MIB,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    ModelOutOfMemoryError,
    PoolId,
    ReferenceDevice,
    Settings,
)
from shared_data import ABSENT, GOLDEN, SHARED, name_of

if TYPE_CHECKING:
    from pathlib import Path

# Beside the golden ones. Between them: default settings, a limit with retries, garbage collection,
# oversize blocks, an out-of-memory error, arenas under a limit, two streams with pending blocks,
# private pools.
MORE_RECORDINGS = (
    "gnn.expandable",
    "gnn.limit12_gc06",
    "gnn.limit14",
    "gnn.roundup4",
    "gpt2_varlen.limit13_expandable",
    "llama_lora.limit5.5",
    "llama_lora.limit5.5_split64",
    "oom.expandable",
    "oom.gc05",
    "oom.split128",
    "prefetch_streams.expandable",
)
SEGMENT_CODES = {
    "segment_alloc": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_map": SEGMENT_MAP,
    "segment_unmap": SEGMENT_UNMAP,
}
STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2}


class RecordedDevice(ReferenceDevice):
    """Hands out the addresses that the driver gave, in order."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        super().__init__()
        self.segments = [e for e in events if e["action"] == "segment_alloc"]
        self.maps = [e["addr"] for e in events if e["action"] == "segment_map"]

    def create(self, size: int) -> int | None:
        self.used += size
        event = self.segments.pop(0)
        assert event["size"] == size
        return int(event["addr"])

    def reserve(self, size: int) -> int:
        return int(self.maps[0])  # a new arena is mapped at its begin next

    def take(self, size: int) -> bool:
        self.maps.pop(0)
        return super().take(size)


def settings_of(snapshot: dict[str, Any], truth: dict[str, Any]) -> Settings:
    recorded = snapshot["allocator_settings"]
    return Settings(
        expandable_segments=recorded["expandable_segments"],
        max_split_size=recorded["max_split_size"],
        garbage_collection_threshold=recorded["garbage_collection_threshold"],
        roundup_power2_divisions=tuple(recorded["roundup_power2_divisions"].values()),
        limit=-1 if truth["limit_bytes"] is None else truth["limit_bytes"],
    )


class Replay:
    """One recording through the model."""

    def __init__(self, snapshot: dict[str, Any], truth: dict[str, Any]) -> None:
        self.events = max(snapshot["device_traces"], key=len)
        self.segments = snapshot["segments"]
        self.starts = [segment["address"] for segment in self.segments]
        self.model = ReferenceAllocator(settings_of(snapshot, truth), RecordedDevice(self.events))
        self.given_back = [
            (event["addr"], event["addr"] + event["size"], index)
            for index, event in enumerate(self.events)
            if event["action"] in {"segment_free", "segment_unmap"}
        ]
        self.expected: list[tuple[int, int, int]] = []  # segment events
        self.seen: list[tuple[int, int, int]] = []
        self.emptied = False  # since the last new private pool

    def pool_of(self, index: int, address: int) -> PoolId:
        """torch 2.11 does not record the pool of a request; its segment tells, if it stays."""
        for begin, end, when in self.given_back:
            if when > index and begin <= address < end:
                return DEFAULT_POOL
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0 or address >= self.starts[at] + self.segments[at]["total_size"]:
            return DEFAULT_POOL
        first, second = self.segments[at]["segment_pool_id"]
        return first, second

    def run(self) -> None:
        run: list[dict[str, Any]] = []  # segment events since the last other event
        for index, event in enumerate(self.events):
            action = event["action"]
            if action in SEGMENT_CODES:
                self.expected.append((SEGMENT_CODES[action], event["addr"], event["size"]))
                run.append(event)
                continue
            if run:
                self.explain(run, action)
                run = []
            getattr(self, action)(index, event)
            self.seen += self.model.segment_events()
        if run:
            self.explain(run, "end")
        self.seen += self.model.segment_events()

    def explain(self, run: list[dict[str, Any]], after: str) -> None:
        """Memory given back that no request under a limit explains: somebody emptied the cache."""
        given = run[0]["action"] in {"segment_free", "segment_unmap"}
        taken = any(event["action"] in {"segment_alloc", "segment_map"} for event in run)
        if given and after != "oom" and (not taken or self.model.limit < 0):
            self.model.empty_cache()
            self.emptied = True

    def alloc(self, index: int, event: dict[str, Any]) -> None:
        pool = self.pool_of(index, event["addr"])
        if pool not in self.model.pools:
            if not self.emptied:  # torch.cuda.graph empties the cache before it captures
                self.model.empty_cache()
            self.emptied = False
            self.model.create_pool(pool)
        found = self.model.allocate(event["size"], event["stream"], pool)
        assert found == event["addr"], f"event {index}: {event}"

    def free_requested(self, index: int, event: dict[str, Any]) -> None:
        after = self.events[index + 1] if index + 1 < len(self.events) else {}
        if (after.get("action"), after.get("addr")) != ("free_completed", event["addr"]):
            self.model.record_stream(event["addr"], event["stream"] + 1)
        self.model.free(event["addr"])

    def free_completed(self, index: int, event: dict[str, Any]) -> None:
        if event["addr"] in self.model.pending:
            self.model.complete(event["addr"])

    def oom(self, index: int, event: dict[str, Any]) -> None:
        with pytest.raises(ModelOutOfMemoryError):
            self.model.allocate(event["size"], event["stream"])

    def snapshot(self, index: int, event: dict[str, Any]) -> None:
        pass


def recorded_blocks(segments: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            segment["address"],
            block["address"],
            block["size"],
            block["requested_size"],
            STATES[block["state"]],
            segment["stream"],
            tuple(segment["segment_pool_id"]),
        )
        for segment in segments
        for block in segment["blocks"]
    ]


def load(path: Path) -> dict[str, Any]:
    with lzma.open(path) as file:
        snapshot: dict[str, Any] = pickle.load(file)
    return snapshot


def replay(path: Path) -> Replay:
    truth = json.loads(path.with_name(f"{name_of(path)}.json").read_text())
    snapshot = load(path)
    result = Replay(snapshot, truth)
    result.run()
    assert result.seen == result.expected
    statistics = result.model.statistics()
    wrong = {k: (statistics[k], v) for k, v in truth["stats"].items() if statistics[k] != v}
    assert wrong == {}
    assert statistics.keys() == truth["stats"].keys()
    assert result.model.blocks() == recorded_blocks(snapshot["segments"])
    result.model.check()
    return result


def available() -> list[Any]:
    params = [
        pytest.param(path, id=name_of(path))
        for path in sorted(GOLDEN.glob("*.pickle.xz"))
        if path.with_name(f"{name_of(path)}.json").exists()
    ]
    for name in MORE_RECORDINGS:
        path = SHARED / "traces" / f"{name}.pickle.xz"
        missing = pytest.mark.skipif(not path.exists(), reason=ABSENT)
        params.append(pytest.param(path, id=name, marks=missing))
    return params


@pytest.mark.parametrize("path", available())
def test_model_serves_the_recording_exactly(path: Path) -> None:
    replay(path)


def test_reservations_follow_the_driver() -> None:
    """Arenas of 9/8 of the device's memory, in the order of their first use."""
    device = ReferenceDevice()
    model = ReferenceAllocator(Settings(expandable_segments=True), device)
    first = model.allocate(4 * MIB)
    second = model.allocate(4096)
    assert first == 0x3_0200_0000
    assert second - first == 168_883_650_560 + 2 * MIB
