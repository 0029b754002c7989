"""A small recording whose names try everything that a page might fall for."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from snapshot_samples import BASE, MIB, block, event, segment
from tenure.snapshots import read_snapshot
from tenure.snapshots.loading import to_trace

if TYPE_CHECKING:
    from tenure.traces import Trace

HOSTILE = (
    "<script>alert(1)</script>.py",
    "/app/</script><script>globalThis.hacked=1</script>/\"'>.py",
    "<img src=x onerror=alert(2)>",
    "javascript:alert(3)//\x07\x1b[31m\u202e\u2028.py",
    "{{data}} ${data} `data` \\x3cscript\\x3e .py",
    "--><!-- ]]> &lt;script&gt; %3Cscript%3E.py",
)


def hostile_trace(events: int = 3) -> Trace:
    """A trace of at most three events with hostile names in its stack.

    Args:
        events: How many of its events to keep.
    """
    frames = [
        {"name": HOSTILE[-1 - number], "filename": name, "line": number}
        for number, name in enumerate(HOSTILE)
    ]
    made: list[dict[str, Any]] = [
        event("segment_alloc", BASE, 20 * MIB, 1000, frames=frames),
        event("alloc", BASE, 5 * MIB, 1001, frames=frames, user_metadata=HOSTILE[1]),
        event("snapshot", 0, 5 * MIB, 1002, frames=frames),
    ]
    blocks = [
        {**block(BASE, 5 * MIB, 5 * MIB, "active_allocated"), "frames": frames},
        block(BASE + 5 * MIB, 15 * MIB, 0, "inactive"),
    ]
    if events < 2:  # cut off before the request: all that was there is there from the start
        made = [event("snapshot", 0, 5 * MIB, 1002, frames=frames)]
    plain = {
        "segments": [segment(BASE, blocks)],
        "device_traces": [made[:events]],
        "allocator_settings": {},
        "external_annotations": [
            {"name": HOSTILE[0], "stage": "START", "device": 0, "time_us": 1000},
            {"name": HOSTILE[0], "stage": "END", "device": 0, "time_us": 2000},
        ],
    }
    return to_trace(read_snapshot_of(plain))


def read_snapshot_of(plain: dict[str, Any]) -> Any:
    """The columns of a snapshot that is still a dictionary."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(pickle.dumps(plain))
        return read_snapshot(path)
