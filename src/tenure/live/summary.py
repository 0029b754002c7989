"""Who holds the memory now: live blocks by line, stream and age."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tenure import _engine
from tenure.live.process import require_started
from tenure.live.stacks import label_of
from tenure.live.statistics import first_device
from tenure.units import format_bytes, format_count

_LIVE, _PENDING = 1, 2
_WIDTH = 80  # columns


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


def memory_summary(device: int | None = None, *, rows: int = 20) -> str:
    """Who holds this process's device memory: by line and stream, with ages.

    Args:
        device: Which GPU; by default the first one in use.
        rows: How many lines to list.

    Raises:
        UsageError: tenure does not manage memory in this process.
    """
    require_started()
    number = first_device() if device is None else device
    counts = _engine.Live.statistics(number)
    current = {
        name: counts[f"{name}_bytes.all.current"]
        for name in ("requested", "allocated", "active", "reserved")
    }
    lines = [
        f"GPU {number}: "
        + ", ".join(f"{name} {format_bytes(size)}" for name, size in current.items())
    ]
    groups = groups_of(number)
    lines += ["", f"{'allocated':>12} {'blocks':>8} {'age':>13} {'stream':>7}  made by"]
    streams = _short_streams(groups)
    for group in groups[:rows]:
        lines.append(
            f"{format_bytes(group.size):>12} {format_count(group.count):>8} {_ages(group):>13} "
            f"{streams[group.stream]:>7}  {group.label}"
        )
    rest = groups[rows:]
    if rest:
        size = format_bytes(sum(group.size for group in rest))
        lines.append(f"{size:>12} {'':>30}  {len(rest)} more lines")
    pending = sum(group.size for group in groups_of(number, _PENDING))
    if pending:
        lines += ["", f"Freed, but awaiting other streams: {format_bytes(pending)}"]
    return "\n".join(lines)


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
