"""Where chains begin: frames of every thread, global variables, and what Python itself keeps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.edges import Edge, frame_edges
from tenure.lifetimes.graphs import own_dict
from tenure.lifetimes.sources import is_library, is_own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def frames() -> tuple[list[FrameType], list[FrameType]]:
    """The frames of every thread: the user's, outer before inner, and those of libraries."""
    mine: list[FrameType] = []
    library: list[FrameType] = []
    tops = sys._current_frames()  # noqa: SLF001  there is no other way
    while tops:
        current: FrameType | None = tops.popitem()[1]
        while current is not None:
            path = current.f_code.co_filename
            if not is_own(path):
                (library if is_library(path) else mine).append(current)
            current = current.f_back
    mine.reverse()  # an outer variable outlives the argument it was passed as
    return mine, library


def frame_roots() -> Iterator[Edge]:
    """Local variables of running functions of the user's."""
    for frame in frames()[0]:
        yield from frame_edges(frame)


def library_frame_roots() -> Iterator[Edge]:
    """Local variables of running functions of libraries: arguments on their way."""
    for frame in frames()[1]:
        for _, text, item in frame_edges(frame):
            yield "operation", text, item


def global_roots() -> Iterator[Edge]:
    """Global variables of the user's modules, `__main__` first."""
    modules = sorted(sys.modules.copy().items(), key=lambda m: m[0] != "__main__")
    for name, module in modules:
        variables = module_variables(module)
        path = variables.get("__file__") or ""
        if name == "__main__" or (path and not is_library(path) and not is_own(path)):
            if name in {"__main__", "__mp_main__"} and is_own(path):
                continue
            for key, item in list(variables.items()):
                text = key if name == "__main__" else f"{name}.{key}"
                yield "global", f"global {text}", item


def module_variables(module: object) -> dict[str, Any]:
    """A module's variables; its `__getattr__` is not asked."""
    return own_dict(module) or {}


def interpreter_roots() -> Iterator[Edge]:
    """The last exceptions that Python keeps for debuggers."""
    for name in ("last_exc", "last_value", "last_traceback"):
        value = getattr(sys, name, None)
        if value is not None:
            yield "exception", f"sys.{name}", value


def library_roots() -> Iterator[Edge]:
    """Global variables of every other module."""
    for name, module in list(sys.modules.items()):
        if name == "tenure" or name.startswith("tenure."):
            continue
        for key, item in list(module_variables(module).items()):
            yield "library", f"global {name}.{key}", item
