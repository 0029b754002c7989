"""Searches and advice on a virtual GPU: what is run again, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenure.errors import UsageError
from tenure.settings import parse_alloc_conf
from tenure.units import GIB, MIB
from tenure.virtual.advising import Advised, Measured
from tenure.virtual.batches import (
    MOST_RUNS,
    Argument,
    BatchSearch,
    find_argument,
    likely_batch,
    search,
)
from tenure.virtual.changes import CHANGES, took_effect
from tenure.virtual.foretelling import Requests
from tenure.virtual.traits import Traits
from tenure.virtual.trials import Outcome, Trial
from test_virtual import needs_torch

Need = Callable[[int], int | str]


def searched(need: Need, start: int = 8, usable: int = 1000) -> tuple[BatchSearch, list[int]]:
    """The search over a job that needs so many bytes, or fails with a message."""
    runs: list[int] = []

    def measure(values: list[int]) -> list[Outcome]:
        assert len(values) <= 2
        runs.extend(values)
        outcomes = []
        for value in values:
            size = need(value)
            if isinstance(size, str):
                outcomes.append(Outcome(fits=False, error=size))
            else:
                outcomes.append(Outcome(fits=size <= usable, allocated=size, reserved=size))
        return outcomes

    return search(Argument("--batch", start, 1), usable, measure), runs


# --- the search ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 3, 8, 500, 4000])
@pytest.mark.parametrize("need", [lambda b: 100 + 7 * b, lambda b: 100 + 3 * b, lambda b: b])
def test_a_straight_line_is_found_in_few_runs(need: Need, start: int) -> None:
    found, runs = searched(need, start)
    best = max(b for b in range(1, 5000) if int(need(b)) <= 1000)
    assert found.largest == best
    assert found.tried[best].fits and not found.tried[best + 1].fits  # both neighbours ran
    assert len(runs) == len(set(runs)) <= 10


@pytest.mark.parametrize(
    "need",
    [
        lambda b: 10 + b * b // 100,  # attention
        lambda b: 200 + 64 * (b // 16),  # steps of padding
        lambda b: 900 if b < 30 else 1100,
        lambda b: int(200 + 30 * b**0.5),
    ],
)
def test_a_bent_line_is_found_too(need: Need) -> None:
    found, _ = searched(need)
    best = max(b for b in range(1, 5000) if int(need(b)) <= 1000)
    assert found.largest == best and not found.tried[best + 1].fits


def test_a_batch_of_one_may_not_fit() -> None:
    found, _ = searched(lambda b: 2000 + b)
    assert found.largest is None and 1 in found.tried
    assert found.text().startswith("No value of --batch was found with which it fits")


def test_an_argument_without_effect_is_said_to_have_none() -> None:
    found, runs = searched(lambda _b: 500)
    assert len(runs) == 4
    assert "memory does not grow with --batch" in found.text()


def test_values_that_the_script_refuses_are_left_out() -> None:
    found, _ = searched(lambda b: "ValueError: not a multiple of 8" if b % 8 else 10 * b)
    assert found.largest == 96 and not found.tried[104].fits
    assert any("only multiples of 8 were tried" in note for note in found.notes)
    assert "failed: ValueError" in found.text()


def test_a_script_that_fails_as_it_is_ends_the_search() -> None:
    found, runs = searched(lambda _b: "ImportError: no module")
    assert found.largest is None and runs == [8, 16]


def test_what_is_not_monotone_is_said() -> None:
    found, _ = searched(lambda b: 2000 if b == 16 else 10 * b if b < 50 else 3000)
    best = found.largest
    assert best is not None and found.tried[best].fits
    if best > 16:
        assert any("not monotone" in note for note in found.notes)


def test_the_number_of_runs_is_bounded() -> None:
    found, runs = searched(lambda b: 1 if b < 10**9 else 2000, start=1)
    assert len(runs) <= MOST_RUNS + 2
    assert found.notes


def requests_of(batch: int, *, layers: int = 3, each: int = 40_000) -> Requests:
    """A step of a job: parameters, and in each layer what is kept and what is not."""
    kept = range(1, 2 * layers, 2)
    size = [30 * MIB]
    events = [(0, True)]
    for number in kept:
        size += [each * batch, 3 * each * batch + 1_000 * number]
        events += [(number, True), (number + 1, True), (number + 1, False)]
    events += [(number, False) for number in reversed(kept)]
    numbers, begins = zip(*events, strict=True)
    return Requests(
        np.array(numbers), np.array(begins), np.array(size), np.zeros(len(size), np.uint64)
    )


@pytest.mark.parametrize("each", [300, 40_000, 700_000])
def test_two_runs_foretell_every_request_of_a_third(each: int) -> None:
    settings, usable = parse_alloc_conf(""), 500 * MIB

    def fits(batch: int) -> bool:
        requests = requests_of(batch, each=each)
        return requests.fit(requests.size, settings, usable)

    runs: list[int] = []

    def measure(values: list[int]) -> list[Outcome]:
        runs.extend(values)
        return [
            Outcome(
                fits=fits(value),
                allocated=int(requests_of(value, each=each).size.sum()),
                requests=requests_of(value, each=each),
            )
            for value in values
        ]

    found = search(Argument("--batch", 8, 1), usable, measure)
    assert found.largest is not None
    assert fits(found.largest) and not fits(found.largest + 1)
    assert len(runs) <= (8 if each == 300 else 6)  # 64 times larger at most, each time


def test_requests_come_back_from_a_file(tmp_path: Path) -> None:
    outcome = Outcome(fits=True, allocated=5, requests=requests_of(4))
    outcome.write(tmp_path)
    read = Outcome.read(tmp_path)
    assert read is not None and read.requests is not None
    assert read.requests.is_like(requests_of(9)) and not read.requests.is_like(
        requests_of(9, layers=2)
    )
    assert read.allocated == 5 and Outcome.read(tmp_path / "none") is None


# --- the argument --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "value", "put"),
    [
        ("--batch", ["--lr", "1", "--batch", "8"], 8, ("--lr", "1", "--batch", "9")),
        ("--batch-size", ["--batch-size=8", "x"], 8, ("--batch-size=9", "x")),
        ("batch_size", ["data=a", "batch_size=8"], 8, ("data=a", "batch_size=9")),
        ("2", ["train", "8"], 8, ("train", "9")),
        ("-b", ["-b", "4", "-b", "8"], 8, ("-b", "4", "-b", "9")),
        ("--batch=4", ["x"], 4, ("x", "--batch", "9")),
        ("--batch=4", ["--batch", "8"], 4, ("--batch", "9")),
        ("train.batch=4", [], 4, ("train.batch=9",)),
        ("2=4", ["train"], 4, ("train", "9")),
    ],
)
def test_an_argument_is_found_as_scripts_take_it(
    name: str, arguments: list[str], value: int, put: tuple[str, ...]
) -> None:
    argument, added = find_argument(name, arguments, {})
    assert argument.start == value
    assert argument.put(Trial("s.py", added, "h100"), 9).arguments == put


def test_an_environment_variable_is_one_too() -> None:
    argument, _ = find_argument("BATCH", [], {"BATCH": "8"})
    assert argument.start == 8
    assert argument.put(Trial("s.py", (), "h100"), 9).environment == {"BATCH": "9"}
    argument, _ = find_argument("BATCH=16", [], {})
    assert argument.put(Trial("s.py", (), "h100"), 9).environment == {"BATCH": "9"}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("--batch", ["--lr", "1"], "--batch is not among the script's arguments (--lr 1)"),
        ("--batch", ["--batch", "auto"], "--batch has the value 'auto', not a whole number"),
        ("3", ["8"], "3 is not among"),
        ("--batch", ["--batch", "0"], "not a whole number above 0"),
        ("3=8", ["train"], "3 is not among the script's arguments (train)"),
    ],
)
def test_a_wrong_argument_is_refused(name: str, arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        find_argument(name, arguments, {})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--lr", "1", "--batch", "8"], "--batch"),
        (["--batch_size=8"], "--batch_size"),
        (["--per_device_train_batch_size", "8"], "--per_device_train_batch_size"),
        (["train.bs=4"], "train.bs"),
        (["--batch", "auto", "--steps", "3"], ""),
        (["--batches", "3", "--subs", "2"], ""),
        ([], ""),
    ],
)
def test_a_batch_size_is_known_by_its_name(arguments: list[str], name: str) -> None:
    assert likely_batch(arguments) == name


# --- advice --------------------------------------------------------------------------------------


def offered(**traits: Any) -> set[str]:
    return {change.name for change in CHANGES if change.applies(Traits(**traits))}


def test_changes_are_offered_where_they_apply() -> None:
    training = {"steps": 3, "optimizers": {"AdamW": "foreach"}, "dtypes": {"float32"}}
    assert offered(**training) == {
        *("checkpointing", "autocast", "optimizer-fused", "optimizer-8bit", "optimizer-sgd")
    }
    assert offered() == set()  # inference
    done = {"steps": 3, "optimizers": {"SGD": "fused"}, "dtypes": {"float32"}}
    assert offered(**done, checkpoints=4, autocasts=3) == set()
    assert "optimizer-foreach" in offered(steps=3, optimizers={"RMSprop": "foreach"})


def test_a_change_that_did_not_take_effect_is_told_from_one_that_did() -> None:
    before = Traits(steps=3, optimizers={"AdamW": "foreach"})
    assert not took_effect("checkpointing", before, before)
    assert took_effect("checkpointing", before, Traits(checkpoints=12))
    assert not took_effect("optimizer-fused", before, before)
    assert took_effect("optimizer-fused", before, Traits(optimizers={"AdamW": "fused"}))


def test_advice_says_what_helps_and_what_does_not() -> None:
    def measured(name: str, size: int, *, effective: bool = True, error: str = "") -> Measured:
        outcome = Outcome(fits=size <= GIB, allocated=size, reserved=size, error=error)
        return Measured(name, f"do {name}", "time", outcome, effective)

    before = Outcome(fits=False, allocated=2 * GIB, reserved=2 * GIB, cards={"t4": "yes"})
    changes = (
        measured("a", GIB),
        measured("b", 2 * GIB),
        measured("c", GIB, effective=False),
        measured("d", 0, error="ValueError: no"),
    )
    text = Advised(GIB, before, changes, ("e",), 12.0).text()
    assert "1.00 GiB       1.00 GiB  yes   do a (costs: time)" in text
    assert "do b: gains nothing" in text
    assert "do c: did not take effect here" in text
    assert "do d: the run failed: ValueError: no" in text
    assert "not tried for lack of time: e" in text
    assert "the smallest card here that it fits: t4" in text


# --- on a virtual GPU ----------------------------------------------------------------------------

TRAINING = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
batch = parser.parse_args().batch

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

model = nn.Sequential(nn.Linear(64, 512), *[Block(512) for _ in range(4)], nn.Linear(512, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    loss = model(torch.randn(batch, 256, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""  # noqa: E501  a script


def run_tenure(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", "run", *arguments],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@needs_torch
@pytest.mark.slow
def test_the_largest_batch_is_the_one_that_runs_and_the_next_does_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = run_tenure(
        *("--gpu", "1500MiB", "--find-batch", "--batch", "--json", str(script), "--batch", "4")
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    largest = found["largest"]
    assert largest > 8
    for batch, code in ((largest, 0), (largest + 1, 1)):
        arguments = ("--gpu", "1500MiB", "--steps", "3", "--no-advise", str(script), "--batch")
        again = run_tenure(*arguments, str(batch))
        assert again.returncode == code, again.stderr[-1500:]
        assert ("torch.OutOfMemoryError" in again.stderr) is (code == 1)


@needs_torch
@pytest.mark.slow
def test_advice_is_measured_by_running_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    report = tmp_path / "report.json"
    done = run_tenure(
        *("--gpu", "800MiB", "--advise", "--steps", "3", "--json", "-o", str(report)),
        *(str(script), "--batch", "64"),
    )
    assert done.returncode == 1  # the script's own: it ran out of memory
    virtual = json.loads(report.read_text())["virtual"]
    assert not virtual["fits"] and "train.py" in virtual["failed_at"]
    advice = virtual["advice"]
    before = advice["before"]["peak_allocated"]
    assert before > 800 * MIB and advice["before"]["cards"]["h100"] == "yes"
    after = {c["change"]: c["peak_allocated"] for c in advice["changes"] if c["took_effect"]}
    changes = {"accumulation", "checkpointing", "autocast", "optimizer-fused", "optimizer-8bit"}
    assert set(after) >= changes
    assert after["checkpointing"] < 0.6 * before
    assert after["autocast"] < before
    assert after["optimizer-8bit"] < before
