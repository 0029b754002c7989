"""What a script does that decides which changes to it are worth trying."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tenure.virtual.ending import EnoughSteps


@dataclass
class Traits:
    """What a script was seen to do.

    Attributes:
        steps: Most steps that one optimizer made.
        optimizers: Class name of each optimizer that stepped -> "fused", "foreach" or "".
        dtypes: Of the parameters that they train.
        checkpoints: How often a part of a model was checkpointed.
        autocasts: How often an autocast region for CUDA began.
    """

    steps: int = 0
    optimizers: dict[str, str] = field(default_factory=dict)
    dtypes: set[str] = field(default_factory=set)
    checkpoints: int = 0
    autocasts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "dtypes": sorted(self.dtypes)}

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Traits:
        """The reverse of `as_dict`."""
        return Traits(**{**value, "dtypes": set(value["dtypes"])})


@contextlib.contextmanager
def watch(traits: Traits, steps: int) -> Iterator[None]:
    """Notes traits of what runs inside.

    Args:
        traits: Where they are noted.
        steps: After so many steps of one optimizer `EnoughSteps` is raised; 0: never.
    """
    import torch
    import torch.utils.checkpoint

    from tenure.patches import Patches

    made: Counter[int] = Counter()

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not made[id(optimizer)]:
            _note_optimizer(traits, optimizer)
        made[id(optimizer)] += 1
        traits.steps = max(traits.steps, made[id(optimizer)])
        if steps and made[id(optimizer)] >= steps:
            raise EnoughSteps

    patches = Patches()
    module: Any = sys.modules["torch.utils.checkpoint"]
    patches.set(module, "checkpoint", _counted(traits, module.checkpoint))
    patches.set(torch.autocast, "__enter__", _noting_autocast(traits, torch.autocast.__enter__))
    optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute
    handle = vars(optimizers)["register_optimizer_step_post_hook"](stepped)
    try:
        yield
    finally:
        handle.remove()
        patches.undo()


def _note_optimizer(traits: Traits, optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    foreach = group.get("foreach", False) is not False  # None: PyTorch chooses it for CUDA
    way = "fused" if group.get("fused") else "foreach" if foreach else ""
    traits.optimizers[type(optimizer).__name__] = way
    for group in optimizer.param_groups:
        traits.dtypes.update(str(p.dtype).removeprefix("torch.") for p in group["params"])


def _counted(traits: Traits, original: Any) -> Any:
    @functools.wraps(original)
    def checkpoint(*args: Any, **kwargs: Any) -> Any:
        traits.checkpoints += 1
        return original(*args, **kwargs)

    return checkpoint


def _noting_autocast(traits: Traits, original: Any) -> Any:
    def enter(region: Any) -> Any:
        traits.autocasts += region.device == "cuda" and region._enabled
        return original(region)

    return enter
