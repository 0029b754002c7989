"""From a Snapshot to a file that PyTorch's own tools read."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import lzma
import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, BinaryIO, cast

from tenure.errors import UsageError
from tenure.snapshots.snapshot import ACTION_NAMES, I32, Blocks, Events, Segments, Snapshot

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_STATES = ("inactive", "active_allocated", "active_pending_free")
_OOM = ACTION_NAMES.index("oom")
_OTHER = ACTION_NAMES.index("other")

_Frames = list[dict[str, object]]


def write_snapshot(
    snapshot: Snapshot, target: str | os.PathLike[str], *, force: bool = False
) -> None:
    """Writes a snapshot as an ordinary PyTorch pickle (protocol 4).

    Args:
        snapshot: What to write.
        target: A path; the endings .xz, .gz and .zst compress.
        force: Overwrite an existing file.

    Raises:
        UsageError: The file exists and `force` is false, or it cannot be written.
    """
    path = Path(target)
    created = not path.exists()
    try:
        with path.open("wb" if force else "xb") as file, _compressed(path.suffix, file) as stream:
            pickle.dump(to_plain(snapshot), stream, protocol=4)
    except FileExistsError:
        raise UsageError(f"{path} exists; pass --force to overwrite it") from None
    except OSError as error:
        if created:
            path.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written ({error.strerror or error})") from None


def _compressed(suffix: str, file: BinaryIO) -> AbstractContextManager[IO[bytes]]:
    if suffix == ".xz":
        return lzma.LZMAFile(file, "wb")
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="wb"))
    if suffix == ".zst":
        return cast(IO[bytes], zstd.ZstdFile(file, "wb"))
    return contextlib.nullcontext(file)


def to_plain(snapshot: Snapshot) -> dict[str, object]:
    """Returns a snapshot as the dict that torch.cuda.memory._snapshot() gives.

    Optional keys are there where `Snapshot.keys` says so, then in every event. Stacks are shared
    between events as PyTorch shares them. The name of an action that this version does not know is
    kept where there is a single one; several become "other".
    """
    stacks = _stacks(snapshot)
    plain: dict[str, object] = {"segments": _segments(snapshot, stacks)}
    if snapshot.keys["device_traces"]:
        plain["device_traces"] = [_events(snapshot, events, stacks) for events in snapshot.devices]
    if snapshot.keys["allocator_settings"]:
        plain["allocator_settings"] = dict(snapshot.settings)
    if snapshot.keys["external_annotations"]:
        plain["external_annotations"] = _annotations(snapshot)
    return plain


def _stacks(snapshot: Snapshot) -> list[_Frames]:
    """The frame dicts of each stack; the last one, which -1 picks, is empty."""
    strings = snapshot.strings
    columns = snapshot.frames
    frames: _Frames = [
        {"name": strings[name], "filename": strings[file], "line": line}
        for name, file, line in zip(
            columns.name.tolist(), columns.file.tolist(), columns.line.tolist(), strict=True
        )
    ]
    offsets = snapshot.stacks.offset.tolist()
    members = snapshot.stacks.frame.tolist()
    stacks = [[frames[f] for f in members[begin:end]] for begin, end in itertools.pairwise(offsets)]
    return [*stacks, []]


def _segments(snapshot: Snapshot, stacks: list[_Frames]) -> list[dict[str, object]]:
    keys = snapshot.keys
    blocks = _blocks(snapshot.blocks, stacks)
    segments: Segments = snapshot.segments
    state = snapshot.blocks.state
    plain: list[dict[str, object]] = []
    for i in range(len(segments)):
        own = slice(int(segments.block_offset[i]), int(segments.block_offset[i + 1]))
        size = snapshot.blocks.size[own]
        active = state[own] != 0
        segment: dict[str, object] = {
            "device": int(segments.device[i]),
            "address": int(segments.address[i]),
            "total_size": int(segments.size[i]),
            "allocated_size": int(size[state[own] == 1].sum()),
            "active_size": int(size[active].sum()),
            "requested_size": int(snapshot.blocks.requested[own][active].sum()),
            "stream": int(segments.stream[i]),
            "segment_type": "large" if segments.large[i] else "small",
        }
        if keys["segment.pool_id"]:
            segment["segment_pool_id"] = snapshot.pools[int(segments.pool[i])]
        if keys["segment.is_expandable"]:
            segment["is_expandable"] = bool(segments.expandable[i])
        segment["blocks"] = blocks[own]
        if keys["segment.frames"]:
            segment["frames"] = stacks[int(segments.stack[i])]
        plain.append(segment)
    return plain


def _blocks(blocks: Blocks, stacks: list[_Frames]) -> list[dict[str, object]]:
    return [
        {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": _STATES[state],
            "frames": stacks[stack],
        }
        for address, size, requested, state, stack in zip(
            blocks.address.tolist(),
            blocks.size.tolist(),
            blocks.requested.tolist(),
            blocks.state.tolist(),
            blocks.stack.tolist(),
            strict=True,
        )
    ]


def _events(snapshot: Snapshot, events: Events, stacks: list[_Frames]) -> list[dict[str, object]]:
    strings, keys = snapshot.strings, snapshot.keys
    names = list(ACTION_NAMES)
    if len(snapshot.unknown_actions) == 1:
        names[_OTHER] = next(iter(snapshot.unknown_actions))
    plain: list[dict[str, object]] = [
        {
            "action": names[action],
            "device_free" if action == _OOM else "addr": address,
            "size": size,
            "stream": stream,
        }
        for action, address, size, stream in zip(
            events.action.tolist(),
            events.address.tolist(),
            events.size.tolist(),
            events.stream.tolist(),
            strict=True,
        )
    ]

    def add(key: str, values: Iterable[object]) -> None:
        for event, value in zip(plain, values, strict=True):
            event[key] = value

    if keys["event.time_us"]:
        add("time_us", events.time_us.tolist())
    contexts = keys["event.compile_context"]
    if contexts:
        add("compile_context", _texts(events.compile_context, strings, "N/A"))
    if contexts or bool((events.metadata >= 0).any()):
        add("user_metadata", _texts(events.metadata, strings, ""))
    if keys["event.pool_id"]:
        add("pool_id", (snapshot.pools[max(pool, 0)] for pool in events.pool.tolist()))
    if keys["event.frames"]:
        add("frames", (stacks[stack] for stack in events.stack.tolist()))
    if events.forward is not None:
        for event, stack in zip(plain, events.forward.tolist(), strict=True):
            if stack >= 0:
                event["forward_frames"] = stacks[stack]
    return plain


def _texts(indices: I32, strings: Sequence[str], missing: str) -> list[str]:
    return [missing if index < 0 else strings[index] for index in indices.tolist()]


def _annotations(snapshot: Snapshot) -> list[dict[str, object]]:
    columns = snapshot.annotations
    return [
        {
            "name": snapshot.strings[name],
            "stage": "START" if start else "END",
            "device": device,
            "time_us": time_us,
        }
        for name, start, device, time_us in zip(
            columns.name.tolist(),
            columns.start.tolist(),
            columns.device.tolist(),
            columns.time_us.tolist(),
            strict=True,
        )
    ]
