"""Races of a script that `tenure run` runs: watched from its second stream on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.diagnoses import Finding


class Races:
    """A report on streams that is being made.

    Single-stream scripts pay nothing: watching begins when a stream is made, or memory is pinned.
    """

    def findings(self) -> list[Finding]:
        """What was found so far, worst first."""
        return []

    def stop(self) -> None:
        """Stops watching; what was found stays."""


def start() -> Races:
    """Begins to report races; torch must have been imported."""
    return Races()
