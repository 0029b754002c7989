"""Who holds the memory now: live blocks by category, line, stream and age."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tenure import _engine
from tenure.errors import UsageError
from tenure.live.categories import bytes_by_category
from tenure.live.process import require_started
from tenure.live.stacks import label_of
from tenure.live.statistics import COUNTS, device_number, peaks
from tenure.units import format_bytes, format_count

_LIVE, _PENDING = 1, 2
_LONGEST = 42  # characters of a label, so that a line has 80


@dataclass
class Group:
    """Live or pending blocks that one line made on one stream."""

    label: str
    stream: int
    size: int = 0  # bytes allocated
    count: int = 0
    youngest: int = 0  # milliseconds
    oldest: int = 0

    def add(self, size: int, age: int) -> None:
        """Counts one more block."""
        self.youngest = age if self.count == 0 else min(self.youngest, age)
        self.oldest = max(self.oldest, age)
        self.size += size
        self.count += 1


def groups_of(device: int, state: int = _LIVE) -> list[Group]:
    """Blocks in that state by line and stream, most bytes first."""
    labels: dict[int, str] = {}
    groups: dict[tuple[str, int], Group] = {}
    for block in _engine.Live.blocks(device):
        _, _, size, _, found, stream, _, _, _, stack, age = block
        if found != state:
            continue
        label = labels.get(stack) or labels.setdefault(stack, label_of(stack))
        groups.setdefault((label, stream), Group(label, stream)).add(size, age)
    return sorted(groups.values(), key=lambda group: -group.size)


def memory_summary(device: Any = None, *, rows: int = 20) -> str:
    """Who holds this process's device memory: by category, and by line and stream, with ages.

    Args:
        device: Which GPU, as a number, "cuda:1" or a torch.device; by default the first in use.
        rows: How many lines to list.

    Raises:
        UsageError: tenure does not manage memory in this process, or there is no such GPU.
    """
    require_started()
    if rows < 0:
        raise UsageError(f"rows: {rows} lines cannot be listed; give 0 or more")
    number = device_number(device)
    groups = groups_of(number)
    streams = _short_streams(groups)
    lines = [*_counts(number), *_categories(number)]
    lines += ["", _line("allocated", "blocks", "age", "stream", "made by")]
    lines += [
        _line(
            format_bytes(group.size),
            format_count(group.count),
            _ages(group),
            streams[group.stream],
            _short(group.label),
        )
        for group in groups[:rows]
    ]
    if rest := groups[rows:]:
        size, count = (sum(getattr(group, name) for group in rest) for name in ("size", "count"))
        more = f"{len(rest)} more line{'s' if len(rest) > 1 else ''}"
        lines.append(_line(format_bytes(size), format_count(count), "", "", more))
    pending = sum(group.size for group in groups_of(number, _PENDING))
    if pending:
        lines += ["", f"Freed, but awaiting other streams: {format_bytes(pending)}"]
    return "\n".join(lines)


def _counts(device: int) -> list[str]:
    """The four byte counts, now and at their peaks since the process began."""
    now = _engine.Live.statistics(device)
    rows = {
        f"GPU {device}": COUNTS,
        "  now": tuple(format_bytes(now[f"{name}_bytes.all.current"]) for name in COUNTS),
        "  peak": tuple(format_bytes(peak) for peak in peaks(device).values()),
    }
    return [f"{title:<8}" + "".join(f"{cell:>13}" for cell in row) for title, row in rows.items()]


def _categories(device: int) -> list[str]:
    sizes = bytes_by_category(device)
    text = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    return ["", *textwrap.wrap(f"Allocated: {text}", 80)] if sizes else []


def _line(size: str, count: str, age: str, stream: str, label: str) -> str:
    return f"{size:>11} {count:>7} {age:>9} {stream:>6}  {label}"


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 3] + "..."


def _short_streams(groups: list[Group]) -> dict[int, str]:
    """Raw handles are long: streams are numbered as they come, the default one is 0."""
    names: dict[int, str] = defaultdict(lambda: str(len(names)))
    names[0] = "0"
    for group in groups:
        _ = names[group.stream]
    return names


def _ages(group: Group) -> str:
    young, old = _age(group.youngest), _age(group.oldest)
    return young if young == old else f"{young}-{old}"


def _age(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
