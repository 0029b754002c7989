"""Snapshots of processes under tenure: the rules that were in force are part of the recording."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import tenure
from fake_gpu import run
from tenure.errors import BadInputError, UsageError
from tenure.reports import comparison_text, explanation_dict, explanation_text, tuning_text
from tenure.reports.page.packing import unpack
from tenure.snapshots import load
from tenure.traces import Trace
from tenure.units import GIB, MIB

# A process that allocates at random under tenure, {steps} times 400, and keeps {most} bytes live.
RECORD = """
import ctypes, os, random
import torch, tenure
driver = ctypes.CDLL(os.environ["TENURE_DRIVER_LIBRARY"])
tenure.install({install}quiet=True)
random.seed(1)
SIZES = (100, 5_000, 70_000, 1 << 20, 3 << 20, 9 << 20)
own, live = [], 0

def step(streams=(0,), busy=0.0):
    global live
    for _ in range(400):
        if random.random() < busy:  # the GPU falls behind, or catches up
            change = random.choice((driver.fake_driver_hold, driver.fake_driver_finish))
            change(ctypes.c_uint64(random.choice(streams)))
        size = random.choice(SIZES) + random.randrange(5_000)
        while live + size > {most}:
            live -= own.pop(random.randrange(len(own)))[0]
        own.append((size, torch.empty(size, stream=random.choice(streams))))
        live += size
        if random.random() < 0.1:
            own[-1][1].record_stream(48)

{body}
print(tenure.memory_stats()["reserved_bytes.all.peak"])
torch.cuda.memory._dump_snapshot({path!r})
"""
EVENTS = "events=1_000_000"
# Name: arguments of tenure.install(), most live bytes, what runs.
RECORDINGS = {
    "elastic": (EVENTS, 100 * MIB, "step(); step(); step()"),
    "limited": (
        f"capacity='220MiB', {EVENTS}",
        140 * MIB,
        "step((0, 48, 64)); step((0, 48, 64)); torch.cuda.empty_cache(); step((0, 48, 64))",
    ),
    "soft": (f"soft_limit=1.05, {EVENTS}", 100 * MIB, "step((0, 48)); step((0, 48))"),
    "failed": (
        f"capacity='150MiB', {EVENTS}",
        105 * MIB,
        "step()\ntry: torch.empty(90 << 20)\nexcept torch.OutOfMemoryError: pass\nstep()",
    ),
    "late": (
        "capacity='220MiB'",
        140 * MIB,
        "step((0, 48))\ntorch.cuda.memory._record_memory_history()\nstep((0, 48))",
    ),
    "card": (
        EVENTS,
        180 * MIB,
        "keep = torch.empty(760 << 20); step((0, 48, 64)); step((0, 48, 64))",
    ),
    "ring": ("capacity='200MiB', events=1000", 140 * MIB, "step((0, 48)); step((0, 48))"),
    "busy": (f"capacity='160MiB', {EVENTS}", 95 * MIB, "step((0, 48, 64), busy=0.02)"),
    "empties": (
        f"capacity='200MiB', {EVENTS}",
        100 * MIB,
        "for _ in range(4):\n    step((0, 48))\n    torch.cuda.empty_cache()",
    ),
    "torch": (f"'torch', {EVENTS}", 100 * MIB, "step(); step(); step()"),
    "state": ("", 60 * MIB, "step(); del own[::2]"),
    "ignored": (f"conf='max_split_size_mb:128', {EVENTS}", 100 * MIB, "step()"),
}
EXACT = ("elastic", "limited", "soft", "failed", "late", "card", "ring", "empties", "ignored")
ELASTIC = (*EXACT, "busy")


@cache
def recording(name: str) -> tuple[Path, int]:
    """The snapshot, and the most bytes that were reserved in the process."""
    install, most, body = RECORDINGS[name]
    install = f"{install}, " if install else ""
    path = Path(mkdtemp(prefix="tenure-rules-")) / f"{name}.pickle"
    printed = run(RECORD.format(install=install, most=most, body=body, path=str(path)))
    return path, int(printed)


@cache
def trace_of(name: str) -> Trace:
    return load(recording(name)[0])


def changed(name: str, tmp_path: Path, **settings: Any) -> Path:
    """The recording with other entries among its settings; None takes one out."""
    snapshot = pickle.loads(recording(name)[0].read_bytes())
    for key, value in settings.items():
        snapshot["allocator_settings"].pop(key, None)
        if value is not None:
            snapshot["allocator_settings"][key] = value
    path = tmp_path / "changed.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *arguments], capture_output=True, text=True, check=False
    )


# --- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ELASTIC)
def test_a_recording_names_its_rules_and_limit(name: str) -> None:
    settings = trace_of(name).settings
    assert settings.rules == "elastic"
    assert settings.device_memory == GIB
    capacity = re.search("capacity='([0-9]+)MiB'", RECORDINGS[name][0])
    assert settings.limit == (int(capacity[1]) * MIB if capacity else -1)
    assert settings.soft_limit == (1.05 if name == "soft" else 0)
    assert settings.max_split_size == -1


def test_torch_rules_under_tenure_are_those_of_the_torch_that_ran() -> None:
    settings = trace_of("torch").settings
    assert settings.rules == "torch"
    printed = run("import torch; print(torch.__version__)")
    assert ".".join(map(str, settings.torch_version)) == ".".join(printed.split(".")[:2])
    assert tenure.replay(trace_of("torch")).exact


def test_a_device_that_cannot_map_memory_was_under_torch_rules(tmp_path: Path) -> None:
    devices = {0: {"rules": "torch", "limit": -1, "total_memory": GIB}}
    path = changed("torch", tmp_path, tenure_rules="elastic", tenure_devices=devices)
    assert load(path).settings.rules == "torch"
    path = changed("torch", tmp_path, tenure_rules="elastic", tenure_devices=None)
    assert load(path).settings.rules == "torch"  # its segments show it


def test_a_recording_that_names_only_its_rules_is_read(tmp_path: Path) -> None:
    keys = ("tenure_devices", "tenure_soft_limit", "tenure_torch_version")
    trace = load(changed("elastic", tmp_path, **dict.fromkeys(keys)))
    assert trace.settings.rules == "elastic"
    assert trace.settings.limit == -1
    explanation = tenure.explain(trace)
    assert not explanation.replay.exact
    assert any("reserved" in text for text in explanation.missing), explanation.missing


HOSTILE = [
    {"tenure_rules": 7},
    {"tenure_rules": "plastic"},
    {"tenure_rules": "elastic" * 100_000},
    {"tenure_rules": ["elastic"] * 5_000},
    {"tenure_soft_limit": "1.05"},
    {"tenure_soft_limit": 0.5},
    {"tenure_soft_limit": float("nan")},
    {"tenure_devices": [1]},
    {"tenure_devices": {0: "elastic"}},
    {"tenure_devices": {0: {"rules": "plastic"}}},
    {"tenure_devices": {0: {"limit": -2}}},
    {"tenure_devices": {0: {"limit": True}}},
    {"tenure_devices": {0: {"total_memory": 0}}},
    {"tenure_devices": {0: {"total_memory": (1 << 63) - 1}}},
    {"tenure_torch_version": "two"},
    {"tenure_torch_version": [2, -1]},
]


@pytest.mark.parametrize("settings", HOSTILE, ids=lambda s: repr(s)[:50])
def test_what_tenure_never_writes_is_refused_in_one_line(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(BadInputError) as caught:
        load(changed("elastic", tmp_path, **settings))
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 400
    assert message.startswith("allocator_settings: tenure_")


def test_limits_beyond_all_memory_are_none(tmp_path: Path) -> None:
    devices = {0: {"rules": "elastic", "limit": (1 << 63) - 1, "total_memory": GIB}}
    path = changed("elastic", tmp_path, tenure_devices=devices, tenure_soft_limit=1e300)
    assert tenure.replay(path).exact


# --- replay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*EXACT, "torch"])
def test_a_recording_is_replayed_under_its_own_rules_to_the_byte(name: str) -> None:
    """Where no work is under way on the device, which chunk moves is not left to chance."""
    _, reserved = recording(name)
    result = tenure.replay(trace_of(name))
    assert result.settings.rules == trace_of(name).settings.rules
    assert result.compared
    assert result.peak.reserved == result.recorded_reserved == reserved
    assert result.statistics["num_ooms"] == (name == "failed")
    assert result.exact, result.divergence
    if name in {"limited", "soft", "card", "ring"}:
        assert result.chunk_moves > 0
    asked = tenure.replay(trace_of(name), rules=trace_of(name).settings.rules)
    assert asked.compared


def test_a_gpu_that_falls_behind_is_followed_as_far_as_the_record_goes() -> None:
    """Which chunks move then depends on times that are in no record; how much does not."""
    result = tenure.replay(trace_of("busy"))
    assert result.compared
    assert not result.exact
    assert result.chunk_moves > 0
    assert result.statistics["num_ooms"] == 0
    assert not result.calls  # a chunk that moved elsewhere is no empty_cache()
    assert result.peak.reserved == result.recorded_reserved == recording("busy")[1]


def test_the_command_says_whose_rules_were_in_force() -> None:
    path, reserved = recording("limited")
    text = command("replay", str(path))
    assert text.returncode == 0
    assert text.stdout.startswith("Exact: ")
    assert "rules      elastic (tenure's own), as recorded" in text.stdout
    plain = json.loads(command("replay", str(path), "--json").stdout)
    assert plain["rules"] == plain["recorded_rules"] == "elastic"
    assert plain["compared"] is True
    assert plain["capacity"] == 220 * MIB
    assert plain["peak"]["reserved"] == plain["recorded_peak_reserved"] == reserved
    other = json.loads(command("replay", str(path), "--rules", "torch", "--json").stdout)
    assert (other["rules"], other["recorded_rules"]) == ("torch", "elastic")
    assert other["compared"] is False
    assert other["recorded_peak_reserved"] is None


@pytest.mark.parametrize(("name", "count"), [("limited", 1), ("card", 0), ("empties", 4)])
def test_an_empty_cache_is_told_from_memory_that_moves(name: str, count: int) -> None:
    assert len(tenure.replay(trace_of(name)).calls) == count


def test_settings_of_pytorch_need_its_rules() -> None:
    trace = trace_of("elastic")
    with pytest.raises(UsageError, match=r'recorded under elastic rules.*rules="torch"'):
        tenure.replay(trace, conf="max_split_size_mb:128")
    result = tenure.replay(trace, conf="max_split_size_mb:128", rules="torch")
    assert result.settings.max_split_size == 128 * MIB
    assert not result.settings.expandable_segments
    assert not tenure.replay(trace, rules="torch").settings.expandable_segments
    kept = tenure.replay(trace_of("ignored"), rules="torch")
    assert kept.settings.max_split_size == 128 * MIB


def test_a_replay_that_cannot_follow_says_by_how_much(tmp_path: Path) -> None:
    """Whether the GPU was done with free memory is in no record, and decides what moves."""
    devices = {0: {"rules": "elastic", "limit": 200 * MIB, "total_memory": GIB}}
    path = changed("limited", tmp_path, tenure_devices=devices)
    result = tenure.replay(path)
    assert result.compared
    assert not result.exact
    assert result.recorded_reserved == 220 * MIB
    text = " ".join(command("replay", str(path)).stdout.split())
    assert "Peak reserved: 220.00 MiB in the record, 200.00 MiB in the replay" in text
    missing = tenure.explain(path).missing
    assert any("220.00 MiB" in note and "200.00 MiB" in note for note in missing), missing


# --- explain, tune, diff, view -------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ELASTIC, "state"])
def test_an_explanation_is_about_the_recorded_rules(name: str) -> None:
    explanation = tenure.explain(trace_of(name))
    text = explanation_text(explanation)
    assert "Recorded under tenure's elastic rules" in text
    assert explanation_dict(explanation, "")["rules"] == "elastic"
    codes = {finding.code for finding in explanation.findings}
    assert ("oom" in codes) == (name == "failed")
    assert ("cache.churn" in codes) == (name == "empties")
    assert not codes & {"setting.clash", "setting.not_in_force", "cache.retries"}
    for finding in explanation.findings:
        said = " ".join((finding.title, *finding.evidence, *(a.text for a in finding.advice)))
        for words in ("expandable", "PyTorch", "tenure.install", "_split_size", "cudaMalloc"):
            assert words not in said, (finding.code, said)
        assert all(advice.conf is None for advice in finding.advice)
    assert "set: PYTORCH" not in text
    if name != "state":
        assert explanation.recorded_candidate is not None
        assert explanation.recorded_candidate.rules == "elastic"
        row = next(line for line in text.splitlines() if line.endswith("as recorded"))
        assert row.split()[:2] == ["tenure", "elastic"]


def test_a_failure_names_the_limit_that_was_in_force() -> None:
    finding = tenure.explain(trace_of("failed")).findings[0]
    assert finding.code == "oom"
    assert any(line.startswith("limit 0.15 GiB = live") for line in finding.evidence)
    assert any("elastic rules move" in line for line in finding.evidence), finding.evidence


@pytest.mark.parametrize("asked", [500 << 30, (1 << 60) - 1])
def test_a_request_that_no_card_can_serve_is_explained(asked: int, tmp_path: Path) -> None:
    snapshot = pickle.loads(recording("failed")[0].read_bytes())
    for event in snapshot["device_traces"][0]:
        if event["action"] == "oom":
            event["size"] = asked
    path = tmp_path / "asked.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    explanation = tenure.explain(path)
    assert explanation.recorded_candidate is not None
    assert explanation.recorded_candidate.smallest_capacity > asked


def test_tuning_does_not_advise_settings_that_have_no_effect() -> None:
    tuning = tenure.tune(trace_of("limited"))
    assert tuning.recorded.rules == "elastic"
    assert tuning.recorded.peak_reserved == recording("limited")[1]
    assert tuning.best is not None
    assert tuning.best.rules == "elastic"
    text = tuning_text(tuning)
    assert "Set PYTORCH" not in text
    assert text.startswith("Recorded under tenure's elastic rules")
    row = next(line for line in text.splitlines() if line.startswith("* "))
    assert row.split()[:4] == ["*", "tenure", "elastic", "0.21"]


def test_a_comparison_names_rules_that_differ() -> None:
    comparison = tenure.diff(trace_of("torch"), trace_of("elastic"))
    text = comparison_text(comparison, "a", "b")
    assert "Setting rules: torch before, elastic after." in text
    assert "expandable_segments" not in text


def test_the_page_names_the_rules(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    path, _ = recording("limited")
    done = command("view", str(path), "-o", str(page))
    assert done.returncode == 0, done.stderr
    packed = re.search(r'<script[^>]*id="data"[^>]*>([^<]*)<', page.read_text(encoding="utf-8"))
    assert packed is not None
    assert unpack(packed[1])[0]["rules"] == "tenure's elastic rules, limit 220.00 MiB"
