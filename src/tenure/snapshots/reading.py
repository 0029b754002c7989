"""From a file to a Snapshot."""

from __future__ import annotations

import os
from typing import Any

from tenure import _engine
from tenure.errors import BadInputError
from tenure.snapshots.files import LARGEST_BYTES, opened, source_name
from tenure.snapshots.snapshot import (
    Annotations,
    Blocks,
    Events,
    Frames,
    Segments,
    Snapshot,
    Stacks,
)


def read_snapshot(source: str | os.PathLike[str], *, largest: int = LARGEST_BYTES) -> Snapshot:
    """Returns a PyTorch memory snapshot of any format since torch 2.0.

    Nothing in the file is run: a pickle that names a function or a class is refused. Types, ranges
    and the tiling of segments by blocks are checked, so the columns can be relied on.

    Args:
        source: A path, or "-" for standard input. Plain, .xz, .gz and .zst files are told apart
            by their content.
        largest: Bytes that a compressed or piped file may come to.

    Raises:
        BadInputError: The file cannot be read or is not a snapshot; one line says what, where in
            it, and what to do.
    """
    name = source_name(source)
    try:
        with opened(source, largest) as stream:
            columns = _engine.read_snapshot(stream)
    except BadInputError as error:
        raise BadInputError(f"{name}: {error}") from None
    except MemoryError:
        raise BadInputError(f"{name}: too large for the memory that is free") from None
    return _snapshot(name, columns)


def _snapshot(name: str, columns: dict[str, Any]) -> Snapshot:
    return Snapshot(
        source=name,
        strings=columns["strings"],
        frames=Frames(**columns["frames"]),
        stacks=Stacks(**columns["stacks"]),
        pools=columns["pools"],
        devices=[Events(**events) for events in columns["devices"]],
        segments=Segments(**columns["segments"]),
        blocks=Blocks(**columns["blocks"]),
        settings=columns["settings"],
        annotations=Annotations(**columns["annotations"]),
        keys=columns["keys"],
        unknown_actions=columns["unknown_actions"],
    )
