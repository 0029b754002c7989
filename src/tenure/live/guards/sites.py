"""Lines of the user's that streams are told by: who launched, and what a stream is called there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.edges import locals_of
from tenure.lifetimes.sources import is_library, is_own
from tenure.streams import Site, StreamId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

DEEPEST = 6  # frames of the user's in which a stream's name is looked for
_BACKWARD = "_engine_run_backward"  # the function of PyTorch's that waits for a backward pass

_USERS, _LIBRARYS, _MACHINERY = range(3)
_whose: dict[CodeType, int] = {}  # whose a code object is
_backward_site: tuple[int, Site] = (-1, Site("", 0, "backward"))


def user_site() -> Site:
    """The innermost line of the user's that is running in this thread.

    In a thread of autograd's it is the line that runs the backward pass.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to walk a stack
    outer: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        whose = _whose.get(code)
        if whose is None:
            whose = _whose[code] = _owner_of(code.co_filename)
        if whose == _USERS:
            return Site(code.co_filename, frame.f_lineno, code.co_name)
        if whose == _LIBRARYS and outer is None:
            outer = frame
        frame = frame.f_back
    if outer is not None:  # a library's own program
        return Site(outer.f_code.co_filename, outer.f_lineno, outer.f_code.co_name)
    return _site_of_backward()


def name_of_stream(stream: StreamId) -> str:
    """What the running code calls a stream, as an expression; "" if no name is found."""
    if stream.handle == 0:
        return "torch.cuda.default_stream()"
    for frame in _user_frames():
        local = locals_of(frame)
        for variables in (local, frame.f_globals):
            for name, value in list(variables.items()):
                if name != "self" and _is_stream(value, stream):
                    return name
        owner = local.get("self")
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if _is_stream(value, stream):
                return f"self.{name}"
    return ""


def _user_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to walk a stack
    count = 0
    while frame is not None and count < DEEPEST:
        if _is_users(frame.f_code.co_filename):
            count += 1
            yield frame
        frame = frame.f_back


def _is_stream(value: Any, stream: StreamId) -> bool:
    kind = type(value)
    if kind.__name__ not in {"Stream", "ExternalStream"}:
        return False
    try:
        return bool(
            value.cuda_stream == stream.handle and (value.device.index or 0) == stream.device
        )
    except Exception:  # noqa: BLE001  whatever the user's own class named Stream does
        return False


def _is_users(path: str) -> bool:
    return not (is_own(path) or is_library(path))


def _owner_of(path: str) -> int:
    if _is_users(path):
        return _USERS
    machinery = is_own(path) or "/torch/" in path.replace("\\", "/") or path.startswith("<frozen")
    return _MACHINERY if machinery else _LIBRARYS


def _site_of_backward() -> Site:
    """The line that called backward; looked up once a pass."""
    global _backward_site  # noqa: PLW0603  one pass after the other, in threads that are not ours
    torch: Any = sys.modules["torch"]
    task = torch._C._current_graph_task_id()  # noqa: SLF001  a pass has no public name
    if task == -1:
        return Site("", 0, "a thread without Python code")
    if _backward_site[0] != task:
        _backward_site = (task, _line_in_backward())
    return _backward_site[1]


def _line_in_backward() -> Site:
    for frame in sys._current_frames().values():  # noqa: SLF001  other threads' frames
        walked: FrameType | None = frame
        inside = False
        while walked is not None:
            code = walked.f_code
            inside = inside or code.co_name == _BACKWARD
            if inside and _is_users(code.co_filename):
                return Site(code.co_filename, walked.f_lineno, code.co_name)
            walked = walked.f_back
    return Site("", 0, "backward")
