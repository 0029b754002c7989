"""What live bytes are for, told from stacks, steps and lifetimes; where backward's belong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from scene import AUTOGRAD, MODULE, Scene, Training, layer, line, moved_to_device, optimizer
from shared_data import EXAMPLES
from tenure.diagnoses import explain
from tenure.lifetimes import (
    NO_FRAMES,
    ORDER,
    Category,
    Sites,
    categorise,
    find_rounds,
    find_steps,
    forward_sites,
)
from tenure.snapshots import load
from tenure.traces import Frame
from tenure.units import MIB

if TYPE_CHECKING:
    from tenure.traces import Trace


def categories(trace: Trace) -> list[Category]:
    steps = find_steps(trace)
    found = categorise(trace, steps, find_rounds(trace, steps))
    return [ORDER[code] for code in found.tolist()]


def bytes_by_category(trace: Trace, event: int) -> dict[Category, int]:
    a = trace.allocations
    gone = np.where(a.freed < 0, len(trace.events), a.freed)
    live = (a.born <= event) & (gone > event)
    found, totals = categories(trace), dict.fromkeys(Category, 0)
    for number in np.flatnonzero(live).tolist():
        totals[found[number]] += int(a.requested[number])
    return totals


@pytest.mark.parametrize("stacks", [True, False])
def test_a_training_loop_is_told_apart(stacks: bool) -> None:
    """Three layers of 8 MiB: parameters, gradients and states are 24 MiB each."""
    scene = Scene(stacks=stacks)
    training = Training(scene)
    for _ in range(6):
        training.step()
    trace = scene.recording()
    steps = find_steps(trace)
    assert steps is not None
    at_step = bytes_by_category(trace, int(steps.begin[4]) - 1)
    assert at_step[Category.PARAMETERS] == 24 * MIB
    assert at_step[Category.OPTIMIZER_STATE] == 24 * MIB
    assert at_step[Category.GRADIENTS] == 24 * MIB
    if stacks:
        assert at_step[Category.INPUTS] == 16 * MIB


def test_activations_backward_and_temporaries_of_a_step() -> None:
    scene = Scene()
    training = Training(scene)
    for _ in range(6):
        training.step()
    trace = scene.recording()
    found = categories(trace)
    sizes = trace.allocations.requested
    made = {(c, int(s) // MIB) for c, s in zip(found, sizes.tolist(), strict=True)}
    assert (Category.ACTIVATIONS, 32) in made
    assert (Category.BACKWARD, 16) in made
    assert (Category.TEMPORARY, 8) in made  # the optimizer's own


def test_a_loop_without_optimizer_tells_gradients_by_who_frees_them() -> None:
    scene = Scene()
    training = Training(scene, steps=False)
    for _ in range(6):
        training.step()
    trace = scene.recording()
    found = np.array([c.value for c in categories(trace)])
    silent = trace.allocations.stack < 0
    assert set(found[silent & (trace.allocations.requested == 8 * MIB)]) == {"gradients"}
    assert set(found[silent & (trace.allocations.requested == 16 * MIB)]) == {"backward"}


def test_workspaces_are_one_a_stream_and_thread() -> None:
    """A list of results that happen to have a workspace's size is not ten workspaces."""
    scene = Scene()
    for _ in range(10):
        scene.make(32, layer("linear", 6))
    scene.make(32, AUTOGRAD)
    scene.make(32, layer("linear", 6), stream=7)
    found = categories(scene.recording())
    assert found.count(Category.WORKSPACE) == 3


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        (optimizer(5), Category.OPTIMIZER_STATE),
        (layer("linear", 5), Category.ACTIVATIONS),
        (
            (Frame(MODULE, 1, "load_state_dict"), *line(5)),
            Category.PARAMETERS,
        ),
        (
            (
                Frame("/site-packages/torch/nn/parallel/distributed.py", 1584, "_pre_forward"),
                *line(5),
            ),
            Category.GRADIENTS,
        ),
        (
            (Frame("/site-packages/torch/distributed/fsdp/_param.py", 9, "alloc_storage"),),
            Category.PARAMETERS,
        ),
        ((Frame("/project/op.py", 3, "backward"), *line(5)), Category.BACKWARD),
    ],
)
def test_a_stack_tells_the_category(stack: tuple[Frame, ...], category: Category) -> None:
    scene = Scene()
    scene.make(4, stack)
    scene.make(4, line(9))
    assert categories(scene.recording())[0] is category


def test_without_a_model_nothing_is_claimed() -> None:
    scene = Scene()
    scene.drop(scene.make(4, line(5)), where=line(6))
    scene.make(4, line(7))
    assert set(categories(scene.recording())) == {Category.UNKNOWN}


def test_what_backward_makes_gets_the_line_whose_saved_tensors_go_next() -> None:
    scene = Scene()
    first, second = scene.make(8, layer("linear", 6)), scene.make(8, layer("linear", 7))
    of_second = scene.make(4, AUTOGRAD)
    scene.drop(second)
    of_first = scene.make(4, AUTOGRAD)
    scene.drop(first)
    bias = scene.make(4, AUTOGRAD)
    scene.make(4, line(9))
    later = scene.make(4, AUTOGRAD)
    trace = scene.recording()
    sites = Sites(trace)
    found = forward_sites(trace, sites)
    labels = {
        int(a): sites.table[f].label if f >= 0 else ""
        for a, f in zip(trace.allocations.address, found, strict=True)
    }
    assert labels[of_second].startswith("train.py:7 ->")
    assert labels[of_first].startswith("train.py:6 ->")
    assert labels[bias].startswith("train.py:6 ->")  # the last that was freed
    assert labels[later] == ""  # another backward, of which nothing is known


def test_a_recorded_forward_line_is_taken_before_an_inferred_one() -> None:
    scene = Scene()
    first, second = scene.make(8, layer("linear", 6)), scene.make(8, layer("linear", 7))
    gradient = scene.make(4, AUTOGRAD)
    scene.drop(second, first)
    plain = scene.recording()
    forward = np.full(len(plain.events), -1, np.int32)
    number = int(np.flatnonzero(plain.allocations.address == gradient)[0])
    of_first = int(np.flatnonzero(plain.allocations.address == first)[0])
    forward[plain.allocations.born[number]] = plain.allocations.stack[of_first]
    trace = replace(plain, events=replace(plain.events, forward=forward))
    sites = Sites(trace)
    found = int(forward_sites(trace, sites)[number])
    assert sites.table[found].label.startswith("train.py:6 ->")
    assert explain(trace).by_site[-1].label.startswith("backward of train.py:6 ->")


def test_the_gradients_of_a_real_run_are_placed() -> None:
    explanation = explain(load(EXAMPLES / "gpt2_varlen.pickle.xz"))
    backward = [s for s in explanation.by_site if s.category == "backward" and s.bytes > MIB]
    assert backward
    assert all(s.label.startswith("backward of workloads.py:49") for s in backward)
    assert not any(s.label == NO_FRAMES for s in explanation.by_site if s.bytes > 32 * MIB)


def test_categories_and_lines_add_up_to_what_is_live() -> None:
    scene = Scene()
    training = Training(scene)
    for _ in range(6):
        training.step()
    explanation = scene.explain()
    peak = explanation.replay.peak.allocated
    assert sum(s.bytes for s in explanation.by_site) == peak
    assert sum(s.bytes for s in explanation.by_category) == peak


def test_a_weight_as_large_as_a_workspace_is_a_weight() -> None:
    scene = Scene()
    scene.make(32, moved_to_device(10))
    for _ in range(4):
        scene.drop(scene.make(8, layer("linear", 21)))
    assert categories(scene.recording())[0] is Category.PARAMETERS
