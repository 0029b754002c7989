"""Races of a script that `tenure run` runs: watched from its second stream on."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from tenure.live.guards.guard import Guard, guard_is_on
from tenure.live.guards.recorder import Mode
from tenure.patches import Patches

if TYPE_CHECKING:
    from tenure.diagnoses import Finding

_KNOWN = frozenset({"stream_id", "stream"})  # given where the object is made for a stream there is


class Races:
    """A report on streams that is being made.

    Scripts with one stream pay nothing: watching begins when the script makes a stream or pins
    memory, in the thread that called `start`; or when `wake` is called.
    """

    def __init__(self) -> None:
        self._torch: Any = sys.modules["torch"]
        self._guard: Guard | None = None
        self._faults: list[str] = []
        self._thread = threading.get_ident()
        self._patches = Patches()
        stream = self._torch.cuda.Stream
        self._wake_at(stream, "__new__" if "__new__" in vars(stream) else "__init__")
        self._wake_at(self._torch.Tensor, "pin_memory")

    @property
    def watching(self) -> bool:
        """Whether the script has come to what is worth watching."""
        return self._guard is not None

    def findings(self) -> list[Finding]:
        """What was found so far, worst first."""
        return [] if self._guard is None else self._guard.findings

    @property
    def faults(self) -> list[str]:
        """Errors of the report's own, which may have hidden a race."""
        return self._faults + ([] if self._guard is None else self._guard.faults)

    def stop(self) -> None:
        """Stops watching; what was found stays."""
        self._patches.undo()
        if self._guard is not None:
            self._guard.stop()

    def _wake_at(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def waking(*args: Any, **named: Any) -> Any:
            if not _KNOWN & named.keys() and self.wake():
                return getattr(owner, name)(*args, **named)  # the guard's own, or the original
            return original(*args, **named)

        self._patches.set(owner, name, staticmethod(waking) if name == "__new__" else waking)

    def wake(self) -> bool:
        """Begins to watch; False in a thread that cannot be watched, where the next one may."""
        if threading.get_ident() != self._thread:
            return False
        self._patches.undo()
        if guard_is_on():  # the script has its own
            return True
        try:
            self._guard = Guard(Mode.REPORT, outermost=True)
        except Exception as error:  # noqa: BLE001  the script must run, whatever is wrong here
            self._faults.append(f"not watched: {type(error).__name__}: {error}")
        return True


def start() -> Races:
    """Begins to report races, in this thread; torch must have been imported."""
    return Races()
