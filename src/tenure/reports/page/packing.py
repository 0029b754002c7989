"""Columns of integers as text that a browser unpacks quickly: byte planes, gzip, base64."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LARGEST = (1 << 53) - 1  # above this a number of JavaScript is not exact
LEVEL = 6  # of gzip; 9 takes three times as long for one percent


@dataclass(frozen=True)
class Column:
    """A column as it is packed.

    Attributes:
        name: What the page calls it.
        values: Integers of at most 53 bits.
        delta: Store differences from one to the next: right for what rises slowly.
    """

    name: str
    values: Ints
    delta: bool = False


def pack(head: dict[str, Any], columns: list[Column]) -> str:
    """A head of plain values and the columns, as base64 text.

    The bytes below the gzip: the length of the head (uint32, little-endian), the head as JSON in
    UTF-8, then each column's byte planes, least significant first. Of each column the head says
    its name, count, the bytes per value, the least value (values are stored as the distance from
    it) and whether they are differences in zigzag order (0, -1, 1, -2, ...).
    """
    described, data = [], []
    for column in columns:
        stored, base = _stored(column)
        width = _width(stored)
        described.append(
            {
                "name": column.name,
                "count": len(stored),
                "width": width,
                "base": base,
                "delta": column.delta,
                "most": int(column.values.max(initial=0)),
                "least": int(column.values.min(initial=0)),
            }
        )
        planes = stored.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
        data.append(np.ascontiguousarray(planes.T).tobytes())
    text = json.dumps({**head, "columns": described}).encode("ascii")
    raw = b"".join([struct.pack("<I", len(text)), text, *data])
    return base64.b64encode(gzip.compress(raw, LEVEL, mtime=0)).decode("ascii")


def _stored(column: Column) -> tuple[NDArray[np.uint64], int]:
    values = np.clip(column.values, -LARGEST, LARGEST)
    if column.delta:
        steps = np.diff(values, prepend=0)
        return ((steps << 1) ^ (steps >> 63)).view(np.uint64), 0
    base = int(values.min()) if len(values) else 0
    return (values - base).astype(np.uint64), base


def _width(stored: NDArray[np.uint64]) -> int:
    most = int(stored.max(initial=0))
    return max((most.bit_length() + 7) // 8, 1)


def unpack(text: str) -> tuple[dict[str, Any], dict[str, Ints]]:
    """The head and the columns of packed text: what the page's own reader does, for tests."""
    raw = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", raw)
    head = json.loads(raw[4 : 4 + length])
    at = 4 + length
    columns = {}
    for column in head["columns"]:
        count, width = column["count"], column["width"]
        planes = np.frombuffer(raw, np.uint8, count * width, at).reshape(width, count)
        at += count * width
        stored = np.zeros(count, np.int64)
        for plane in range(width):
            stored |= planes[plane].astype(np.int64) << (8 * plane)
        if column["delta"]:
            stored = np.cumsum((stored >> 1) ^ -(stored & 1))
        columns[column["name"]] = stored + column["base"]
    return head, columns
