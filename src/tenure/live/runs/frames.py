"""The lines of the user's code that run at this moment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.sources import is_library, is_own

if TYPE_CHECKING:
    from types import FrameType

DEEPEST = 12  # frames of the user's that are noted

Site = tuple[str, int, str]  # file, line, function
_IS_USER: dict[Any, bool] = {}


@dataclass(frozen=True)
class FrameCode:
    """A running frame: its code, and the line it is at."""

    code: Any
    line: int


def user_frames() -> list[FrameType]:
    """The frames of this thread that belong to the user, inner first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way is slower
    while frame is not None and len(frames) < DEEPEST:
        if _is_user(frame.f_code):
            frames.append(frame)
        frame = frame.f_back
    return frames


def user_lines() -> tuple[Site, ...]:
    """Their files, lines and functions."""
    return tuple((f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in user_frames())


def _is_user(code: Any) -> bool:
    known = _IS_USER.get(code)
    if known is None:
        path = code.co_filename
        known = not is_own(path) and not is_library(path)
        _IS_USER[code] = known
    return known
