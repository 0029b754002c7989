"""Notices, in a thread of its own, that no step has ended for much longer than steps take.

A script that evaluates, or goes on after its training, makes no steps then: nothing else would tell
that what goes on is no longer what was recorded.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST = 0.25  # seconds


class Overdue:
    """Off until the first call of `within`.

    Attributes:
        lock: Held while it acts; and by others while they change what it acts on.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        """Does nothing yet.

        Args:
            act: Called once for each time that something is overdue.
        """
        self.lock = threading.RLock()
        self._act = act
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def within(self, seconds: float) -> None:
        """The next call comes within so many seconds, or something is overdue."""
        self._due = time.monotonic() + max(seconds, LEAST)
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="tenure", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Waits for nothing any more; what it may be doing is done when this returns."""
        with self.lock:
            self._ended.set()

    def _wait(self) -> None:
        told = 0.0
        while not self._ended.wait(min(max(self._due - time.monotonic(), LEAST / 4), LEAST)):
            due = self._due
            if time.monotonic() >= due and due != told:
                told = due
                with self.lock:
                    if self._due == due and not self._ended.is_set():
                        self._act()
