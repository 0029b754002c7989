"""Which settings are tried, what they come to, and which card that means."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from shared_data import ABSENT, EXAMPLES, SHARED
from tenure.cards import CARDS, CONTEXT, card_named, smallest_fitting
from tenure.diagnoses import Tuning, tune
from tenure.errors import UsageError
from tenure.replays import live_peak, recorded_replay, replay
from tenure.replays.costs import DriverCosts, torch_stall
from tenure.replays.tuning import split_sizes, trials
from tenure.reports import tuning_dict, tuning_text
from tenure.settings import known_clashes, parse_alloc_conf
from tenure.snapshots import load
from tenure.units import GIB, MIB


@cache
def tuned(name: str, capacity: int | None = None) -> Tuning:
    return tune(load(EXAMPLES / f"{name}.pickle.xz"), capacity=capacity)


def test_nothing_is_tried_that_torch_refuses_or_that_is_known_to_clash() -> None:
    trace = load(EXAMPLES / "gpt2_varlen.pickle.xz")
    for capacity in (None, 16 * GIB):
        for trial in trials(trace, capacity):
            if trial.rules != "torch":
                continue
            settings = parse_alloc_conf(trial.conf, torch_version=trace.settings.torch_version)
            limited = replace(settings, limit=capacity or -1)
            assert not known_clashes(limited), trial.conf


def test_garbage_collection_is_tried_only_with_a_limit() -> None:
    trace = load(EXAMPLES / "leak_graph.pickle.xz")
    assert not any("garbage" in t.conf for t in trials(trace, None))
    assert any("garbage" in t.conf for t in trials(trace, 2 * GIB))


def test_split_sizes_are_those_that_recur_in_the_trace() -> None:
    """resnet50 asks for 98 MiB again and again; nothing above that is worth a split limit."""
    trace = load(EXAMPLES / "resnet50.pickle.xz")
    large = trace.allocations.requested // MIB
    for size in split_sizes(trace):
        assert size >= 20
        assert (large == size).sum() >= 3


def test_the_bound_is_below_every_candidate_and_the_plan_is_between() -> None:
    for name in ("prefetch_streams", "leak_graph"):
        tuning = tuned(name)
        assert tuning.live_peak <= tuning.plan.size
        assert tuning.plan.checked
        for candidate in tuning.candidates:
            assert candidate.smallest_capacity >= tuning.live_peak, candidate
            assert candidate.peak_reserved >= tuning.live_peak, candidate


def test_the_live_peak_counts_requests_rounded_to_512_bytes() -> None:
    trace = load(EXAMPLES / "leak_graph.pickle.xz")
    replayed = recorded_replay(trace)
    assert replayed.peak.requested <= live_peak(trace) <= replayed.peak.active


def test_the_best_setting_is_advised_with_its_numbers() -> None:
    tuning = tuned("prefetch_streams")
    best = tuning.best
    assert best is not None
    assert best.smallest_capacity <= 1.03 * min(
        c.smallest_capacity for c in tuning.candidates if c.rules == "torch"
    )
    text = tuning_text(tuning)
    assert f"Set PYTORCH_CUDA_ALLOC_CONF={best.conf}" in text
    assert "live bytes (the bound)" in text
    assert "best placement found" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("name", ["leak_graph", "prefetch_streams"])
def test_the_smallest_card_is_right_for_every_candidate(name: str) -> None:
    tuning = tuned(name)
    for candidate in tuning.candidates:
        least, rules = candidate.smallest_capacity, candidate.rules
        conf = candidate.conf
        served = replay(tuning.trace, conf=conf, capacity=least, rules=rules)
        below = replay(tuning.trace, conf=conf, capacity=least - 2 * MIB, rules=rules)
        assert served.first_oom is None, candidate
        assert below.first_oom is not None, candidate


def test_a_capacity_that_nothing_fits_in_is_said_so() -> None:
    tuning = tuned("leak_graph", GIB)
    assert tuning.best is None
    assert tuning_text(tuning).startswith("No setting of PyTorch makes this run fit in 1.00 GiB")


def test_the_plain_form_has_the_fields_of_the_contract() -> None:
    plain = tuning_dict(tuned("leak_graph"), "f")
    assert set(plain) >= {"live_peak", "candidates", "best"}
    for candidate in plain["candidates"]:
        assert set(candidate) >= {
            "rules",
            "conf",
            "peak_reserved",
            "smallest_capacity",
            "device_allocs",
            "device_frees",
            "chunk_moves",
            "stall_seconds",
            "fits",
        }


def test_calls_to_the_driver_are_charged_by_the_table() -> None:
    trace = load(EXAMPLES / "llama_lora.limit5.5.pickle.xz")
    result = replay(trace, capacity=int(5.5 * GIB))
    free = DriverCosts(malloc=0, free=1e6, free_mib=0)  # a second a call
    seconds = torch_stall(result.statistics, result.settings, free)
    assert seconds == pytest.approx(result.statistics["num_device_free"])
    untouched = recorded_replay(load(EXAMPLES / "leak_graph.pickle.xz"))
    assert torch_stall(untouched.statistics, untouched.settings) == 0


def test_a_card_has_less_to_use_than_its_label_says() -> None:
    assert card_named("h200").total == 150_109_880_320
    assert card_named("RTX 4090") is card_named("4090")
    assert card_named("24GiB").total == card_named("24GiB").usable == 24 * GIB
    for card in CARDS:
        assert card.usable == card.total - CONTEXT
    assert smallest_fitting(20 * GIB) == min(
        (c for c in CARDS if c.usable >= 20 * GIB), key=lambda c: c.usable
    )
    assert smallest_fitting(10**15) is None


def test_an_unknown_card_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="nearest is rtx4090"):
        card_named("rtx4099")


def test_the_command_prints_one_object() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tenure", "tune", str(EXAMPLES / "leak_graph.pickle.xz"), "--json"],
        capture_output=True,
        check=False,
    )
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["live_peak"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "traces").exists(), reason=ABSENT)
def test_the_real_out_of_memory_agrees_with_the_real_run_under_another_setting() -> None:
    """llama_lora ran out of memory at 5.5 GiB; under max_split_size_mb:64 it really ran there."""
    trace = load(SHARED / "traces" / "llama_lora.pickle.xz")
    limit = int(5.5 * GIB)
    assert replay(trace, capacity=limit).first_oom is not None
    assert replay(trace, capacity=limit, conf="max_split_size_mb:64").first_oom is None
