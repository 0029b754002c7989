"""Libraries that a model needs only to be there: torchvision, for timm."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = "torchvision"


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        """Members of enumerations and class methods: a text says which was asked for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _StandIn(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind = _Kind(name, (), {})
        setattr(self, name, kind)
        return kind


class TorchvisionForTimm(MetaPathFinder, Loader):
    """Lets timm's models be built where torchvision, which only its data loading needs, is not."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """An empty module for timm; nothing for others, who would take it for the real one."""
        if fullname.partition(".")[0] != _NAME or not _timm_asks():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The empty module."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def _timm_asks() -> bool:
    frame: Any = sys._getframe(1)  # noqa: SLF001  the documented way to walk a stack
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "timm":
            return True
        frame = frame.f_back
    return False


def install() -> None:
    """Adds the finder where torchvision is missing; once a process."""
    there = any(isinstance(finder, TorchvisionForTimm) for finder in sys.meta_path)
    if not there and importlib.util.find_spec(_NAME) is None:
        sys.meta_path.append(TorchvisionForTimm())
