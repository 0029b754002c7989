"""A trace under other settings gives what the real run under those settings gave."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest

from shared_data import ABSENT, EXAMPLES, GOLDEN, SHARED, name_of, traces
from tenure.replays import replay
from tenure.snapshots import load

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.replays import Replay
    from tenure.traces import Trace

TORCH = (2, 11)  # which recorded them all
GIB = 1 << 30


@lru_cache(maxsize=4)
def trace_of(path: Path) -> Trace:
    return load(path)


def asked(path: Path, conf: str, limit: int | None = None) -> Replay:
    return replay(trace_of(path), conf=conf, capacity=limit, torch_version=TORCH)


# Peak reserved bytes of the real runs of examples/gpt2_varlen under other settings.
REAL_PEAKS = {
    "expandable_segments:True": 14_323_548_160,
    "max_split_size_mb:128": 64_739_082_240,
    "roundup_power2_divisions:4": 20_910_702_592,
}


@pytest.mark.parametrize("conf", REAL_PEAKS)
def test_other_settings_reserve_what_the_real_run_reserved(conf: str) -> None:
    result = asked(EXAMPLES / "gpt2_varlen.pickle.xz", conf)
    assert not result.compared
    assert result.peak.reserved == REAL_PEAKS[conf]
    assert result.spread[0] <= result.peak.reserved <= result.spread[1]
    assert result.spread[1] <= 1.001 * result.spread[0]


@pytest.mark.parametrize(
    ("conf", "limit", "peak", "retries"),
    [
        ("", 15 * GIB, 15_630_073_856, 2),
        ("expandable_segments:True", 13 * GIB + GIB // 2, 13_946_060_800, 1),
        ("expandable_segments:True", 13 * GIB, 13_946_060_800, 1),
    ],
)
def test_a_limit_costs_the_retries_of_the_real_run(
    conf: str, limit: int, peak: int, retries: int
) -> None:
    result = asked(EXAMPLES / "gpt2_varlen.pickle.xz", conf, limit)
    assert result.peak.reserved == peak
    assert result.statistics["num_alloc_retries"] == len(result.retries) == retries
    assert result.first_oom is None


def test_a_capacity_below_what_is_live_runs_out_of_memory() -> None:
    path = EXAMPLES / "gpt2_varlen.pickle.xz"
    live = asked(path, "").peak.active
    result = asked(path, "expandable_segments:True", live - GIB)
    assert result.first_oom is not None
    assert result.first_oom.reserved <= live - GIB
    assert result.statistics["num_ooms"] > 0


@pytest.mark.parametrize("name", [name_of(p) for p in sorted(GOLDEN.glob("*.pickle.xz"))])
def test_what_does_not_depend_on_placement_stays(name: str) -> None:
    """Requests, and with them requested bytes, are the program's, whatever the settings."""
    path = GOLDEN / f"{name}.pickle.xz"
    recorded = replay(trace_of(path), torch_version=TORCH)
    for conf in ("expandable_segments:True", "max_split_size_mb:64"):
        result = asked(path, conf)
        assert result.peak.requested >= recorded.peak.requested
        assert result.end.requested == recorded.end.requested
        assert result.end.active >= result.end.requested


# --- the shared recordings: the same script and seed under each setting -------------------------


def pairs() -> list[tuple[Path, Path, dict[str, Any]]]:
    """Default trace, the run to predict, and its truth."""
    found = []
    for path in traces():
        name = name_of(path)
        truth = json.loads(path.with_name(f"{name}.json").read_text(encoding="utf-8"))
        default = path.with_name(name.split(".", maxsplit=1)[0] + ".pickle.xz")
        if truth["what_if"]:
            found.append((default, path, truth))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
def test_what_if_equals_reality() -> None:
    errors = {}
    for default, path, truth in pairs():
        peak = asked(default, truth["conf"]).peak.reserved
        errors[name_of(path)] = peak / truth["stats"]["reserved_bytes.all.peak"] - 1
    assert len(errors) >= 20
    off = {name: error for name, error in errors.items() if error != 0}
    assert len(off) <= len(errors) / 10, off
    assert all(abs(error) <= 0.05 for error in off.values()), off


LIMITED = [
    "fasterrcnn.limit20",
    "fasterrcnn.limit20_gc08",
    "fasterrcnn.limit20_split200",
    "gnn.limit12_gc06",
    "gnn.limit14",
    "gpt2_varlen.limit13.5_expandable",
    "gpt2_varlen.limit13_expandable",
    "gpt2_varlen.limit15",
    "llama_lora.limit5.5_split64",
]


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
@pytest.mark.parametrize("name", LIMITED)
def test_a_run_under_a_limit_is_foretold_with_its_retries(name: str) -> None:
    folder = SHARED / "traces"
    truth = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    default = folder / (name.split(".", maxsplit=1)[0] + ".pickle.xz")
    result = asked(default, truth["conf"], truth["limit_bytes"])
    assert result.peak.reserved == truth["stats"]["reserved_bytes.all.peak"]
    assert result.statistics["num_alloc_retries"] == truth["stats"]["num_alloc_retries"]
    assert result.statistics["num_ooms"] == truth["stats"]["num_ooms"] == 0


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
def test_a_run_out_of_memory_is_foretold() -> None:
    """The real run ended at 5.5 GiB though no more than 4.66 GiB are ever live."""
    folder = SHARED / "traces"
    truth = json.loads((folder / "llama_lora.limit5.5.json").read_text(encoding="utf-8"))
    result = asked(folder / "llama_lora.pickle.xz", "", truth["limit_bytes"])
    assert result.first_oom is not None
    assert result.statistics["num_ooms"] == truth["stats"]["num_ooms"] == 1
    assert result.statistics["num_alloc_retries"] == truth["stats"]["num_alloc_retries"]
