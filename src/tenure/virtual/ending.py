"""How a script on a virtual card ends: its exit code, and its errors as Python shows them."""

from __future__ import annotations

import sys
from types import TracebackType

from tenure.virtual.memory import is_shown


class EnoughSteps(BaseException):
    """Ends a script after the steps that were asked for; `except Exception` does not stop it."""


def exit_code(error: BaseException) -> int:
    """Prints an error as Python would, and returns the exit code that it leads to."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return int(error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    without_our_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def without_our_frames(error: BaseException) -> None:
    """Leaves the frames that a run on a real card would show."""
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        if is_shown(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    for frame, following in zip(frames, [*frames, None][1:], strict=True):
        frame.tb_next = following
    error.__traceback__ = frames[0] if frames else None
    for other in (error.__context__, error.__cause__):
        if other is not None and other is not error:
            without_our_frames(other)
