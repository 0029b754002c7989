"""GPU memory for PyTorch: replay, explain and manage what the caching allocator does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.live import install, memory_snapshot, memory_stats, memory_summary, uninstall
    from tenure.live.guards.guard import guard
    from tenure.live.steps import step
    from tenure.verbs import diff, explain, holders, load, plan, replay, tune
    from tenure.virtual import virtual_gpu

__version__ = "0.1.0"

# Public name -> module that defines it. Imported on first use, so that `import tenure` is cheap.
# A name added here is added to `__all__` too, and imported under TYPE_CHECKING for the checker.
_DEFINED_IN: dict[str, str] = {
    "diff": "tenure.verbs",
    "explain": "tenure.verbs",
    "guard": "tenure.live.guards.guard",
    "holders": "tenure.verbs",
    "install": "tenure.live",
    "load": "tenure.verbs",
    "memory_snapshot": "tenure.live",
    "memory_stats": "tenure.live",
    "memory_summary": "tenure.live",
    "plan": "tenure.verbs",
    "replay": "tenure.verbs",
    "step": "tenure.live.steps",
    "tune": "tenure.verbs",
    "uninstall": "tenure.live",
    "virtual_gpu": "tenure.virtual",
}

__all__ = [
    "diff",
    "explain",
    "guard",
    "holders",
    "install",
    "load",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "plan",
    "replay",
    "step",
    "tune",
    "uninstall",
    "virtual_gpu",
]


def __getattr__(name: str) -> object:
    """Returns a public name, importing the room that defines it."""
    module = _DEFINED_IN.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, imported or not."""
    return sorted({*globals(), *_DEFINED_IN})
