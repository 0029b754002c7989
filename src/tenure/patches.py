"""Attributes of other modules, replaced for a while and put back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Attributes replaced for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any, bool]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute until `undo`."""
        own = name in vars(owner)
        self._before.append((owner, name, vars(owner).get(name), own))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._before:
            owner, name, value, own = self._before.pop()
            if own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)
