"""A virtual run as an ordinary PyTorch snapshot."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.snapshots import ACTION_NAMES, load

if TYPE_CHECKING:
    from tenure.traces import Trace
    from tenure.virtual.memory import Memory

_STATES = ("inactive", "active_allocated", "active_pending_free")
_OOM = ACTION_NAMES.index("oom")


def plain_snapshot(memory: Memory) -> dict[str, Any]:
    """The dict that torch.cuda.memory._snapshot() would give."""
    stacks = [
        [
            {"filename": code.co_filename, "line": line, "name": code.co_name}
            for code, line in places
        ]
        for places in list(memory.stack_ids)
    ]
    stacks.append([])
    columns = (
        memory.actions,
        memory.addresses,
        memory.sizes,
        memory.streams,
        memory.times,
        memory.stacks,
        memory.forwards,
    )
    events = [
        {
            "action": ACTION_NAMES[action],
            "device_free" if action == _OOM else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": stacks[stack],
            **({"forward_frames": stacks[forward]} if forward >= 0 else {}),
            **({"pool_id": memory.pools[number]} if number in memory.pools else {}),
        }
        for number, (action, address, size, stream, time_us, stack, forward) in enumerate(
            zip(*columns, strict=True)
        )
    ]
    return {
        "segments": _segments(memory, stacks[-1]),
        "device_traces": [events],
        "allocator_settings": _settings(memory),
        "external_annotations": [],
    }


def trace(memory: Memory) -> Trace:
    """The same, as a trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "virtual.pickle"
        path.write_bytes(pickle.dumps(plain_snapshot(memory), protocol=4))
        return load(path, torch_version=memory.settings.torch_version)


def _segments(memory: Memory, no_stack: list[Any]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for segment, address, size, requested, state, stream, pool in memory.allocator.blocks():
        entry = found.setdefault(
            segment,
            {
                "device": 0,
                "address": segment,
                "total_size": 0,
                "allocated_size": 0,
                "active_size": 0,
                "requested_size": 0,
                "stream": stream,
                "segment_type": "large",
                "segment_pool_id": tuple(pool),
                "is_expandable": memory.settings.expandable_segments,
                "frames": no_stack,
                "blocks": [],
            },
        )
        entry["total_size"] += size
        entry["allocated_size"] += size if state == 1 else 0
        entry["active_size"] += size if state else 0
        entry["requested_size"] += requested if state else 0
        entry["blocks"].append(
            {
                "address": address,
                "size": size,
                "requested_size": requested,
                "state": _STATES[state],
                "frames": no_stack,
            }
        )
    for entry in found.values():
        # A small pool's segments have 2 MiB; no large one is that small.
        if entry["total_size"] <= 2 << 20:
            entry["segment_type"] = "small"
    return list(found.values())


def _settings(memory: Memory) -> dict[str, Any]:
    settings = memory.settings
    divisions = {str(1 << i): n for i, n in enumerate(settings.roundup_power2_divisions)}
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.conf,
        "max_split_size": settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": divisions,
    }
