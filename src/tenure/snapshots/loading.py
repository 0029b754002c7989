"""From a file to a Trace: one device, with what the file leaves unsaid worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.errors import BadInputError, UsageError
from tenure.settings import AllocatorSettings, from_snapshot_settings, recorded_version
from tenure.snapshots.reading import read_snapshot
from tenure.traces import (
    Action,
    Annotation,
    Blocks,
    Events,
    Note,
    Segments,
    Stacks,
    State,
    Trace,
    make_trace,
)

if TYPE_CHECKING:
    import os

    from tenure.snapshots import snapshot as columns


def load(
    source: str | os.PathLike[str],
    *,
    device: int | None = None,
    torch_version: tuple[int, int] | None = None,
) -> Trace:
    """Reads a snapshot file as the trace of one device.

    Args:
        source: A path, or "-" for standard input; .xz, .gz and .zst are told by their content.
        device: Which GPU; by default the only one with events or segments.
        torch_version: Whose rules the recording followed; by default as new as its keys show.

    Raises:
        BadInputError: Not a snapshot, broken, or empty.
        UsageError: Several devices hold something and none was named.
    """
    return to_trace(read_snapshot(source), device=device, torch_version=torch_version)


def to_trace(
    snapshot: columns.Snapshot,
    *,
    device: int | None = None,
    torch_version: tuple[int, int] | None = None,
) -> Trace:
    """The trace of one device of a snapshot that was read; arguments and errors as `load`."""
    chosen = _choose_device(snapshot, device)
    version = torch_version or guess_version(snapshot)
    settings = from_snapshot_settings(snapshot.settings, torch_version=version, device=chosen)
    events = _events(snapshot, chosen)
    end = _state(snapshot, chosen)
    stacks = Stacks(
        snapshot.stacks.offset,
        snapshot.stacks.frame,
        snapshot.frames.file,
        snapshot.frames.line,
        snapshot.frames.name,
        tuple(snapshot.strings),
    )
    return make_trace(
        events,
        end,
        device=chosen,
        pools=tuple(snapshot.pools),
        stacks=stacks,
        annotations=_annotations(snapshot, chosen),
        settings=_in_force(settings, events, end),
        notes=_notes(snapshot, events, end),
    )


def devices_with_content(snapshot: columns.Snapshot) -> list[int]:
    """Indices of the GPUs that have events or segments."""
    traced = {i for i, events in enumerate(snapshot.devices) if len(events)}
    return sorted(traced | set(np.unique(snapshot.segments.device).tolist()))


def guess_version(snapshot: columns.Snapshot) -> tuple[int, int]:
    """The oldest version whose files look like this one: only tenure's name the version."""
    keys = snapshot.keys
    settings = snapshot.settings
    named = recorded_version(settings)
    if named is not None:
        return named
    if keys.get("host_traces") or "max_round_threshold" in settings:
        return (2, 13)
    if keys.get("event.pool_id"):
        return (2, 12)
    return (2, 11)


def _choose_device(snapshot: columns.Snapshot, device: int | None) -> int:
    present = devices_with_content(snapshot)
    if device is not None:
        if device in present:
            return device
        names = ", ".join(map(str, present)) or "none"
        raise UsageError(
            f"{snapshot.source}: device {device} has neither events nor segments; these do: {names}"
        )
    if not present:
        raise BadInputError(
            f"{snapshot.source}: no events and no segments: call "
            "torch.cuda.memory._record_memory_history() before the first CUDA call, and dump "
            "after some work"
        )
    traced = [i for i in present if i < len(snapshot.devices) and len(snapshot.devices[i])]
    if len(traced) == 1:
        return traced[0]
    if len(present) == 1:
        return present[0]
    names = ", ".join(map(str, traced or present))
    raise UsageError(f"{snapshot.source}: devices {names} have events; choose one with --device")


def _events(snapshot: columns.Snapshot, device: int) -> Events:
    if device >= len(snapshot.devices):
        empty = np.empty(0)
        return Events(
            *(empty.astype(kind) for kind in ("u1", "u8", "i8", "u8", "i8", "i4", "i4", "i4", "i8"))
        )
    raw = snapshot.devices[device]
    return Events(
        raw.action,
        raw.address,
        raw.size,
        raw.stream,
        raw.time_us,
        raw.stack,
        raw.pool,
        raw.metadata,
        np.full(len(raw), -1, np.int64),
        raw.forward,
    )


def _state(snapshot: columns.Snapshot, device: int) -> State:
    raw, blocks = snapshot.segments, snapshot.blocks
    chosen = np.flatnonzero(raw.device == device)
    counts = np.diff(raw.block_offset)[chosen]
    owner = np.repeat(np.arange(len(chosen)), counts)
    first = np.repeat(raw.block_offset[:-1][chosen] - np.cumsum(counts) + counts, counts)
    rows = first + np.arange(len(owner))
    return State(
        Segments(
            raw.address[chosen],
            raw.size[chosen],
            raw.stream[chosen],
            raw.pool[chosen],
            raw.large[chosen] == 0,
            raw.expandable[chosen] != 0,
            raw.stack[chosen],
        ),
        Blocks(
            owner.astype(np.int64),
            blocks.address[rows],
            blocks.size[rows],
            blocks.requested[rows],
            blocks.state[rows],
            blocks.stack[rows],
        ),
    )


def _in_force(settings: AllocatorSettings, events: Events, end: State) -> AllocatorSettings:
    """The settings, where segments show that others were in force than the file names.

    Old files name none: that arenas exist shows that expandable segments were on. Elastic rules
    have nothing but arenas: a device that cannot map memory is under torch rules.
    """
    if settings.rules == "elastic":
        made = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_FREE)
        if made.any() or not end.segments.arena.all():
            return AllocatorSettings(torch_version=settings.torch_version)
    if end.segments.arena.any() and not settings.expandable_segments:
        return replace(settings, expandable_segments=True)
    return settings


def _annotations(snapshot: columns.Snapshot, device: int) -> tuple[Annotation, ...]:
    raw = snapshot.annotations
    opened: dict[int, list[int]] = {}
    spans: list[Annotation] = []
    order = np.argsort(raw.time_us, kind="stable")
    for i in order[raw.device[order] == device].tolist():
        name, time = int(raw.name[i]), int(raw.time_us[i])
        if raw.start[i]:
            opened.setdefault(name, []).append(time)
        elif opened.get(name):
            spans.append(Annotation(snapshot.strings[name], opened[name].pop(), time))
    spans += [
        Annotation(snapshot.strings[name], time, None)
        for name, times in opened.items()
        for time in times
    ]
    return tuple(sorted(spans, key=lambda span: span.start_us))


def _notes(snapshot: columns.Snapshot, events: Events, end: State) -> tuple[Note, ...]:
    notes = []
    if not len(events):
        notes.append(
            Note(
                "trace.none",
                "the file has no events, only the state when it was written: history was not being "
                "recorded, so nothing can be replayed",
            )
        )
    elif not (events.stack >= 0).any():
        notes.append(
            Note(
                "trace.no_frames",
                "no stacks were recorded, so no line can be named: record with stacks='python'",
            )
        )
    if len(events) and not (events.time_us > 0).any():
        notes.append(Note("trace.no_time", "events carry no time (a torch before 2.2)"))
    if len(end.blocks.address) and snapshot.keys.get("block.address") is False:
        notes.append(
            Note("trace.no_addresses", "blocks carry no address (torch 2.0); computed from sizes")
        )
    for name, count in snapshot.unknown_actions.items():
        notes.append(
            Note("trace.unknown_action", f"{count:,} events of the unknown kind {name!r} left out")
        )
    return tuple(notes)
