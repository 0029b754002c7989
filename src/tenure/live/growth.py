"""A snapshot whenever this process holds more than before: what stays, not what comes and goes.

The least that was allocated over a while is what stays. A thread looks at it now and then, so no
allocation ever waits for a snapshot to be written.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import defaultdict, deque
from pathlib import Path

from tenure import _engine
from tenure.errors import UsageError
from tenure.live.statistics import ALLOCATED
from tenure.units import format_bytes

EVERY = 1.0  # seconds from one look to the next
WINDOW = 30  # looks, over which the least counts
FACTOR = 1.1  # times what stayed when it was last noted, and ...
LEAST = 64 << 20  # ... bytes above that: what counts as growth
MOST_FILES = 8  # a process

_log = logging.getLogger("tenure")


class Floor:
    """The least of the newest figures, and whether it has grown.

    Args:
        window: How many figures count; the first `window` of them only set the level.
        factor: Times the level, ...
        least: ... and at least so many bytes above it: growth.
    """

    def __init__(self, window: int = WINDOW, factor: float = FACTOR, least: int = LEAST) -> None:
        self._figures: deque[int] = deque(maxlen=window)
        self._factor, self._least = factor, least
        self.level: int | None = None  # bytes, when growth was last noted

    def add(self, allocated: int) -> int:
        """Bytes by which the floor has risen since growth was last noted; 0 if it has not."""
        self._figures.append(allocated)
        if len(self._figures) < (self._figures.maxlen or 1):
            return 0
        floor = min(self._figures)
        before = self.level
        if before is None:
            self.level = floor
            return 0
        if floor < max(before * self._factor, before + self._least):
            return 0
        self.level = floor
        return floor - before


def watch(folder: str | os.PathLike[str], *, every: float = EVERY, window: int = WINDOW) -> None:
    """Begins to look at every device in use, until the process ends.

    Args:
        folder: Where snapshots go.
        every: Seconds from one look to the next.
        window: How many looks the least is taken of.
    """
    ended = threading.Event()
    thread = threading.Thread(
        target=_look, args=(Path(folder), every, window, ended), name="tenure-growth", daemon=True
    )
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(timeout=10)

    atexit.register(end)


def _look(folder: Path, every: float, window: int, ended: threading.Event) -> None:
    floors: dict[int, Floor] = defaultdict(lambda: Floor(window))
    files = 0
    while not ended.wait(every) and not _engine.Live.is_forked():
        for device in _engine.Live.devices():
            grown = floors[device].add(_engine.Live.statistics(device)[ALLOCATED])
            if not grown or files == MOST_FILES:
                continue
            files += 1
            _tell(folder, device, grown)


def _tell(folder: Path, device: int, grown: int) -> None:
    from tenure.live.recording import dump_snapshot

    try:
        where = f"snapshot: {dump_snapshot(folder)}"
    except UsageError as error:
        where = str(error)
    _log.warning(
        "tenure: GPU %d holds %s more than before at its lowest; %s",
        device,
        format_bytes(grown),
        where,
    )
