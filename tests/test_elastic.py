"""Elastic rules on recorded runs: what they need, what they cost, and that their books balance."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_data import ABSENT, EXAMPLES, GOLDEN, name_of, traces
from tenure import _engine
from tenure.errors import OutOfMemoryError, UsageError
from tenure.replays import live_peak, recorded_replay, replay, smallest_capacity
from tenure.replays.feeding import feed
from tenure.settings import AllocatorSettings, engine_settings
from tenure.snapshots import load
from tenure.traces import Action, Trace
from tenure.units import GIB, MIB

ELASTIC = AllocatorSettings(rules="elastic")


@cache
def trace_of(path: Path) -> Trace:
    return load(path)


@cache
def calls_of(path: Path) -> list[Any]:
    return list(recorded_replay(trace_of(path)).calls)


def under(path: Path, **changes: Any) -> dict[str, Any]:
    chosen = replace(ELASTIC, **changes)
    return feed(trace_of(path), chosen, calls=calls_of(path), compare=False)


def smallest(path: Path) -> int:
    free = under(path)["peaks"]["reserved"]["bytes"]
    return smallest_capacity(trace_of(path), ELASTIC, calls=calls_of(path), enough=free)


def active_peak(trace: Trace) -> int:
    """Peak bytes held until their free completed; requests rounded up to 512 bytes."""
    allocations = trace.allocations
    size = (allocations.requested + 511) // 512 * 512
    change = np.zeros(len(trace.events) + 1, np.int64)
    np.add.at(change, allocations.born + 1, size)
    gone = allocations.done >= 0
    np.subtract.at(change, allocations.done[gone] + 1, size[gone])
    return int(np.cumsum(change).max())


# --- a few recordings, to the byte ---------------------------------------------------------------

# Smallest capacity in MiB of the recordings in examples/: a change of policy changes these.
SMALLEST = {
    "gpt2_varlen": 12_822,
    "leak_graph": 1_246,
    "prefetch_streams": 2_704,
    "resnet50": 3_058,
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_capacity_of_a_recording_is_known(name: str) -> None:
    path = EXAMPLES / f"{name}.pickle.xz"
    capacity = smallest(path)
    assert capacity == SMALLEST[name] * MIB
    assert capacity <= 1.015 * live_peak(trace_of(path))
    assert under(path, limit=capacity)["first_oom"] is None
    assert under(path, limit=capacity - 2 * MIB)["first_oom"] is not None


def test_a_run_that_failed_in_life_goes_through_at_its_own_limit() -> None:
    """PyTorch ran out of memory at 5.5 GiB with 4.2 GiB live."""
    path = EXAMPLES / "llama_lora.limit5.5.pickle.xz"
    trace = trace_of(path)
    recorded = replay(trace)
    assert recorded.first_oom is not None
    result = replay(trace, rules="elastic", capacity="5.5GiB")
    assert result.first_oom is None
    assert result.peak.reserved <= 5.5 * GIB
    assert result.statistics["num_sync_all_streams"] == 0
    assert result.elastic["host_waits"] == 0


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.pickle.xz")), ids=name_of)
def test_requests_are_the_programs_under_any_rules(path: Path) -> None:
    trace = trace_of(path)
    recorded = replay(trace)
    result = replay(trace, rules="elastic")
    assert not result.compared
    assert result.end.requested == recorded.end.requested
    if recorded.first_oom is None:
        assert result.peak.active <= recorded.peak.active
    assert result.spread == (result.peak.reserved, result.peak.reserved)
    assert result.settings.rules == "elastic"
    assert recorded.stall_seconds is None
    assert recorded.chunk_moves == 0


def test_without_a_limit_nothing_moves_or_waits() -> None:
    for name in SMALLEST:
        counts = under(EXAMPLES / f"{name}.pickle.xz")["elastic"]
        assert counts["moves"] == counts["unmaps"] == counts["events"] == 0
        assert counts["host_waits"] == counts["stall_seconds"] == 0
        assert counts["maps"] == counts["creates"]


def test_the_books_balance_at_every_turn_of_a_recording() -> None:
    """The allocator's own check, and no two live blocks at one address, near the limit."""
    trace = trace_of(EXAMPLES / "prefetch_streams.pickle.xz")
    limit = int(1.02 * active_peak(trace))
    allocator = _engine.Allocator(
        engine_settings(replace(ELASTIC, limit=limit)), _engine.VirtualDevice()
    )
    address: dict[int, int] = {}
    events = trace.events
    for i, action in enumerate(events.action.tolist()):
        number, stream = int(events.allocation[i]), int(events.stream[i])
        if action == Action.ALLOC:
            address[number] = allocator.allocate(int(events.size[i]), stream)
        elif action == Action.FREE_COMPLETED:
            allocator.finish(stream)
            allocator.free(address.pop(number))
        else:
            continue
        if i % 37 == 0:
            allocator.check()
            blocks = [block for block in allocator.blocks() if block[4] != 0]
            assert all(a[1] + a[2] <= b[1] for a, b in pairwise(blocks))
    assert allocator.elastic_statistics()["moves"] > 100
    assert allocator.statistics()["reserved_bytes.all.peak"] <= limit


# --- settings ------------------------------------------------------------------------------------


def test_elastic_rules_take_no_settings_of_pytorch() -> None:
    trace = trace_of(EXAMPLES / "leak_graph.pickle.xz")
    with pytest.raises(UsageError, match="max_split_size_mb"):
        replay(trace, conf="max_split_size_mb:128", rules="elastic")
    with pytest.raises(UsageError, match="rules"):
        replay(trace, rules="plastic")


def test_smaller_chunks_need_less_and_larger_ones_move_less() -> None:
    path = EXAMPLES / "prefetch_streams.pickle.xz"
    limit = int(1.2 * active_peak(trace_of(path)))
    small = under(path, limit=limit, chunk_size=2 * MIB)
    large = under(path, limit=limit, chunk_size=20 * MIB)
    assert small["first_oom"] is None
    assert large["first_oom"] is None
    assert large["chunk_moves"] < small["chunk_moves"]
    assert under(path, limit=limit, chunk_divisor=100)["chunk_moves"] < small["chunk_moves"]


def test_costs_can_be_replaced() -> None:
    path = EXAMPLES / "prefetch_streams.pickle.xz"
    trace = trace_of(path)
    native = engine_settings(replace(ELASTIC, limit=int(1.02 * active_peak(trace))))
    assert tuple(native.call_costs) == (14, 1, 30, 20, 15, 0.6, 0.2)
    native.call_costs = [0, 0, 0, 1e6, 0, 0, 0]
    allocator = _engine.Allocator(native, _engine.VirtualDevice())
    assert allocator.elastic_statistics()["stall_seconds"] == 0


def test_a_soft_limit_keeps_reserved_near_what_is_live() -> None:
    path = EXAMPLES / "prefetch_streams.pickle.xz"
    free, soft = under(path), under(path, soft_limit=1.05)
    active = active_peak(trace_of(path))
    assert free["peaks"]["reserved"]["bytes"] > 1.2 * active
    assert soft["peaks"]["reserved"]["bytes"] <= 1.06 * active
    assert soft["elastic"]["moves"] > 0


def test_a_host_that_runs_ahead_hardly_waits() -> None:
    """A moved chunk is mapped anew while its old use is queued; only the old mapping waits.

    What cannot be mapped anew is a chunk larger than what is missing: its last use must be over.
    """
    path = EXAMPLES / "gpt2_varlen.pickle.xz"
    trace = trace_of(path)
    chosen = replace(ELASTIC, limit=int(1.01 * active_peak(trace)))
    ahead = feed(trace, chosen, calls=calls_of(path), compare=False, lead_us=50_000)
    counts = ahead["elastic"]
    assert ahead["first_oom"] is None
    assert counts["aliased"] > 50
    assert counts["host_waits"] <= 2
    assert counts["stream_waits"] == 0
    assert counts["unmaps"] >= 0.9 * counts["moves"]


def test_the_command_replays_under_elastic_rules() -> None:
    path = EXAMPLES / "gpt2_varlen.pickle.xz"
    command = [sys.executable, "-m", "tenure", "replay", str(path)]
    command += ["--rules", "elastic", "--capacity", "12.7GiB"]
    found = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    result = json.loads(found.stdout)
    assert result["rules"] == "elastic"
    assert result["ooms"] == 0
    assert result["chunk_moves"] > 0
    assert result["stall_seconds"] > 0
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "chunks moved" in text


# --- random calls --------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "free", "free", "use", "finish", "empty"]),
        st.integers(1, 12 * MIB),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=60)
@given(CALLS, st.sampled_from([-1, 24 * MIB, 40 * MIB]), st.sampled_from([0, 2 * MIB, 6 * MIB]))
def test_any_calls_leave_the_allocator_whole(
    calls: list[tuple[str, int, int]], limit: int, chunk_size: int
) -> None:
    chosen = replace(ELASTIC, limit=limit, chunk_size=chunk_size, device_memory=GIB)
    device = _engine.VirtualDevice(60 * MIB)
    allocator = _engine.Allocator(engine_settings(chosen), device)
    live: list[int] = []
    for name, number, stream in calls:
        if name == "allocate":
            try:
                live.append(allocator.allocate(number, stream))
            except OutOfMemoryError:
                assert live or limit != -1
        elif name == "free" and live:
            allocator.free(live.pop(number % len(live)))
        elif name == "use" and live:
            allocator.record_stream(live[number % len(live)], stream)
        elif name == "finish":
            allocator.finish(stream)
        elif name == "empty":
            allocator.empty_cache()
        allocator.check()
        reserved = allocator.statistics()["reserved_bytes.all.current"]
        assert reserved == device.used <= (limit if limit != -1 else 60 * MIB)
    while live:
        allocator.free(live.pop())
    allocator.empty_cache()
    assert device.used == 0


# --- the shared recordings: the bars -------------------------------------------------------------


def default_traces() -> list[Path]:
    """Under default settings, without a limit, with more than 1 GiB live."""
    found = []
    for path in traces():
        truth = json.loads(path.with_name(f"{name_of(path)}.json").read_text(encoding="utf-8"))
        large = truth["stats"]["allocated_bytes.all.peak"] > GIB
        if large and not truth["conf"] and truth["limit_bytes"] is None:
            found.append(path)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
def test_every_recording_runs_within_a_hundredth_and_a_half_of_what_is_live() -> None:
    ratios = {name_of(p): smallest(p) / live_peak(trace_of(p)) for p in default_traces()}
    assert len(ratios) >= 18
    assert max(ratios.values()) <= 1.015, ratios
    assert sum(ratios.values()) / len(ratios) <= 1.006, ratios


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
@pytest.mark.parametrize(("factor", "bar"), [(1.02, None), (1.05, 0.5), (1.10, 0.1)])
def test_moving_costs_little_and_never_waits(factor: float, bar: float | None) -> None:
    percent = []
    for path in default_traces():
        trace = trace_of(path)
        result = under(path, limit=int(factor * active_peak(trace)))
        assert result["first_oom"] is None, name_of(path)
        assert result["statistics"]["num_sync_all_streams"] == 0
        assert result["elastic"]["host_waits"] == 0, name_of(path)
        times = trace.events.time_us[trace.events.time_us > 0]
        percent.append(1e8 * result["stall_seconds"] / float(times.max() - times.min()))
    if bar is not None:
        assert np.mean(percent) <= bar, percent


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
def test_without_a_limit_no_recording_needs_more_calls_than_expandable_segments() -> None:
    for path in default_traces():
        counts = under(path)["elastic"]
        assert counts["moves"] == counts["stall_seconds"] == 0
        arenas = feed(
            trace_of(path),
            AllocatorSettings(expandable_segments=True),
            calls=calls_of(path),
            compare=False,
        )["statistics"]
        small = arenas["reserved_bytes.small_pool.allocated"] // (2 * MIB)
        chunks = small + arenas["reserved_bytes.large_pool.allocated"] // (20 * MIB)
        assert counts["creates"] <= chunks, name_of(path)


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
def test_the_soft_limit_holds_on_every_recording() -> None:
    for path in default_traces():
        result = under(path, soft_limit=1.05)
        reserved = result["peaks"]["reserved"]["bytes"]
        assert reserved <= 1.06 * active_peak(trace_of(path)), name_of(path)
