"""tenure.guard on a real GPU: gpu_races.py, which also runs by itself and prints the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_live_gpu import REASON

SCRIPT = Path(__file__).with_name("gpu_races.py")
LONGEST = 300  # seconds, for one mode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(REASON), reason=f"needs PyTorch with an NVIDIA GPU: {REASON}"),
]


@pytest.mark.parametrize("mode", ["off", "report", "sync"])
def test_races_are_told_and_mended_and_healthy_programs_left_alone(mode: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), mode],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) >= 11, done.stderr[-2000:]
    assert [line for line in lines if not line["ok"]] == []
