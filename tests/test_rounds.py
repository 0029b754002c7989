"""The repetitions of a recording: optimizer steps, or what a loop does again and again."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from scene import AUTOGRAD, Scene, Training, layer, line
from shared_data import EXAMPLES
from tenure.diagnoses import explain
from tenure.lifetimes import Rounds, find_rounds, find_steps
from tenure.snapshots import load


def rounds_of(scene: Scene, *, annotated: bool = False) -> Rounds | None:
    trace = scene.recording()
    return find_rounds(trace, find_steps(trace) if annotated else None)


def inference(scene: Scene, requests: int, *, vary: bool = False) -> None:
    chance = random.Random(0)
    for _ in range(requests):
        batch = chance.choice([3, 5, 9, 12]) if vary else 8
        x = scene.make(batch, line(5))
        a = scene.make(2 * batch, layer("linear", 6))
        b = scene.make(batch, layer("activation", 6))
        scene.drop(a, where=layer("activation", 6))
        c = scene.make(batch, layer("linear", 6))
        scene.drop(b, x, c, where=line(7))


def test_steps_named_by_the_optimizer_are_the_rounds() -> None:
    scene = Scene()
    training = Training(scene)
    for _ in range(8):
        training.step()
    rounds = rounds_of(scene, annotated=True)
    assert rounds is not None
    assert (rounds.per, len(rounds), rounds.last_number) == ("step", 7, 8)
    assert (rounds.end[:-1] == rounds.begin[1:]).all()


@pytest.mark.parametrize("vary", [False, True])
def test_a_loop_without_annotations_is_found_and_begins_at_its_top(vary: bool) -> None:
    scene = Scene()
    inference(scene, 12, vary=vary)
    rounds = rounds_of(scene)
    assert rounds is not None
    assert (rounds.per, len(rounds)) == ("repetition", 12)
    trace = scene.recording()
    tops = trace.stacks.frames(int(trace.events.stack[rounds.begin[3]]))
    assert tops[0].line == 5


def test_a_training_loop_without_annotations_is_found() -> None:
    scene = Scene()
    training = Training(scene, steps=False)
    for _ in range(9):
        training.step()
    rounds = rounds_of(scene)
    assert rounds is not None
    assert len(rounds) == 9


def test_a_loop_is_found_by_sizes_where_there_are_no_stacks() -> None:
    scene = Scene(stacks=False)
    inference(scene, 10)
    rounds = rounds_of(scene)
    assert rounds is not None
    assert len(rounds) == 10
    assert rounds.frame is None


def test_the_step_is_found_and_not_the_epoch() -> None:
    scene = Scene()
    for _ in range(5):
        inference(scene, 6)
        scene.drop(scene.make(4, line(30)), where=line(30))
    rounds = rounds_of(scene)
    assert rounds is not None
    assert 28 <= len(rounds) <= 31


def test_a_loop_over_the_layers_of_a_model_is_called_one() -> None:
    scene = Scene()
    where = layer("linear", 6)
    acts = [scene.make(4, where) for _ in range(12)]
    scene.drop(*reversed(acts))
    rounds = rounds_of(scene)
    assert rounds is not None
    assert rounds.inside_module


def test_two_requests_of_one_line_in_a_row_are_one_round() -> None:
    scene = Scene()
    for _ in range(8):
        scratch = [scene.make(54, line(3)) for _ in range(2)]
        scene.drop(*scratch, where=line(4))
        for _ in range(2):
            scene.make(28, line(5))
    rounds = rounds_of(scene)
    assert rounds is not None
    assert len(rounds) == 8


def test_what_repeats_nothing_has_no_rounds() -> None:
    scene = Scene()
    for number in range(30):
        scene.make(1 + number, line(number))
    assert rounds_of(scene) is None
    assert rounds_of(Scene()) is None


def test_rounds_found_by_repetition_agree_with_the_annotations_of_real_runs() -> None:
    for name in ("gpt2_varlen", "leak_graph", "prefetch_streams", "resnet50"):
        trace = load(EXAMPLES / f"{name}.pickle.xz")
        steps = find_steps(trace)
        assert steps is not None
        found = find_rounds(trace, None)
        assert found is not None
        assert len(found) == len(steps), name
        inside = np.searchsorted(found.begin, steps.begin, "right") - 1
        assert len(np.unique(inside)) == len(steps), name


def test_the_loop_is_named() -> None:
    scene = Scene()
    inference(scene, 6)
    rounds = rounds_of(scene)
    assert rounds is not None
    assert rounds.frame is not None
    assert rounds.frame.name == "main"
    scene.make(1, AUTOGRAD)


def test_steps_before_the_recording_and_steps_within_steps_are_not_counted() -> None:
    scene = Scene()
    training = Training(scene)
    for _ in range(6):
        training.step()
    whole = scene.recording()
    every = find_steps(whole)
    assert every is not None
    late = scene.recording(int(every.end[2]) + 3)
    wrapped = [
        replace(a, start_us=a.start_us - 1, name="Optimizer.step#Wrapper.step")
        for a in late.annotations
    ]
    steps = find_steps(replace(late, annotations=(*wrapped, *late.annotations)))
    assert steps is not None
    assert len(steps.begin) == len(steps.end) == 3
    assert (steps.begin < steps.end).all()
    explain(late)


def test_a_recording_after_the_last_step_names_none() -> None:
    scene = Scene()
    training = Training(scene)
    for _ in range(6):
        training.step()
    assert find_steps(scene.recording(len(scene.rows) - 1)) is None
