"""Scripts in processes of their own, on the fake driver: a process has one allocator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

import pytest

from test_layout import ROOT

SOURCE = ROOT / "engine" / "tests" / "fake_driver" / "fake_driver.cpp"
STAND_IN = ROOT / "tests" / "stand_in"  # of torch
LONGEST = 120  # seconds


@cache
def fake_driver() -> Path:
    """The fake driver, built once a run; skips the test where there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler for the fake driver")
    target = Path(tempfile.mkdtemp(prefix="tenure-fake-driver-")) / "libfake_driver.so"
    command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{ROOT}", str(SOURCE)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


def run(script: str, *, stand_in: bool = True, **environment: str) -> str:
    """What the script prints, on a GPU of 1 GiB; fails the test unless it exits with 0."""
    done = attempt(script, stand_in=stand_in, **environment)
    if done.returncode != 0:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


def attempt(
    script: str, *, stand_in: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The finished process of a script."""
    paths = [str(STAND_IN)] if stand_in else []
    paths += filter(None, [os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        env={
            **os.environ,
            "TENURE_DRIVER_LIBRARY": str(fake_driver()),
            "PYTHONPATH": os.pathsep.join(paths),
            **environment,
        },
    )
