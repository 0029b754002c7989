"""Recordings made to measure: what a script would have left, line by line, with times and steps."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from recorder import Recorder
from tenure.diagnoses import explain
from tenure.settings import AllocatorSettings
from tenure.traces import Annotation, Frame, Stacks, Trace, make_trace
from tenure.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recorder import Pool
    from tenure.diagnoses import Explanation, Finding

MODULE = "/site-packages/torch/nn/modules/module.py"
MAIN = Frame("/project/train.py", 1, "<module>")
AUTOGRAD: tuple[Frame, ...] = ()  # its threads have no Python frames


def line(number: int, name: str = "main") -> tuple[Frame, ...]:
    """A stack that ends in a line of the user's script."""
    return (Frame("/project/train.py", number, name), MAIN)


def layer(name: str, called_from: int) -> tuple[Frame, ...]:
    """A stack that ends in the forward of one of torch's modules."""
    return (
        Frame(f"/site-packages/torch/nn/modules/{name}.py", 134, "forward"),
        Frame(MODULE, 1790, "_call_impl"),
        *line(called_from),
    )


def optimizer(called_from: int, at: int = 178) -> tuple[Frame, ...]:
    """A stack inside the optimizer."""
    return (Frame("/site-packages/torch/optim/adam.py", at, "_init_group"), *line(called_from))


def moved_to_device(called_from: int) -> tuple[Frame, ...]:
    """A stack of model.to(device)."""
    return (Frame(MODULE, 1370, "convert"), Frame(MODULE, 934, "_apply"), *line(called_from))


class Scene(Recorder):
    """A recorder whose events carry stacks, microseconds and annotations.

    Attributes:
        clock: Microseconds; one passes with every event.
        stacks: False leaves the stacks out.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        capacity: int = -1,
        stacks: bool = True,
    ) -> None:
        super().__init__(settings or AllocatorSettings(), capacity=capacity)
        self.clock = 1_000
        self.stacks = stacks
        self._known: dict[tuple[Frame, ...], int] = {}
        self._current: tuple[Frame, ...] = AUTOGRAD
        self._of_row: list[int] = []
        self._times: list[int] = []
        self._annotations: list[Annotation] = []
        self._of_address: dict[int, int] = {}

    def make(
        self, mib: float, where: tuple[Frame, ...], stream: int = 0, pool: Pool = (0, 0)
    ) -> int:
        """Allocates at a line; the address."""
        self._current = where
        address = self.allocate(int(mib * MIB), stream, pool)
        assert address is not None
        self._of_address[address] = self._stack()
        return address

    def ask(self, mib: float, where: tuple[Frame, ...], stream: int = 0) -> bool:
        """Allocates if it can, and keeps it; whether it could."""
        self._current = where
        return self.allocate(int(mib * MIB), stream) is not None

    def drop(self, *addresses: int, where: tuple[Frame, ...] = AUTOGRAD) -> None:
        """Frees at a line, in that order."""
        self._current = where
        for address in addresses:
            self.free(address)

    def clean(self, where: tuple[Frame, ...]) -> None:
        """torch.cuda.empty_cache() at a line."""
        self._current = (Frame("/site-packages/torch/cuda/memory.py", 224, "empty_cache"), *where)
        self.empty_cache()

    @contextmanager
    def step(self) -> Iterator[None]:
        """What happens inside is one optimizer.step()."""
        begin = self.clock + 1
        self.clock += 1
        yield
        self.clock += 1
        self._annotations.append(Annotation("Optimizer.step#Adam.step", begin, self.clock))

    def recording(self, first: int = 0) -> Trace:
        """The trace, without its first events."""
        plain = self.trace(first)
        events = replace(
            plain.events,
            time_us=np.array(self._times[first:], np.int64),
            stack=np.array(self._of_row[first:], np.int32),
        )
        blocks = plain.end.blocks
        held = [self._of_address.get(int(a), -1) for a in blocks.address]
        end = replace(
            plain.end,
            blocks=replace(blocks, stack=np.where(blocks.state > 0, held, -1).astype(np.int32)),
        )
        return make_trace(
            events,
            end,
            device=0,
            pools=plain.pools,
            stacks=self._table(),
            annotations=tuple(self._annotations),
            settings=plain.settings,
        )

    def explain(self, capacity: int | None = None) -> Explanation:
        """What explain says of it."""
        return explain(self.recording(), capacity=capacity)

    def finding(self, code: str, capacity: int | None = None) -> Finding | None:
        """The first finding of a code, or None."""
        findings = self.explain(capacity).findings
        return next((f for f in findings if f.code == code), None)

    def _stack(self) -> int:
        if not self._current or not self.stacks:
            return -1
        return self._known.setdefault(self._current, len(self._known))

    def _table(self) -> Stacks:
        strings: dict[str, int] = {}
        frames: dict[Frame, int] = {}
        for stack in self._known:
            for frame in stack:
                frames.setdefault(frame, len(frames))
                strings.setdefault(frame.file, len(strings))
                strings.setdefault(frame.name, len(strings))
        lengths = [len(stack) for stack in self._known]
        return Stacks(
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            np.array([frames[f] for stack in self._known for f in stack], np.int32),
            np.array([strings[f.file] for f in frames], np.int32),
            np.array([f.line for f in frames], np.int32),
            np.array([strings[f.name] for f in frames], np.int32),
            tuple(strings),
        )

    def _write(self, action: int, address: int, size: int, stream: int, pool: int) -> None:
        super()._write(action, address, size, stream, pool)
        self.clock += 1
        self._times.append(self.clock)
        self._of_row.append(self._stack())


class Training:
    """A loop of training steps with parameters, gradients, states, a batch and activations."""

    def __init__(
        self, scene: Scene, *, layers: int = 3, mib: float = 8, steps: bool = True
    ) -> None:
        self.scene = scene
        self.layers, self.mib, self.steps = layers, mib, steps
        for _ in range(layers):
            scene.make(mib, moved_to_device(10))
        self._states_made = False
        self._batch: int | None = None

    def step(self, batch: float = 16) -> int:
        """One step; the address of its batch, which the loop's variable keeps until the next."""
        scene = self.scene
        fresh = scene.make(batch, line(20))
        if self._batch is not None:
            scene.drop(self._batch, where=line(20))
        self._batch = fresh
        acts = [scene.make(2 * batch, layer("linear", 21)) for _ in range(self.layers)]
        gradients = []
        for act in reversed(acts):
            scene.drop(act)
            gradients.append(scene.make(self.mib, AUTOGRAD))
            scene.drop(scene.make(batch, AUTOGRAD))
        if self.steps:
            with scene.step():
                self._update()
        else:
            self._update()
        scene.drop(*gradients, where=line(24))
        return fresh

    def _update(self) -> None:
        scene = self.scene
        if not self._states_made:
            for _ in range(self.layers):
                scene.make(self.mib, optimizer(23))
        self._states_made = True
        scene.drop(scene.make(self.mib, optimizer(23, at=791)), where=line(23))
