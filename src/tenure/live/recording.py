"""What the engine remembers of each allocation, and snapshots of it."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

from tenure import _engine
from tenure.errors import UsageError
from tenure.live import stacks as stack_lines

_ALL = (1 << 63) - 1  # PyTorch's "keep every event"


class History:
    """What is in force; PyTorch's own switch and ours share it."""

    stacks: bool = False  # of live blocks, whether or not PyTorch's history is on
    events: int = 0  # kept whether or not PyTorch's history is on
    enabled: str | None = None  # PyTorch's terms: None, "state" or "all"
    context: str | None = None  # None, "state", "alloc" or "all"
    max_entries: int = 0


def begin(*, stacks: bool, events: int) -> None:
    """Starts remembering, at the engine's start.

    Args:
        stacks: The stack of each live block.
        events: How many of the newest events to keep.
    """
    History.stacks, History.events = stacks, events
    _apply(clear=False)


def record_history(
    enabled: str | None,
    context: str | None = "all",
    max_entries: int = _ALL,
    *,
    clear: bool = False,
) -> None:
    """PyTorch's switch: torch.cuda.memory._record_memory_history."""
    if enabled not in {None, "state", "all"}:
        raise UsageError(f"history: {enabled!r} is none of None, 'state' and 'all'")
    if context not in {None, "state", "alloc", "all"}:
        raise UsageError(f"history: context {context!r} is none of None, 'state', 'alloc', 'all'")
    History.enabled = enabled
    History.context = context if enabled else None
    History.max_entries = max_entries if enabled == "all" else 0
    # As PyTorch's does when it is switched off; what was asked of tenure itself stays.
    _apply(clear=clear or (enabled is None and not History.events))


def is_enabled() -> bool:
    """Whether PyTorch's switch is on."""
    return History.enabled is not None


def _apply(*, clear: bool) -> None:
    context = History.context
    kept = max(History.events, History.max_entries)
    block_stacks = History.stacks or context is not None
    if block_stacks:
        stack_lines.learn()
    _engine.Live.record(
        events=kept > 0,
        block_stacks=block_stacks,
        alloc_stacks=context in {"alloc", "all"} or (History.stacks and History.events > 0),
        free_stacks=context == "all",
        max_events=min(kept, _ALL),
        clear=clear,
    )


def dump_snapshot(target: str | os.PathLike[str]) -> Path:
    """Writes what is remembered as a PyTorch snapshot, which `tenure explain` reads.

    Args:
        target: A file; or a folder, for a file named after the process and the time.

    Raises:
        UsageError: It cannot be written.
    """
    from tenure.live.snapshot import snapshot

    path = Path(target)
    if path.is_dir():
        rank = os.environ.get("RANK", "0")
        path /= f"rank{rank}_pid{os.getpid()}_{time.strftime('%Y%m%d-%H%M%S')}.pickle"
    try:
        with path.open("wb") as file:
            pickle.dump(snapshot(), file, protocol=4)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error})") from None
    return path
