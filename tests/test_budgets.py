"""Memory budgets in tests: what the marker takes, and what the plugin does to marked tests."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tenure.errors import UsageError
from tenure.testing.budgets import Budget, read_budget
from tenure.testing.outer import inner_arguments
from tenure.units import GIB

HAS_TORCH = importlib.util.find_spec("torch") is not None


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What a pytest says that runs one file with the plugin, in a project of its own."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (folder / "test_it.py").write_text(text)
    installed = any(point.name == "tenure" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "tenure.testing.plugin"]
    command = [sys.executable, "-m", "pytest", *plugin, "-q", *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


# --- what the marker takes -----------------------------------------------------------------------


def test_sizes_are_texts_or_bytes() -> None:
    budget = read_budget((), {"peak": "2 GiB", "growth": 0, "gpu": "24GiB"})
    assert budget == Budget(peak=2 * GIB, growth=0, gpu="24GiB")
    assert read_budget((), {"reserved": 1024}).reserved == 1024


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (("2 GiB",), {}, "name the budget: peak='2 GiB'"),
        ((), {}, "no budget is given"),
        ((), {"peek": "2 GiB"}, "peek is none of peak, reserved, growth, gpu"),
        ((), {"peak": "two"}, "'two' is not a size"),
        ((), {"peak": -1}, "peak=-1 is no size"),
        ((), {"growth": True}, "growth=True is no size"),
        ((), {"peak": 1, "gpu": "h1000"}, "no card is called 'h1000'"),
        ((), {"reserved": 1, "gpu": "cpu"}, "gpu='cpu' has none"),
    ],
)
def test_a_wrong_budget_is_refused(args: tuple[str, ...], kwargs: object, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        read_budget(args, kwargs)  # type: ignore[arg-type]  # what a user may write


def test_the_inner_run_gets_the_options_that_change_how_a_test_runs() -> None:
    given = ["-v", "tests/test_a.py", "-k", "fast", "--junitxml=x.xml", "-n4", "-W", "error"]
    assert inner_arguments(given, ["tests/test_a.py"]) == ["-v", "-W", "error"]
    given = ["-p", "no:randomly", "-m", "slow", "--dist", "load", "--my-flag", "--lf", "-x"]
    assert inner_arguments(given, []) == ["-p", "no:randomly", "--my-flag", "-x"]


# --- what the plugin does ------------------------------------------------------------------------


def test_tests_without_the_marker_cost_nothing(tmp_path: Path) -> None:
    text = (
        "import sys\n"
        "def test_plain():\n"
        "    assert not {'torch', 'numpy', 'tenure.virtual', 'tenure.cards'} & set(sys.modules)\n"
    )
    done = run_pytest(tmp_path, text)
    assert done.returncode == 0, done.stdout


def test_a_wrong_marker_fails_its_test_alone(tmp_path: Path) -> None:
    text = (
        "import pytest\n"
        "@pytest.mark.gpu_memory(peek=1)\n"
        "def test_wrong(): pass\n"
        "def test_right(): pass\n"
    )
    done = run_pytest(tmp_path, text)
    assert "gpu_memory: peek is none of peak, reserved, growth, gpu" in done.stdout
    assert "1 passed, 1 error" in done.stdout


TRAINING = """
import pytest, torch

def train(device, kept=None, steps=8):
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(steps):
        loss = model(torch.randn(1024, 512, device=device)).square().mean()
        loss.backward(retain_graph=True); optimizer.step(); optimizer.zero_grad()
        if kept is not None: kept.append(loss)

@pytest.fixture
def device():
    return "DEVICE"

@pytest.mark.gpu_memory(peak="1 GiB", growth=0, gpu="GPU")
def test_fine(device): train(device)

@pytest.mark.gpu_memory(peak="8 MiB", gpu="GPU")
def test_large(device): train(device)

@pytest.mark.gpu_memory(growth="1 KiB", gpu="GPU")
def test_grows(device): train(device, [])

@pytest.mark.gpu_memory(growth=0, gpu="GPU")
def test_too_short(device): train(device, steps=1)
"""
REST = """
@pytest.mark.gpu_memory(peak="1 GiB", gpu="GPU")
def test_fails(device): assert train(device) == 3

@pytest.mark.gpu_memory(peak="1 GiB", gpu="GPU")
def test_skips(device): print("said"); pytest.skip("not today")

@pytest.mark.xfail(strict=True)
@pytest.mark.gpu_memory(peak="1 GiB", gpu="GPU")
@pytest.mark.parametrize("x", ["a b"])
def test_is_expected_to_fail(device, x): raise ValueError(x)

@pytest.mark.gpu_memory(peak="1 GiB", gpu="2GiB")
def test_runs_out(device): torch.empty(1 << 32, device=device)

def test_unmarked(): assert not torch.cuda.is_available()
"""


def check_training(said: str) -> None:
    assert re.search(r"gpu_memory: peak allocated [\d.]+ MiB, which is .* budget of 8.00 MiB", said)
    assert "test_it.py:8 -> linear.py:" in said
    grows = re.search(r"live memory grows by ([\d.]+) MiB each \w+", said)
    assert grows and 4 < float(grows[1]) < 9
    assert "growth cannot be told from 0 repeated steps" in said


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_budgets_hold_on_cpu_tensors(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, TRAINING.replace("DEVICE", "cpu").replace("GPU", "cpu"))
    check_training(done.stdout)
    assert "3 failed, 1 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")  # noqa: PTH110
def test_budgets_hold_on_a_virtual_gpu(tmp_path: Path) -> None:
    text = (TRAINING + REST).replace("DEVICE", "cuda").replace("GPU", "h100")
    done = run_pytest(tmp_path, text, "-rA")
    check_training(done.stdout)
    assert "5 failed, 2 passed, 1 skipped, 1 xfailed" in done.stdout
    assert re.search(r"SKIPPED \[1\] test_it.py:\d+: not today", done.stdout)
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB" in done.stdout
    assert "tracker.py" not in done.stdout
