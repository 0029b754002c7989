"""What Python adds when memory runs out: a collection before, an explanation after."""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tenure.errors import UsageError
from tenure.units import format_bytes

# (device, bytes of the segment asked for, limit or total bytes, bytes free on the device)
Observer = Callable[[int, int, int, int], object]

observers: list[Observer] = []
_SHOWN = 5  # lines that hold most
_PATIENCE = 2.0  # seconds


class Host:
    """What the engine calls, with none of its locks held.

    Only threads that run Python are asked; whatever is raised here is shown on stderr and otherwise
    ignored, so that the request's own error comes through.
    """

    def __init__(self, *, collect_cycles: bool, on_oom: str | os.PathLike[str] | None) -> None:
        self._collect_cycles = collect_cycles
        self._on_oom = on_oom or os.environ.get("TENURE_OOM")
        self._lock = threading.Lock()  # held by the thread that collects
        self._collecting: int | None = None  # which one that is

    def collect(self) -> bool:
        """Collects dead reference cycles; False if there were none.

        A thread that comes while another one collects waits for it and tries again: what is freed
        there may serve it too. It does not wait for long, since the other may wait for it.
        """
        own = threading.get_ident()
        if not self._collect_cycles or self._collecting == own:
            return False
        if not self._lock.acquire(blocking=False):
            if self._lock.acquire(timeout=_PATIENCE):
                self._lock.release()
            return True
        self._collecting = own
        try:
            return gc.collect() > 0
        finally:
            self._collecting = None
            self._lock.release()

    def explain(self, shortage: dict[str, Any]) -> str:
        """More lines for the message, each beginning with a line break."""
        text = holders_text(shortage) + advice_text(shortage)
        limit = shortage["limit"] if shortage["limit"] >= 0 else shortage["total"]
        for observer in tuple(observers):
            try:
                observer(shortage["device"], shortage["segment"], limit, shortage["free"])
            except Exception:  # noqa: BLE001  the user's code; the explanation matters more
                traceback.print_exc()
        return text + self._snapshot()

    def _snapshot(self) -> str:
        if not self._on_oom:
            return ""
        from tenure.live.recording import dump_snapshot

        try:
            return f"\n- Snapshot: {dump_snapshot(self._on_oom)}"
        except UsageError as error:
            return f"\n- No snapshot: {error}"


def holders_text(shortage: dict[str, Any]) -> str:
    """Which lines made most of what is live."""
    from tenure.live.stacks import label_of

    sizes: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for stack, size, blocks in shortage["holders"]:
        label = label_of(stack) if stack else ""
        sizes[label] += size
        counts[label] += blocks
    known = sorted(((size, label) for label, size in sizes.items() if label), reverse=True)
    if not known:
        return ""
    text = "\nMost of the live memory was made by"
    for size, label in known[:_SHOWN]:
        text += f"\n  {format_bytes(size):>10} in {counts[label]} blocks  {label}"
    return text


def _rules_are_elastic() -> bool:
    from tenure.live.process import InForce

    return InForce.settings.rules == "elastic"


def advice_text(shortage: dict[str, Any]) -> str:
    """What would help, as far as the counts show."""
    lines = []
    unallocated = shortage["reserved"] - shortage["allocated"]
    missing = shortage["allocated"] + shortage["requested"] - max(shortage["limit"], 0)
    if shortage["limit"] >= 0 and missing > 0:
        lines.append(
            f"Raise the limit by {format_bytes(missing)}, or hold less: a smaller batch, "
            "checkpointing, or the lines above."
        )
    if shortage["pending"] >= shortage["requested"]:
        lines.append(
            "Let the streams that still use freed memory finish before this request: wait for "
            "them, or call record_stream() later."
        )
    if shortage["private_free"] >= shortage["requested"]:
        lines.append("Let graphs share one pool (torch.cuda.graph(..., pool=...)).")
    if not lines and unallocated >= shortage["requested"] and not _rules_are_elastic():
        lines.append('Memory is there, but in pieces: tenure.install(rules="elastic") moves them.')
    return "".join(f"\n- {line}" for line in lines)
