"""Lines carried over from step to step: from one that asked for the same, and only where it did."""

from __future__ import annotations

import lzma
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared_data import ABSENT, name_of, traces
from tenure.live.runs.lines import completed, with_lines
from tenure.live.runs.stepping import StepMark
from tenure.snapshots import Events, read_snapshot, to_trace

if TYPE_CHECKING:
    from pathlib import Path


def events(*steps: list[tuple[int, int]]) -> tuple[Events, np.ndarray]:
    """Steps of (size, stack); one microsecond an event."""
    rows = [row for step in steps for row in step]
    count = len(rows)
    filler = np.zeros(count, np.int32)
    made = Events(
        action=np.zeros(count, np.uint8),
        address=np.zeros(count, np.uint64),
        size=np.array([size for size, _ in rows], np.int64),
        stream=np.zeros(count, np.uint64),
        time_us=1 + np.arange(count, dtype=np.int64),
        stack=np.array([stack for _, stack in rows], np.int32),
        pool=filler,
        metadata=filler,
        compile_context=filler,
    )
    return made, np.cumsum([0, *(len(step) for step in steps)])


def test_a_step_without_lines_takes_those_of_one_that_asks_for_the_same() -> None:
    made, ends = events([(1, 5), (2, -1), (3, 7)], [(1, -1), (2, -1), (3, -1)])
    assert with_lines(made, ends).stack.tolist() == [5, -1, 7, 5, -1, 7]


def test_a_step_that_differs_in_its_middle_keeps_that_without() -> None:
    made, ends = events([(1, 5), (2, 6), (3, 7)], [(1, -1), (9, -1), (9, -1), (3, -1)])
    assert with_lines(made, ends).stack.tolist() == [5, 6, 7, 5, -1, -1, 7]


def test_a_step_that_asks_for_something_else_takes_nothing() -> None:
    made, ends = events([(1, 5), (2, 6)], [(8, -1), (9, -1)])
    assert with_lines(made, ends).stack.tolist() == [5, 6, -1, -1]


def test_the_step_that_agrees_most_gives_the_lines() -> None:
    made, ends = events([(1, 5), (2, 6)], [(1, 7), (3, 8)], [(1, -1), (2, -1)])
    assert with_lines(made, ends).stack.tolist() == [5, 6, 7, 8, 5, 6]


def test_a_few_events_that_count_to_the_step_before_do_no_harm() -> None:
    first = [(size, size) for size in range(100, 140)]
    later = [(1, -1), (2, -1), *((size, -1) for size in range(100, 139))]
    made, ends = events(first, later)
    carried = with_lines(made, ends).stack.tolist()
    assert carried[40:] == [-1, -1, *range(100, 139)]


def without_lines(path: Path, folder: Path, steps: list[tuple[int, int]]) -> Path:
    """A recording whose lines were switched off in some spans of time, annotations lost."""
    raw: dict[str, Any] = pickle.loads(lzma.decompress(path.read_bytes()))
    for trace in raw["device_traces"]:
        for event in trace:
            if any(a < event["time_us"] <= b for a, b in steps):
                event["frames"] = []
    raw["external_annotations"] = []
    target = folder / "run.pickle"
    target.write_bytes(pickle.dumps(raw))
    return target


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
def test_lines_and_steps_of_a_real_run_come_back_as_they_were(tmp_path: Path) -> None:
    path = next(p for p in traces() if name_of(p) == "gpt2")
    whole = to_trace(read_snapshot(path))
    spans = [(a.start_us, a.end_us or 0) for a in whole.annotations if "Optimizer.step#" in a.name]
    marks = [StepMark(i + 1, e / 1e6, 0, 0, 0, s / 1e6) for i, (s, e) in enumerate(spans)]
    off = [(spans[i][1], spans[i + 1][1]) for i in range(3, len(spans) - 1) if i % 3]
    cut = completed(read_snapshot(without_lines(path, tmp_path, off)), marks)
    again = to_trace(cut)
    assert int((whole.events.stack >= 0).sum()) > 0

    def lines(trace: Any) -> list[Any]:
        return [trace.stacks.frames(int(s)) for s in trace.events.stack]

    same = sum(a == b for a, b in zip(lines(whole), lines(again), strict=True))
    assert same >= 0.999 * len(whole.events)
    steps = [a for a in again.annotations if "Optimizer.step#" in a.name]
    assert len(steps) == len(spans)
