"""The state of the process's memory in PyTorch's own snapshot format."""

from __future__ import annotations

from functools import cache
from typing import Any

from tenure import _engine
from tenure.live.process import InForce, require_started
from tenure.live.stacks import frames_of

DEFAULT_POOL = (0, 0)

_STATES = ("inactive", "active_allocated", "active_pending_free")

_Plain = dict[str, Any]


def memory_snapshot() -> list[_Plain]:
    """Segments and their blocks, as torch.cuda.memory_snapshot() lists them.

    Raises:
        UsageError: tenure does not manage memory in this process.
    """
    require_started()
    return _segments(DEFAULT_POOL)


def snapshot(pool: tuple[int, int] = DEFAULT_POOL, *, traces: bool = True) -> _Plain:
    """What torch.cuda.memory._snapshot() returns.

    Args:
        pool: Only the segments of this private pool; (0, 0) for everything.
        traces: Whether to list the events.
    """
    devices = _engine.Live.devices()
    device_count = max(devices, default=-1) + 1
    events: list[list[_Plain]] = [[] for _ in range(device_count)]
    if traces:
        for device in devices:
            events[device] = _events(device)
    return {
        "segments": _segments(pool),
        "device_traces": events,
        "allocator_settings": _settings(),
        "external_annotations": [],
    }


@cache
def plain_frames(stack: int) -> list[_Plain]:
    """The frames of a stack as dictionaries.

    The same list for the same stack, so that a pickle holds it once.
    """
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames_of(stack)]


def _settings() -> _Plain:
    settings = InForce.settings
    divisions = settings.roundup_power2_divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.conf,
        "max_split_size": settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments or settings.rules == "elastic",
        "roundup_power2_divisions": {str(1 << i): each for i, each in enumerate(divisions)},
        "tenure_rules": settings.rules,
        "tenure_torch_version": list(settings.torch_version),
        "tenure_soft_limit": settings.soft_limit,
        "tenure_devices": {device: _device(device) for device in _engine.Live.devices()},
    }


def _device(device: int) -> _Plain:
    """What a replay needs to know of one GPU: elastic rules follow from its limit and size."""
    is_elastic = _engine.Live.elastic_statistics(device) is not None
    return {
        "rules": "elastic" if is_elastic else "torch",
        "limit": _engine.Live.limit(device),
        "total_memory": _engine.Live.total_memory(device),
    }


def _segments(wanted: tuple[int, int]) -> list[_Plain]:
    found: list[_Plain] = []
    for device in _engine.Live.devices():
        segment: _Plain = {}
        for block in _engine.Live.blocks(device):
            start, address, size, requested, state, stream, pool, small, in_arena, stack, _ = block
            if wanted not in {DEFAULT_POOL, pool}:
                continue
            if segment.get("address") != start or segment["device"] != device:
                segment = {
                    "device": device,
                    "address": start,
                    "total_size": 0,
                    "allocated_size": 0,
                    "active_size": 0,
                    "requested_size": 0,
                    "stream": stream,
                    "segment_type": "small" if small else "large",
                    "segment_pool_id": pool,
                    "is_expandable": in_arena,
                    "frames": [],
                    "blocks": [],
                }
                found.append(segment)
            segment["total_size"] += size
            if state:
                segment["active_size"] += size
                segment["requested_size"] += requested
            if state == 1:
                segment["allocated_size"] += size
            segment["blocks"].append(
                {
                    "address": address,
                    "size": size,
                    "requested_size": requested,
                    "state": _STATES[state],
                    "frames": plain_frames(stack),
                }
            )
    return found


def _events(device: int) -> list[_Plain]:
    # Here, so that installing the engine does without the reader of snapshots and NumPy.
    from tenure.snapshots import ACTION_NAMES

    return [
        {
            "action": ACTION_NAMES[action],
            "device_free" if ACTION_NAMES[action] == "oom" else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "compile_context": "N/A",
            "user_metadata": "",
            "pool_id": pool,
            "frames": plain_frames(stack),
        }
        for action, address, size, stream, time_us, pool, stack in _engine.Live.events(device)
    ]
