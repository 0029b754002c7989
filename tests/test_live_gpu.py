"""tenure on a real GPU: each scenario of gpu_scenarios.py in a process of its own.

Under pytest: `make gpu-test`. Without it: `python tests/test_live_gpu.py [NAME...]` runs the same
and prints what failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("gpu_scenarios.py")
SHARING = Path(__file__).with_name("gpu_sharing.py")
LONGEST = 150  # seconds, for one scenario
RULES = ("elastic", "torch")

# Compared with PyTorch's own allocator: names of scenarios that also run under it.
PLAIN = (
    "errors",
    "driver_agrees",
    "snapshots",
    "record_stream",
    "graphs",
    "memory_pools",
    "searched_convolutions",
    "compiled_graphs",
    "profiled",
    "cycles",
    "forks",
    "leaves",
    "late",
)


def why_not() -> str:
    """Why there is no GPU to test on; empty if there is one."""
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; assert torch.cuda.is_available(), 'no CUDA device'"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if asked.returncode == 0 else (asked.stderr.strip().splitlines() or ["no torch"])[-1]


REASON = why_not()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(REASON), reason=f"needs PyTorch with an NVIDIA GPU: {REASON}"),
]


class ScenarioError(AssertionError):
    """A scenario failed; the message is the end of what it printed."""


def run(name: str, rules: str, **environment: str) -> dict[str, Any]:
    arguments = [str(SCRIPT), name, rules] if name != "sharing" else [str(SHARING), rules]
    command = [sys.executable, "-X", "faulthandler", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LONGEST + float(environment.get("STRESS_SECONDS", "0")),
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as error:
        raise ScenarioError(
            f"{name} {rules}: not done after {LONGEST} s\n{error.stderr!r}"
        ) from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise ScenarioError(f"{name} {rules}: exit code {done.returncode}\n{tail}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", PLAIN)
def test_scenario(name: str, rules: str) -> None:
    skipped = run(name, rules).get("skipped")
    if skipped:
        pytest.skip(skipped)


def test_contents_survive_moves_and_limits() -> None:
    result = run("contents", "elastic")
    assert result["elastic"]["moves"] > 0


def test_contents_survive_under_torch_rules() -> None:
    run("contents", "torch", STRESS_SECONDS="8")


@pytest.mark.parametrize("rules", RULES)
def test_contents_survive_for_minutes(rules: str) -> None:
    minutes = float(os.environ.get("TENURE_STRESS_MINUTES", "0"))
    if minutes <= 0:
        pytest.skip("runs for as many minutes as TENURE_STRESS_MINUTES says")
    run("contents", rules, STRESS_SECONDS=str(60 * minutes))


def test_tensors_are_sent_between_processes() -> None:
    run("sharing", "torch")


def test_one_shot_streams_share_their_memory() -> None:
    assert run("one_shot_streams", "elastic")["peak_reserved"] <= 160 << 20


def test_torch_rules_count_as_pytorch_does() -> None:
    native, ours = run("numbers", "native"), run("numbers", "torch")
    for moment in ("first", "second"):
        for key, value in ours[moment].items():
            assert native[moment][key] == value, f"{moment} {key}"


def test_training_is_equal_to_the_last_bit() -> None:
    native = run("training", "native")
    torch_rules, elastic = run("training", "torch"), run("training", "elastic")
    assert torch_rules["losses"] == native["losses"]
    assert elastic["losses"] == native["losses"]
    assert torch_rules["reserved_peak"] == native["reserved_peak"]


def test_training_fits_where_only_its_live_bytes_do() -> None:
    free = run("training", "elastic")
    limited = run("limited_training", "elastic", LIVE_PEAK=str(free["live_peak"]))
    assert limited["losses"] == free["losses"]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(names: list[str]) -> int:
    """Every test here, or those whose names contain one of the arguments."""
    if REASON:
        say(f"skipped: {REASON}")
        return 0
    calls: list[tuple[str, Any, tuple[str, ...]]] = [
        (f"{name} {rules}", test_scenario, (name, rules)) for name in PLAIN for rules in RULES
    ]
    per_rules = (test_scenario, test_contents_survive_for_minutes)
    calls += [
        (f"test_contents_survive_for_minutes {rules}", test_contents_survive_for_minutes, (rules,))
        for rules in RULES
    ]
    calls += [
        (name, function, ())
        for name, function in globals().items()
        if name.startswith("test_") and function not in per_rules
    ]
    failed = 0
    for label, function, arguments in calls:
        if names and not any(name in label for name in names):
            continue
        begun = time.time()
        try:
            function(*arguments)
        except pytest.skip.Exception as reason:
            say(f"skip {label}  {reason}")
        except AssertionError as error:
            failed += 1
            say(f"FAIL {label}\n{error}")
        else:
            say(f"pass {label}  {time.time() - begun:.1f} s")
    say(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
