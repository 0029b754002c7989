"""Errors of tenure: each says what was asked, what was found, and what to do next."""

from __future__ import annotations

from typing import ClassVar


class TenureError(Exception):
    """A fault of tenure itself; the base of every error it raises.

    Attributes:
        exit_code: What the command line exits with.
    """

    exit_code: ClassVar[int] = 70


class UsageError(TenureError):
    """The caller asked for something that cannot be: a wrong option, size, setting or address."""

    exit_code: ClassVar[int] = 2


class RaceError(TenureError):
    """Two accesses to the same memory that nothing orders; raised by `guard("raise")`."""

    exit_code: ClassVar[int] = 1


class BadInputError(TenureError):
    """A file or a trace is not what it claims to be."""

    exit_code: ClassVar[int] = 3


class OutOfMemoryError(TenureError):
    """A request could not be served after every way to find memory was tried.

    Attributes:
        requested: Bytes asked for by the caller, before rounding.
        segment: Bytes of the segment that the driver refused; 0 if none was asked for.
        stream: The stream of the request.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, requested: int = 0, segment: int = 0, stream: int = 0) -> None:
        super().__init__(message)
        self.requested = requested
        self.segment = segment
        self.stream = stream

    def __reduce__(self) -> tuple[type[OutOfMemoryError], tuple[str, int, int, int]]:
        """Keeps the fields when the error crosses a process boundary."""
        return type(self), (str(self), self.requested, self.segment, self.stream)
