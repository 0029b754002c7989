"""Runs as they should be, made at random: nothing is said of them that is not normal."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scene import AUTOGRAD, Scene, layer, line, moved_to_device, optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenure.diagnoses import Finding

WRONG = ("oom", "growth", "holder", "stream", "pool")
NORMAL = {"normal", "info"}


class Healthy:
    """A training run with some of what such runs do besides; all of it drawn from a seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.chance = chance
        self.scene = Scene(stacks=chance.random() < 0.8)
        self.annotated = chance.random() < 0.6
        self.models = chance.choice([1, 1, 1, 2])
        self.layers = chance.randint(2, 6)
        self.mib = chance.choice([2, 4, 8, 20])
        self.micro_batches = chance.choice([1, 1, 2, 4])
        self.evaluated_every = chance.choice([0, 0, 3, 5, 8])
        self.state_at = chance.choice([0, 0, 1, 4])  # the step that makes the optimizer's state
        self.lengths = chance.choice(["fixed", "varying", "warming up"])
        self.keeps_average = chance.random() < 0.3  # of the weights, as a copy
        self.state_made = [False] * self.models

    def run(self, steps: int) -> tuple[Finding, ...]:
        scene = self.scene
        for model in range(self.models):
            for _ in range(self.layers):
                scene.make(self.mib, moved_to_device(10 + model))
        if self.keeps_average:
            for _ in range(self.layers):
                scene.make(self.mib, line(14, "copy_weights"))
        for step in range(steps):
            for model in range(self.models):
                self._train(model, step)
            if self.evaluated_every and step % self.evaluated_every == self.evaluated_every - 1:
                self._evaluate()
        return scene.explain().findings

    def _batch(self, step: int) -> float:
        if self.lengths == "varying":
            return self.chance.choice([3, 5, 8, 13, 16])
        return min(2 * step + 2, 16) if self.lengths == "warming up" else 16

    def _train(self, model: int, step: int) -> None:
        scene, at = self.scene, 30 + 10 * model
        gradients: list[int] = []
        for part in range(self.micro_batches):
            batch = self._batch(step)
            fresh = scene.make(batch, line(at))
            made = [scene.make(2 * batch, layer("linear", at + 1)) for _ in range(self.layers)]
            for activation in reversed(made):
                scene.drop(activation)
                gradient = scene.make(self.mib, AUTOGRAD)
                if part:
                    scene.drop(gradient)  # added to the one that is there
                else:
                    gradients.append(gradient)
                scene.drop(scene.make(batch, AUTOGRAD))
            scene.drop(fresh, where=line(at + 1))
        if self.annotated:
            with scene.step():
                self._update(model, step, at)
        else:
            self._update(model, step, at)
        scene.drop(*gradients, where=line(at + 4))

    def _update(self, model: int, step: int, at: int) -> None:
        scene = self.scene
        if not self.state_made[model] and step >= self.state_at:
            for _ in range(2 * self.layers):
                scene.make(self.mib, optimizer(at + 3))
            self.state_made[model] = True
        scene.drop(scene.make(self.mib, optimizer(at + 3, at=791)), where=line(at + 3))

    def _evaluate(self) -> None:
        scene = self.scene
        for _ in range(self.chance.randint(1, 4)):
            batch = scene.make(self.chance.choice([8, 16, 24]), line(80, "evaluate"))
            last = batch
            for _ in range(self.layers):
                output = scene.make(16, layer("linear", 81))
                scene.drop(last, where=line(81, "evaluate"))
                last = output
            scene.drop(last, where=line(82, "evaluate"))


class Server:
    """Requests whose caches of keys and values grow token by token, several at a time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scene = Scene(stacks=self.chance.random() < 0.8)
        self.at_a_time = self.chance.choice([1, 1, 2, 4])
        self.joins = self.chance.random() < 0.5  # a larger cache replaces the old one; else parts
        self.forgets = 1.0  # of the requests, whose caches go when they are done

    def run(self, requests: int) -> tuple[Finding, ...]:
        scene = self.scene
        open_: list[tuple[int, list[int]]] = []
        for _ in range(6):
            scene.make(20, moved_to_device(10))
        begun = 0
        while begun < requests or open_:
            if begun < requests and len(open_) < self.at_a_time:
                open_.append((self.chance.randint(4, 24), [scene.make(4, layer("prefill", 20))]))
                begun += 1
            for session in list(open_):
                open_.remove(session)
                left, cache = self._token(*session)
                if left:
                    open_.append((left, cache))
                elif self.chance.random() < self.forgets:
                    scene.drop(*cache, where=line(24, "serve"))
        return scene.explain().findings

    def _token(self, left: int, cache: list[int]) -> tuple[int, list[int]]:
        scene = self.scene
        scene.drop(scene.make(2, layer("linear", 21)))
        if self.joins:
            fresh = scene.make(4 + 0.5 * (24 - left), layer("cache", 22))
            scene.drop(*cache, where=line(22, "serve"))
            return left - 1, [fresh]
        return left - 1, [*cache, scene.make(1, layer("cache", 22))]


def wrong(findings: tuple[Finding, ...]) -> Iterator[str]:
    for finding in findings:
        area = finding.code.partition(".")[0]
        if area in WRONG and finding.severity.value not in NORMAL:
            yield f"{finding.code}: {finding.title}"


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_found_in_a_healthy_run(seed: int) -> None:
    run = Healthy(seed)
    assert list(wrong(run.run(run.chance.randint(8, 24)))) == []


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_found_in_a_healthy_server(seed: int) -> None:
    server = Server(seed)
    assert list(wrong(server.run(server.chance.randint(8, 24)))) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_never_forgets_is_found(seed: int) -> None:
    server = Server(seed)
    server.forgets = 0.0
    assert any(f.code == "growth" for f in server.run(24))


@pytest.mark.parametrize("seed", range(12))
def test_a_leak_put_into_a_healthy_run_is_found(seed: int) -> None:
    run = Healthy(seed)
    train, scene = run._train, run.scene

    def leaking(model: int, step: int) -> None:
        train(model, step)
        scene.make(6, line(90, "remember"))

    run._train = leaking  # type: ignore[method-assign]
    found = [f for f in run.run(20) if f.code == "growth"]
    assert found
    if scene.stacks:
        assert any("train.py:90 remember" in text for text in found[0].evidence)
