"""Stacks that PyTorch recorded under a watched run, as the script alone would have left them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tenure
from tenure.live.runs.own_frames import hide_own_frames

OWN = str(Path(tenure.__file__).parent)


def frame(file: str, name: str = "f", line: int = 1) -> dict[str, Any]:
    return {"filename": file, "name": name, "line": line}


def files(frames: list[dict[str, Any]]) -> list[str]:
    return [one["filename"] for one in frames]


FORWARD = [
    frame("/site/torch/_ops.py", "__call__"),
    frame(f"{OWN}/live/runs/watching.py", "__torch_dispatch__"),
    frame("/site/torch/nn/functional.py"),
    frame("train.py", "step"),
    frame("train.py", "<module>"),
    frame(f"{OWN}/live/runs/running.py", "run_script"),
    frame(f"{OWN}/cli/run.py"),
    frame("/site/click/core.py"),
]


def test_the_scripts_frames_stay_and_those_of_tenure_and_its_caller_go() -> None:
    frames = list(FORWARD)
    hide_own_frames({"device_traces": [[{"action": "alloc", "frames": frames}]], "segments": []})
    assert files(frames) == [
        "/site/torch/nn/functional.py",
        "train.py",
        "train.py",
    ]


def test_a_thread_that_runs_nothing_else_is_left_without_frames() -> None:
    of_backward = FORWARD[:2]
    block = {"frames": of_backward}
    snapshot = {"device_traces": [[{"frames": of_backward}]], "segments": [{"blocks": [block]}]}
    hide_own_frames(snapshot)
    assert block["frames"] == []


def test_operators_that_the_script_calls_itself_stay() -> None:
    frames = [frame("/site/torch/_ops.py", "__call__"), frame("train.py")]
    snapshot = {"device_traces": [[{"frames": frames}, {"action": "free"}]]}
    hide_own_frames(snapshot)
    assert files(frames) == ["/site/torch/_ops.py", "train.py"]
