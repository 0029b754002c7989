"""Steps for people who don't write the loop: transformers, Lightning, accelerate.

Each class is made when it is asked for, so that none of the libraries is imported before. All call
`tenure.step()` where a step of training ends, and do nothing else.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any
from weakref import WeakSet

from tenure.errors import UsageError
from tenure.live.steps import step

_watched: WeakSet[Any] = WeakSet()  # optimizers whose steps are marked
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")  # one library under two names


def transformers_callback(*, tidy: bool = False) -> Any:
    """A TrainerCallback: `Trainer(..., callbacks=[trainers.transformers_callback()])`.

    Args:
        tidy: As for `tenure.step`.

    Raises:
        UsageError: transformers is not installed.
    """
    return _transformers_class()(tidy)


def lightning_callback(*, tidy: bool = False) -> Any:
    """A Callback: `Trainer(callbacks=[trainers.lightning_callback()])`.

    It is that of the package which the script has imported, where both are installed.

    Args:
        tidy: As for `tenure.step`.

    Raises:
        UsageError: Neither lightning nor pytorch_lightning is installed.
    """
    return _lightning_class()(tidy)


def watch_accelerate(accelerator: Any, *, tidy: bool = False) -> Any:
    """Marks a step after each optimizer step that accelerate makes, accumulation included.

    Args:
        accelerator: An `accelerate.Accelerator` whose `prepare()` has been called.
        tidy: As for `tenure.step`.

    Returns:
        The accelerator.

    Raises:
        UsageError: It has prepared no optimizer.
    """
    optimizers = list(getattr(accelerator, "_optimizers", ()))
    if not optimizers:
        raise UsageError(
            "this accelerator has prepared no optimizer: call prepare() before watch_accelerate()"
        )
    last = optimizers[-1].optimizer  # the last to step ends the step

    def stepped(*_: Any) -> None:
        step(tidy=tidy)

    if last not in _watched:
        _watched.add(last)
        last.register_step_post_hook(stepped)
    return accelerator


@cache
def _transformers_class() -> type:
    try:
        base: Any = importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise UsageError(f"transformers cannot be imported ({error})") from None

    class TenureCallback(base):  # type: ignore[misc, unused-ignore]
        """Marks a step where the trainer ends one."""

        def __init__(self, tidy: bool) -> None:
            self.tidy = tidy

        def __reduce__(self) -> tuple[Any, ...]:
            return transformers_callback, (), {"tidy": self.tidy}

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """After the optimizer's step and the zeroing of gradients."""
            step(tidy=self.tidy)

    return TenureCallback


def _lightning_class() -> type:
    # The one in use first; to import the other too would cost seconds.
    for name in sorted(_LIGHTNING, key=lambda name: name not in sys.modules):
        try:
            return _lightning_class_of(importlib.import_module(name).Callback)
        except ImportError:
            continue
    raise UsageError("neither lightning nor pytorch_lightning can be imported")


@cache
def _lightning_class_of(base: Any) -> type:
    class TenureCallback(base):  # type: ignore[misc, unused-ignore]
        """Marks a step where the trainer ends one."""

        def __init__(self, tidy: bool) -> None:
            super().__init__()
            self.tidy = tidy
            self.seen = 0

        def __reduce__(self) -> tuple[Any, ...]:
            # Without what a trainer hangs on it, which leads to the whole model.
            return lightning_callback, (), {"tidy": self.tidy, "seen": self.seen}

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            """Where counting begins: not at 0 after a checkpoint, or another trainer's steps."""
            self.seen = trainer.global_step

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """After a batch; of those that only accumulate none counts."""
            if trainer.global_step != self.seen:
                self.seen = trainer.global_step
                step(tidy=self.tidy)

    return TenureCallback
