"""Files in and out: PyTorch's memory snapshots, read without ever running what is in them."""

from tenure.snapshots.loading import load, to_trace
from tenure.snapshots.reading import read_snapshot
from tenure.snapshots.snapshot import (
    ACTION_NAMES,
    Annotations,
    Blocks,
    Events,
    Frames,
    Segments,
    Snapshot,
    Stacks,
)
from tenure.snapshots.writing import to_plain, write_snapshot

__all__ = [
    "ACTION_NAMES",
    "Annotations",
    "Blocks",
    "Events",
    "Frames",
    "Segments",
    "Snapshot",
    "Stacks",
    "load",
    "read_snapshot",
    "to_plain",
    "to_trace",
    "write_snapshot",
]
