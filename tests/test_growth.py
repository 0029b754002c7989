"""Live memory that grows from round to round: found, placed, and told apart from what does not."""

from __future__ import annotations

import numpy as np
import pytest

from scene import AUTOGRAD, Scene, Training, layer, line, moved_to_device
from tenure.diagnoses import Confidence, Severity
from tenure.lifetimes import (
    Ending,
    Growth,
    Order,
    Sites,
    find_growth,
    find_rounds,
    find_steps,
    flat_since,
)
from tenure.lifetimes.rising import find_rises
from tenure.replays import recorded_replay
from tenure.units import MIB


def growths(scene: Scene) -> tuple[Growth, ...]:
    trace = scene.recording()
    timeline = recorded_replay(trace, timeline=True).timeline
    assert timeline is not None
    rounds = find_rounds(trace, find_steps(trace))
    return find_growth(trace, timeline.allocated, Sites(trace), rounds)


def serve(scene: Scene, batch: float = 6) -> int:
    """One request of a server that keeps nothing; the address of its result."""
    x = scene.make(batch, line(5))
    y = scene.make(2 * batch, layer("linear", 6))
    z = scene.make(batch, layer("activation", 6))
    scene.drop(x, y, where=line(7))
    return z


def test_a_leak_of_a_training_loop_is_measured_and_placed() -> None:
    scene = Scene()
    training = Training(scene)
    for _ in range(12):
        training.step()
        scene.make(3, line(40))
    (growth,) = growths(scene)
    assert (growth.ending, growth.per) == (Ending.UNBOUNDED, "step")
    assert growth.bytes_per_round == 3 * MIB
    assert growth.release is None
    assert growth.sites[0].blocks >= 11
    assert not growth.builds_up
    assert growth.works


@pytest.mark.parametrize("stacks", [True, False])
def test_a_leak_of_a_server_is_found_with_and_without_stacks(stacks: bool) -> None:
    scene = Scene(stacks=stacks)
    scene.make(40, moved_to_device(2))
    for i in range(15):
        scene.drop(serve(scene, 4 + i % 3), where=line(8))
        scene.make(3, line(9))
    (growth,) = growths(scene)
    assert growth.ending is Ending.UNBOUNDED
    assert growth.bytes_per_round == 3 * MIB
    assert growth.sites[0].requested == 3 * MIB


@pytest.mark.parametrize("rounds", [5, 6, 10])
def test_few_rounds_are_enough(rounds: int) -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    for _ in range(rounds):
        serve(scene)
    (growth,) = growths(scene)
    assert growth.grown == rounds * 6 * MIB
    assert growth.rounds == rounds


def test_growth_that_levels_off_is_a_plateau() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    for i in range(30):
        scene.drop(serve(scene), where=line(8))
        if i < 9:
            scene.make(4, line(9))
    (growth,) = growths(scene)
    assert growth.ending is Ending.PLATEAU
    assert growth.flat >= 18
    finding = scene.finding("growth")
    assert finding is not None
    assert finding.severity is Severity.NORMAL
    assert "it stops there" in finding.title


def test_a_cache_that_replaces_its_oldest_is_a_plateau() -> None:
    scene = Scene()
    kept: list[int] = []
    scene.make(20, moved_to_device(2))
    for _ in range(40):
        kept.append(serve(scene))
        if len(kept) > 8:
            scene.drop(kept.pop(0), where=line(8))
    (growth,) = growths(scene)
    assert growth.ending is Ending.PLATEAU


def test_a_list_that_is_dropped_is_released_youngest_first() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    kept = [serve(scene) for _ in range(10)]
    scene.drop(*reversed(kept), where=line(11))
    for _ in range(10):
        scene.drop(serve(scene), where=line(8))
    (growth,) = growths(scene)
    assert growth.ending is Ending.RELEASED
    assert growth.grown == 60 * MIB
    assert growth.release is not None
    assert growth.release.order is Order.REVERSED
    assert growth.release.share == 1
    finding = scene.finding("growth")
    assert finding is not None
    assert finding.bytes == 60 * MIB
    assert any("freed at event" in text and "train.py:11" in text for text in finding.evidence)


def test_one_tensor_made_anew_larger_each_time_is_a_list_in_disguise() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    kept = None
    for i in range(12):
        part = scene.make(16, line(5))
        whole = scene.make(16 * (i + 1), line(6))
        scene.drop(*([kept] if kept else []), part, where=line(6))
        kept = whole
    (growth,) = growths(scene)
    assert growth.sites[0].replaced
    assert growth.bytes_per_round == 16 * MIB
    finding = scene.finding("holder.list")
    assert finding is not None
    assert finding.bytes == 12 * 16 * MIB
    assert "train.py:6" in finding.evidence[0]


def test_batches_that_become_larger_are_no_growth() -> None:
    scene = Scene()
    training = Training(scene)
    for i in range(12):
        training.step(batch=8 + 4 * i)
    findings = {f.code for f in scene.explain().findings}
    assert not findings & {"growth", "holder.list"}


def test_what_the_garbage_collector_frees_again_and_again_is_a_cycle() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    kept: list[int] = []
    for i in range(40):
        kept.append(serve(scene))
        if i % 10 == 9:
            scene.drop(*kept, where=line(8 + i))
            kept.clear()
    assert {g.times for g in growths(scene)} == {4}
    finding = scene.finding("holder.cycle")
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert "garbage collector" in " ".join(finding.evidence)


def test_what_one_line_empties_again_and_again_may_be_a_dict() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    for _ in range(4):
        kept = [serve(scene) for _ in range(10)]
        scene.drop(*kept, where=line(8))
    finding = scene.finding("holder.cycle")
    assert finding is not None
    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)


def test_an_inner_loop_that_climbs_and_falls_each_time_is_no_growth() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    for _ in range(4):
        kept = [serve(scene) for _ in range(10)]
        scene.drop(*reversed(kept), where=line(11))
    findings = {f.code for f in scene.explain().findings}
    assert not findings & {"growth", "holder.list", "holder.cycle"}


def test_activations_of_one_forward_pass_are_no_growth() -> None:
    scene = Scene()
    acts = [scene.make(8, layer("linear", 6)) for _ in range(16)]
    for act in reversed(acts):
        scene.drop(act)
        scene.drop(scene.make(8, AUTOGRAD))
    assert not growths(scene)


def test_a_model_being_loaded_is_at_most_a_possibility() -> None:
    scene = Scene()
    for _ in range(12):
        scratch = scene.make(54, line(3))
        scene.drop(scratch, where=line(4))
        scene.make(28, line(5))
    finding = scene.finding("growth")
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "if this loads a model, it is normal" in finding.evidence[-1]
    plain = Scene()
    for _ in range(12):
        plain.make(28, line(5))
    assert plain.finding("growth") is None


def test_a_step_now_and_then_is_growth_too() -> None:
    """Every fifth step keeps something: evaluation at the end of each epoch."""
    scene = Scene()
    training = Training(scene)
    for i in range(30):
        training.step()
        if i % 5 == 4:
            scene.make(20, line(40))
    (growth,) = growths(scene)
    assert growth.ending is Ending.UNBOUNDED


def test_a_healthy_loop_grows_nowhere_and_is_flat_after_the_first_step() -> None:
    scene = Scene()
    training = Training(scene)
    for i in range(20):
        training.step(batch=8 + 8 * (i % 3))
    assert not growths(scene)
    trace = scene.recording()
    timeline = recorded_replay(trace, timeline=True).timeline
    rounds = find_rounds(trace, find_steps(trace))
    assert timeline is not None
    assert rounds is not None
    flat = flat_since(timeline.allocated, Sites(trace), rounds, trace)
    assert flat is None or flat <= 3


def test_the_forecast_says_when_the_card_is_full() -> None:
    scene = Scene()
    scene.make(40, moved_to_device(2))
    for _ in range(12):
        scene.drop(serve(scene), where=line(8))
        scene.make(8, line(9))
    finding = scene.finding("growth", capacity=1024 * MIB)
    assert finding is not None
    live = 40 + 12 * 8
    forecast = next(text for text in finding.evidence if "is full after" in text)
    left = int(forecast.split("about ")[1].split(" ")[0])
    assert abs(left - (1024 - live) // 8) <= 2


@pytest.mark.parametrize(
    ("levels", "runs"),
    [
        ([10, 10, 10, 10, 10, 10], []),
        ([10, 20, 30, 40, 50, 60], [(0, 5, 0)]),
        ([10, 20, 30, 40, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50], [(0, 4, 9)]),
        ([10, 20, 30, 40, 50, 10, 20, 30, 40, 50], [(0, 4, 0), (5, 9, 0)]),
        ([10, 30, 10, 30, 10, 30, 10, 30], []),
        ([10, 300, 310, 320, 330, 340, 350], [(1, 6, 0)]),
    ],
)
def test_rises_of_a_series(levels: list[int], runs: list[tuple[int, int, int]]) -> None:
    level = np.array(levels, np.int64) * MIB
    found = [(r.first, r.last, r.flat) for r in find_rises(level, 5 * MIB)]
    assert found == runs
