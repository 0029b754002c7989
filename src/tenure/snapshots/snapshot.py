"""A snapshot as columns: one numpy array per field, indices instead of repeated text and stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]

# PyTorch's name of each action code, as in engine/trace.hpp; code 10 is any other name.
ACTION_NAMES: tuple[str, ...] = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "other",
)


@dataclass(frozen=True, eq=False)
class Frames:
    """Places in source code, each once.

    Attributes:
        file: File name, an index into the snapshot's strings.
        line: Line number, from 1; 0 where unknown.
        name: Function name, an index into the strings.
    """

    file: I32
    line: I32
    name: I32


@dataclass(frozen=True, eq=False)
class Stacks:
    """Call stacks, each once: stack s is frame[offset[s]:offset[s + 1]], innermost frame first.

    Attributes:
        offset: One more than there are stacks.
        frame: Indices into the frames.
    """

    offset: I32
    frame: I32


@dataclass(frozen=True, eq=False)
class Events:
    """The trace of one device, oldest event first; all columns have the same length.

    Attributes:
        action: Code, see ACTION_NAMES.
        address: Start of the block or range; for oom the free bytes of the device.
        size: Bytes: alloc and frees the request before rounding, segment events the range, oom the
            request after rounding.
        stream: Handle of the stream; 0 is the default stream.
        time_us: Unix time in microseconds; 0 where not recorded.
        stack: Index into the stacks; -1 where none was kept.
        pool: Index into the pools; -1 where not recorded (before torch 2.12).
        metadata: The user's metadata, an index into the strings; -1 for none.
        compile_context: The compiled region, an index into the strings; -1 for none.
        forward: Stack of the forward op that an event of backward belongs to, -1 for none; None
            where no event has one.
    """

    action: U8
    address: U64
    size: I64
    stream: U64
    time_us: I64
    stack: I32
    pool: I32
    metadata: I32
    compile_context: I32
    forward: I32 | None = None

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, eq=False)
class Segments:
    """What the driver had given when the snapshot was taken, in the order of the file.

    Attributes:
        device: Number of the device.
        address: Start.
        size: Bytes.
        stream: Handle of the stream that the segment belongs to.
        large: 1 for a segment of the large pool, 0 of the small one.
        pool: Index into the pools; 0, the default pool, where not recorded.
        expandable: 1 for a mapped run of an arena (expandable segment).
        stack: Who caused it, an index into the stacks; -1 where none was kept.
        block_offset: Segment s has the blocks block_offset[s]:block_offset[s + 1].
    """

    device: I32
    address: U64
    size: I64
    stream: U64
    large: U8
    pool: I32
    expandable: U8
    stack: I32
    block_offset: I64

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of the segments; those of one segment tile it in order of address.

    Attributes:
        address: Start; computed where the file has none (torch 2.0).
        size: Bytes, after rounding.
        requested: Bytes asked for; in an inactive block a stale value, or 0. The size where the
            file does not say.
        state: 0 inactive, 1 active_allocated, 2 active_pending_free.
        stack: Who asked for it, an index into the stacks; -1 where none was kept.
    """

    address: U64
    size: I64
    requested: I64
    state: U8
    stack: I32

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Annotations:
    """Begin and end of record_function scopes.

    Attributes:
        name: Index into the strings.
        start: 1 at the beginning of a scope, 0 at its end.
        device: Number of the device.
        time_us: Unix time in microseconds.
    """

    name: I32
    start: U8
    device: I32
    time_us: I64


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A PyTorch memory snapshot, as recorded: nothing paired, rebuilt or guessed.

    Attributes:
        source: Where it was read from, for messages.
        strings: File names, function names and other text, each once.
        frames: Places in source code.
        stacks: Call stacks.
        pools: Ids (a, b) of pools; pools[0] is (0, 0), the default one.
        devices: One trace per entry of device_traces, by device number; empty traces included.
        segments: The end state: segments.
        blocks: The end state: their blocks.
        settings: allocator_settings as plain values; empty where the file has none.
        annotations: Scopes of record_function.
        keys: Which optional keys occurred anywhere, such as "event.time_us" or "block.history".
        unknown_actions: How often each action name occurred that this version does not know.
    """

    source: str
    strings: Sequence[str]
    frames: Frames
    stacks: Stacks
    pools: Sequence[tuple[int, int]]
    devices: Sequence[Events]
    segments: Segments
    blocks: Blocks
    settings: Mapping[str, object]
    annotations: Annotations
    keys: Mapping[str, bool]
    unknown_actions: Mapping[str, int]

    def stack(self, index: int) -> list[tuple[str, int, str]]:
        """Returns the (file, line, function) of a stack, innermost first; empty for -1."""
        if index < 0:
            return []
        frames = self.stacks.frame[self.stacks.offset[index] : self.stacks.offset[index + 1]]
        return [
            (
                self.strings[self.frames.file[f]],
                int(self.frames.line[f]),
                self.strings[self.frames.name[f]],
            )
            for f in frames
        ]
