"""tenure.guard: reports races between streams, raises them, or adds the missing waits."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Self

from tenure.diagnoses import Finding, Severity
from tenure.diagnoses.racing import (
    called,
    pending_findings,
    place,
    race_finding,
    self_record_finding,
    self_wait_finding,
    stranded_finding,
)
from tenure.errors import UsageError
from tenure.live.guards.recorder import Inserted, Mode
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.live.guards.calls import Calls
    from tenure.live.guards.recorder import Recorder

_active: list[Guard] = []

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO, Severity.NORMAL)


class Guard:
    """A guard that is on from `guard()` to `stop()`, or to the end of its `with`.

    Attributes:
        mode: What it does about a race.
        outermost: Whether it was put below the dispatch modes that were on.
    """

    mode: Mode
    outermost: bool

    def __init__(self, mode: Mode, *, outermost: bool = False) -> None:
        if _active and _active[0].outermost:  # of `tenure run`: the script's own goes first
            _active[0].stop()
        if _active:
            raise UsageError(f'guard("{mode}"): a guard is on already; call its stop() first')
        importlib.import_module("torch")
        from tenure.live.guards.calls import Calls
        from tenure.live.guards.mode import Operators, dispatch_mode, push_below
        from tenure.live.guards.recorder import Recorder

        self.mode = mode
        self.outermost = outermost
        self._recorder: Recorder = Recorder(mode)
        self._calls: Calls = Calls(self._recorder)
        self._dispatch: Any = dispatch_mode(Operators(self._recorder))
        try:
            self._calls.install()
            self._recorder.hears_all = self._calls.hears_all
            if outermost:
                push_below(self._dispatch)
            else:
                self._dispatch.__enter__()
        except BaseException:
            self._calls.undo()
            raise
        _active.append(self)

    def leave_be(self) -> None:
        """Stops looking, without touching what was replaced: in a process that was forked."""
        self._recorder.on = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the guard off; what it found stays. A second call does nothing."""
        if self not in _active:
            return
        from tenure.live.guards.mode import remove

        _active.remove(self)
        self._recorder.on = False
        remove(self._dispatch)
        self._calls.undo()

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, worst first."""
        recorder = self._recorder
        found = [race_finding(race, recorder.names) for race in recorder.checker.races]
        found += pending_findings(recorder.pending)
        found += [
            stranded_finding(stream, size, recorder.names)
            for stream, size in recorder.checker.memories.stranded().items()
        ]
        found += [self_record_finding(s, size) for s, size in recorder.self_records.items()]
        found += [self_wait_finding(s, count) for s, count in recorder.self_waits.items()]
        return sorted(found, key=lambda f: (_ORDER.index(f.severity), -f.bytes))

    @property
    def inserted(self) -> list[Inserted]:
        """Waits that were added, under "sync"; each pair of lines once."""
        return list(self._recorder.inserted.values())

    @property
    def faults(self) -> list[str]:
        """Errors of the guard's own; they never reach the program, but may have hidden a race."""
        return list(self._recorder.faults)

    @property
    def operators(self) -> int:
        """Operators that were looked at."""
        return self._recorder.operators

    def __str__(self) -> str:
        """The report in words."""
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.code}: {finding.title}")
            lines += [f"  {text}" for text in finding.evidence]
            lines += [f"  -> {advice.text}" for advice in finding.advice]
        lines += [self._told(wait) for wait in self.inserted]
        if not lines:
            lines.append(f"no races in {self.operators:,} operations")
        if self.faults:
            lines.append(f"{len(self.faults)} faults of the guard itself: {self.faults[0]}")
        return "\n".join(lines)

    def _told(self, wait: Inserted) -> str:
        names = self._recorder.names
        who = "the host" if wait.waiting is None else called(wait.waiting, names)
        before = "at the free at" if wait.why == "free" else "before"
        times = f", {wait.count:,} times" if wait.count > 1 else ""
        return (
            f"added: {before} {place(wait.site)} {who} waits for {called(wait.stream, names)} "
            f"({place(wait.earlier)}), {format_bytes(wait.bytes)}{times}"
        )


def _in_child() -> None:
    for one in _active:
        one.leave_be()


os.register_at_fork(after_in_child=_in_child)


def guard_is_on() -> bool:
    """Whether a guard watches now."""
    return bool(_active)


def guard(mode: str = "report") -> Guard:
    """Watches what streams do to each other's memory, from now on.

    Use it in a `with`, or keep what it returns and call `stop()`.

    Args:
        mode: "report" lists races; "raise" raises at the line that comes too soon; "sync" adds the
            missing waits, so that results are right and memory is reusable in stream order.

    Returns:
        The guard: `findings`, `inserted`, and its text when printed.

    Raises:
        UsageError: No such mode, or a guard is on already.
        RaceError: Later, in mode "raise", at the line that comes too soon.
    """
    try:
        known = Mode(mode)
    except ValueError:
        modes = ", ".join(f'"{m}"' for m in Mode)
        raise UsageError(f"guard({mode!r}): no such mode; there are {modes}") from None
    return Guard(known)
