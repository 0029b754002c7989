"""Attributes of other modules, and environment variables, replaced for a while and put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any


class Patches:
    """What was replaced for a while."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute until `undo`."""
        if name in vars(owner):
            self._undo.append(partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(partial(delattr, owner, name))
        setattr(owner, name, value)

    def set_variable(self, name: str, value: str) -> None:
        """Sets an environment variable until `undo`."""
        before = os.environ.get(name)
        if before is None:
            self._undo.append(partial(os.environ.pop, name, None))
        else:
            self._undo.append(partial(os.environ.__setitem__, name, before))
        os.environ[name] = value

    def __bool__(self) -> bool:
        """Whether there is anything to put back."""
        return bool(self._undo)

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._undo:
            self._undo.pop()()
