"""Numbers that no recording holds: a damaged file is refused before anything is built from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.errors import BadInputError
from tenure.traces.columns import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces.columns import Events, State

MOST_BYTES = 1 << 42  # 4 TiB, well above any device
MOST_ASKED = 1 << 60  # from here on PyTorch refuses a request before it reaches the allocator
MOST_ADDRESS = 1 << 62


def require_plausible(events: Events, end: State, device: int) -> None:
    """Refuses sizes and addresses that cannot be.

    Raises:
        BadInputError: Naming the first event, segment or block with such a number.
    """
    about_memory = events.action <= Action.SEGMENT_UNMAP
    _require(about_memory & _beyond(events.address, events.size), device, "event", events.size)
    failed = (events.action == Action.OOM) & ((events.size <= 0) | (events.size >= MOST_ASKED))
    _require(failed, device, "event", events.size)
    segments, blocks = end.segments, end.blocks
    beyond = _beyond(segments.address, segments.size) | (segments.size == 0)
    _require(beyond, device, "segment", segments.size)
    if segments.size.sum() > MOST_BYTES:
        raise BadInputError(
            f"device {device}: its segments add up to {int(segments.size.sum()):,} bytes, more "
            "than any device has; the file is damaged, record again"
        )
    first = segments.address[blocks.segment].astype(np.int64)
    last = first + segments.size[blocks.segment]
    at = blocks.address.astype(np.int64)
    outside = _beyond(blocks.address, blocks.size) | (at < first) | (at + blocks.size > last)
    outside |= (blocks.requested < 0) | (blocks.requested > MOST_BYTES)
    _require(outside, device, "block", blocks.size)


def _beyond(address: NDArray[np.uint64], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (address > MOST_ADDRESS) | (size < 0) | (size > MOST_BYTES)


def _require(wrong: NDArray[np.bool_], device: int, kind: str, size: NDArray[np.int64]) -> None:
    if not wrong.any():
        return
    index = int(np.argmax(wrong))
    raise BadInputError(
        f"device {device}: {kind} {index}, of {int(size[index]):,} bytes, lies where no memory can "
        "be; the file is damaged, record again"
    )
