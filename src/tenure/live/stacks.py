"""Recorded stacks as lines of source."""

from __future__ import annotations

from functools import cache, lru_cache
from types import CodeType

from tenure import _engine

Frame = tuple[str, int, str]  # file, line, name

# CPython 3.12 enters each call from C through a frame of this name.
_NO_CODE = "<interpreter trampoline>"


def learn() -> None:
    """Lets the engine find out where this interpreter keeps frames.

    It compares memory with what the interpreter says of these few nested calls.
    """

    def outer(depth: int) -> None:
        if depth:
            inner(depth - 1)
        else:
            _engine.Live.learn_frames()

    def inner(depth: int) -> None:
        next(outer_of(depth) for _ in range(1))

    def outer_of(depth: int) -> bool:
        outer(depth)
        return True

    outer(3)


@cache
def frames_of(stack: int) -> tuple[Frame, ...]:
    """The lines of a stack, innermost first; empty for none."""
    return tuple(
        (code.co_filename, line_of(code, offset), code.co_name)
        for code, offset in _engine.Live.frames(stack)
        if code.co_name != _NO_CODE
    )


@lru_cache(maxsize=65536)
def line_of(code: CodeType, offset: int) -> int:
    """The line of the instruction at a byte offset; the first of the code where it has none."""
    for begin, end, line in code.co_lines():
        if begin <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def label_of(stack: int) -> str:
    """A stack in a few words: the user's line, and the library's line that it called."""
    from tenure.lifetimes.sites import site_of
    from tenure.traces.columns import Frame as Line

    return site_of(tuple(Line(file, line, name) for file, line, name in frames_of(stack))).label
