"""Plans as files: gzip'd JSON, a few facts and five columns; see docs/plans.md."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tenure import _engine
from tenure.errors import BadInputError, TenureError, UsageError
from tenure.plans.checking import check_against
from tenure.plans.placement import UNIT, Buffers, Plan, Streams

if TYPE_CHECKING:
    import os

FORMAT = "tenure plan"
VERSION = 1
LARGEST_BYTES = 128 << 20  # of the JSON: some three million buffers
_GZIP = b"\x1f\x8b"
_COLUMNS = ("begin", "end", "size", "stream", "offset")


def save(plan: Plan, target: str | os.PathLike[str], *, force: bool = False) -> None:
    """Writes a plan; the same plan gives the same bytes.

    Args:
        plan: What to write.
        target: A path, by custom ending in .json.gz.
        force: Overwrite an existing file.

    Raises:
        UsageError: The file exists and `force` is false, or it cannot be written.
    """
    path = Path(target)
    streams, stream = np.unique(plan.buffers.stream, return_inverse=True)
    columns = (plan.buffers.begin, plan.buffers.end, plan.buffers.size, stream, plan.offsets)
    value = {
        "format": FORMAT,
        "version": VERSION,
        "unit": UNIT,
        "device": plan.device,
        "events": plan.events,
        "live_peak": plan.live_peak,
        "size": plan.size,
        "streams_apart": plan.streams.apart,
        "streams": streams.tolist(),
        "buffers": {name: column.tolist() for name, column in zip(_COLUMNS, columns, strict=True)},
    }
    text = json.dumps(value, separators=(",", ":")).encode()
    data = gzip.compress(text, compresslevel=6, mtime=0)
    created = not path.exists()
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(f"{path} exists; name another file or add --force") from None
    except OSError as error:
        if created:
            path.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def load(source: str | os.PathLike[str]) -> Plan:
    """Reads a plan. Nothing in the file is run, and nothing in it is believed: it is checked again.

    Raises:
        BadInputError: No plan, broken, of a newer version, or a plan that is wrong in itself; the
            message says which, in one line.
    """
    path = Path(source)
    value = _parsed(path, _text(path))
    try:
        made = _plan(value)
        fault = check_against(made.buffers, made)
        what = fault.text if fault else None
    except (TenureError, _NotAPlanError) as error:
        what = str(error)
    if what is not None:
        _refuse(path, what)
    hand_overs = _engine.count_hand_overs(made.buffers.columns, made.offsets)
    if made.streams.apart and hand_overs:
        _refuse(path, "it says that streams are apart, and two use the same byte")
    return replace(made, checked=True, streams=replace(made.streams, hand_overs=hand_overs))


class _NotAPlanError(Exception):
    """The JSON has another shape."""


def _refuse(path: Path, what: str) -> NoReturn:
    raise BadInputError(f"{path}: not a sound plan: {what}")


def _text(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(len(_GZIP))
            file.seek(0)
            if head != _GZIP:
                return file.read(LARGEST_BYTES + 1)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return unpacked.read(LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise BadInputError(f"{path}: cannot be read: {what}") from None


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    if len(text) > LARGEST_BYTES:
        _refuse(path, f"more than {LARGEST_BYTES:,} bytes of JSON")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        _refuse(path, "it is not JSON")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        _refuse(path, f'it does not begin with "format": "{FORMAT}"')
    if value.get("version") != VERSION:
        _refuse(path, f"its version is {value.get('version')!r}; this tenure reads {VERSION}")
    return value


def _plan(value: dict[str, Any]) -> Plan:
    if _number(value, "unit") != UNIT:
        raise _NotAPlanError(f"its unit is {value['unit']} bytes, not {UNIT}")
    handles = _column(value, "streams", np.uint64)
    columns = value.get("buffers")
    if not isinstance(columns, dict):
        raise _NotAPlanError("it has no buffers")
    begin, end, size, index, offsets = (_column(columns, name, np.int64) for name in _COLUMNS)
    if not len(begin) == len(end) == len(size) == len(index) == len(offsets):
        raise _NotAPlanError("its columns have different lengths")
    if len(index) and not (index.min() >= 0 and index.max() < len(handles)):
        raise _NotAPlanError("a buffer names a stream that is not listed")
    apart = value.get("streams_apart")
    if not isinstance(apart, bool):
        raise _NotAPlanError("streams_apart is neither true nor false")
    events = _number(value, "events")
    if len(end) and end.max() > events + 1:
        raise _NotAPlanError("a buffer outlives the trace")
    stream = handles[index]
    return Plan(
        live_peak=_number(value, "live_peak"),
        size=_number(value, "size"),
        buffers=Buffers(begin, end, size, stream),
        offsets=offsets,
        checked=False,
        seconds=0.0,
        streams=Streams(len(np.unique(stream)), 0, apart),
        device=_number(value, "device"),
        events=events,
    )


def _number(value: dict[str, Any], name: str) -> int:
    number = value.get(name)
    if type(number) is not int or not 0 <= number < 1 << 60:
        raise _NotAPlanError(f"{name} is not a whole number of 0 or more")
    return number


def _column(value: dict[str, Any], name: str, kind: type[np.int64 | np.uint64]) -> Any:
    numbers = value.get(name)
    if not isinstance(numbers, list) or not set(map(type, numbers)) <= {int}:
        raise _NotAPlanError(f"{name} is not a list of whole numbers")
    try:
        return np.array(numbers, kind)
    except OverflowError:
        raise _NotAPlanError(f"{name} holds a number that is too large") from None
