"""The engine as the allocator of this process; `runs` and `guards` watch what a process does."""

from __future__ import annotations

from tenure.live.recording import dump_snapshot
from tenure.live.snapshot import memory_snapshot
from tenure.live.statistics import memory_stats
from tenure.live.summary import memory_summary
from tenure.live.torch import install, uninstall

__all__ = [
    "dump_snapshot",
    "install",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "uninstall",
]
