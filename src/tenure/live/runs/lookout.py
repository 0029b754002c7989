"""Says one line where a script's process ends so abruptly that no report can be made of it.

A small process of its own waits on a pipe: killed, crashed or replaced, the script's process lets
go of it without the word that it has reported.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

_LINE = (
    b"tenure: no report: the script's process was killed, crashed or became another program "
    b"before it could be looked at\n"
)


class Lookout:
    """On from `begin` until `end`."""

    def __init__(self) -> None:
        self._pipe = -1
        self._process = os.getpid()

    def begin(self) -> None:
        """Starts the process; without one, nothing is said."""
        if not hasattr(os, "fork"):
            return
        with suppress(OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking with threads: the child only reads
            sys.stderr.flush()
            reading, self._pipe = os.pipe()
            child = os.fork()
            if child == 0:
                _wait(reading, self._pipe)
            os.close(reading)
            os.waitpid(child, 0)

    def end(self) -> None:
        """All has been said that there is to say."""
        if self._pipe >= 0 and os.getpid() == self._process:
            with suppress(OSError):
                os.write(self._pipe, b".")
                os.close(self._pipe)
            self._pipe = -1


def _wait(reading: int, writing: int) -> None:
    """In the child: becomes nobody's, so that the script never meets it; then waits."""
    try:
        os.close(writing)
        os.setsid()  # Ctrl-C is for the script
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            if not os.read(reading, 1):
                os.write(2, _LINE)
    finally:
        os._exit(0)
