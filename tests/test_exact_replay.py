"""Recorded runs of real PyTorch replay to the last address, segment, block and counter."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest

from shared_data import ABSENT, GOLDEN, name_of, traces
from tenure.replays import replay
from tenure.snapshots import load

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.replays import Replay
    from tenure.traces import Trace

TORCH = (2, 11)  # which recorded them all
SMALL = sorted(GOLDEN.glob("*.pickle.xz"))
SHARED = traces()


@lru_cache(maxsize=1)
def trace_of(path: Path) -> Trace:
    return load(path)


def truth_of(path: Path) -> dict[str, Any]:
    text = path.with_name(name_of(path) + ".json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def require_exact(result: Replay, truth: dict[str, Any]) -> None:
    """No mismatch, and the counters that PyTorch itself had at the end, peaks included."""
    assert result.compared
    assert result.divergence is None
    assert result.address_mismatches == 0
    assert result.segment_mismatches == 0
    assert result.end_state_mismatches == 0
    assert result.exact
    recorded = truth["stats"]
    assert len(recorded) > 100
    ours = {name: result.statistics.get(name) for name in recorded}
    assert ours == recorded


def test_the_small_recordings_are_here() -> None:
    names = {name_of(path) for path in SMALL}
    assert names >= {"cuda_graph", "cuda_graph.expandable", "oom", "prefetch_streams"}


@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_small_recordings_replay_exactly(path: Path) -> None:
    truth = truth_of(path)
    limit = truth["limit_bytes"]
    result = replay(trace_of(path), capacity=limit, torch_version=TORCH)
    require_exact(result, truth)
    assert result.limit_range is None
    assert (result.first_oom is not None) == (truth["stats"]["num_ooms"] > 0)


@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_a_limit_need_not_be_known(path: Path) -> None:
    """The record shows where the driver refused: enough to replay it, and to bound the limit."""
    truth = truth_of(path)
    result = replay(trace_of(path), torch_version=TORCH)
    require_exact(result, truth)
    if truth["limit_bytes"]:
        assert result.limit_range is not None
        least, below = result.limit_range
        assert least <= truth["limit_bytes"] < below


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason=ABSENT)
@pytest.mark.parametrize("path", SHARED, ids=name_of)
def test_every_recording_replays_exactly(path: Path) -> None:
    truth = truth_of(path)
    known = replay(trace_of(path), capacity=truth["limit_bytes"], torch_version=TORCH)
    require_exact(known, truth)
    unknown = replay(trace_of(path), torch_version=TORCH)
    require_exact(unknown, truth)
