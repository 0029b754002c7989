"""What a step, or a start from a file, leaves alive though nobody needs it any more."""

from __future__ import annotations

import pytest

from scene import AUTOGRAD, Scene, layer, line, moved_to_device, optimizer
from tenure.diagnoses import Confidence, Finding, Severity
from tenure.traces import Frame
from tenure.units import MIB

LAYERS, MIB_EACH = 3, 8
LOADED = (Frame("/site-packages/torch/serialization.py", 1900, "restore_location"), *line(7))


class Loop:
    """Training steps of three layers; gradients are dropped after the step, late, or never."""

    def __init__(self, zero: str) -> None:
        self.scene = Scene()
        self.zero = zero
        self._gradients: list[int] = []
        self._states_made = False
        for _ in range(LAYERS):
            self.scene.make(MIB_EACH, moved_to_device(10))

    def run(self, steps: int, micro_batches: int = 1) -> Scene:
        for _ in range(steps):
            for _ in range(micro_batches):
                self._forward_and_backward()
            self._update()
        return self.scene

    def _forward_and_backward(self) -> None:
        scene = self.scene
        batch = scene.make(16, line(20))
        activations = [scene.make(32, layer("linear", 21)) for _ in range(LAYERS)]
        if self.zero == "late":
            self._drop()
        full = len(self._gradients) == LAYERS  # then the new ones are added to them
        for activation in reversed(activations):
            scene.drop(activation)
            gradient = scene.make(MIB_EACH, AUTOGRAD)
            if full:
                scene.drop(gradient)
            else:
                self._gradients.append(gradient)
            scene.drop(scene.make(16, AUTOGRAD))
        scene.drop(batch, where=line(22))

    def _update(self) -> None:
        scene = self.scene
        with scene.step():
            if not self._states_made:
                for _ in range(LAYERS):
                    scene.make(MIB_EACH, optimizer(23))
            self._states_made = True
            scene.drop(scene.make(MIB_EACH, optimizer(23, at=791)), where=line(23))
        if self.zero == "after the step":
            self._drop()

    def _drop(self) -> None:
        self.scene.drop(*self._gradients, where=line(24, "zero_grad"))
        self._gradients = []


def finding_of(scene: Scene, code: str) -> Finding | None:
    return next((f for f in scene.explain().findings if f.code == code), None)


def test_gradients_zeroed_after_the_forward_pass_raise_its_peak() -> None:
    late = Loop("late").run(8)
    finding = finding_of(late, "holder.gradients")
    assert finding
    assert finding.bytes == LAYERS * MIB_EACH * MIB
    peak = Loop("after the step").run(8).explain().replay.peak.allocated
    assert late.explain().replay.peak.allocated - finding.bytes == peak
    assert any("train.py:24 zero_grad" in text for text in finding.evidence)


def test_gradients_that_are_filled_with_zeros_raise_it_too() -> None:
    finding = finding_of(Loop("never").run(8), "holder.gradients")
    assert finding
    # The first of the three is needed from its own backward on; the peak is then two layers lower.
    assert 0 < finding.bytes <= LAYERS * MIB_EACH * MIB
    assert any("set_to_none=False" in text for text in finding.evidence)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_gradients_dropped_after_the_step_are_as_they_should_be(micro_batches: int) -> None:
    scene = Loop("after the step").run(8, micro_batches)
    assert finding_of(scene, "holder.gradients") is None


def test_without_steps_nothing_is_said_of_gradients() -> None:
    scene = Loop("late").run(8)
    scene._annotations.clear()
    assert finding_of(scene, "holder.gradients") is None


def resumed(*, keep: bool, assign: bool = False) -> Scene:
    scene = Scene()
    if not assign:
        for _ in range(LAYERS):
            scene.make(32, moved_to_device(10))
    checkpoint = [scene.make(32, LOADED) for _ in range(LAYERS)]
    if not keep and not assign:
        scene.drop(*checkpoint, where=line(8))
    for _ in range(8):
        activations = [scene.make(16, layer("linear", 21)) for _ in range(LAYERS)]
        for activation in reversed(activations):
            scene.drop(activation)
            scene.drop(scene.make(16, AUTOGRAD))
    return scene


def test_a_checkpoint_kept_beside_the_model_is_possible() -> None:
    finding = finding_of(resumed(keep=True), "holder.checkpoint")
    assert finding
    assert finding.bytes == LAYERS * 32 * MIB
    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "train.py:7" in finding.title


def test_a_checkpoint_that_is_dropped_or_is_the_model_is_none() -> None:
    assert finding_of(resumed(keep=False), "holder.checkpoint") is None
    assert finding_of(resumed(keep=True, assign=True), "holder.checkpoint") is None
