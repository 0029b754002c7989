"""One statement of `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"  # the run fails
    WARNING = "warning"  # memory or time is lost
    INFO = "info"  # about the recording, or too weak to act on
    NORMAL = "normal"  # as it should be, and it stops here


class Confidence(StrEnum):
    """How sure a finding is."""

    MEASURED = "measured"  # the record shows it, or the replay computed it
    INFERRED = "inferred"  # it follows from stacks, timing or sizes, which could mislead
    POSSIBLE = "possible"  # the record fits it, and fits something harmless too


@dataclass(frozen=True)
class Verified:
    """What replay says that an advice does, in bytes.

    Attributes:
        peak_reserved_before: Most bytes reserved as things are.
        peak_reserved_after: The same with the advice followed.
        smallest_before: Least limit under which the trace runs as things are.
        smallest_after: The same with the advice followed.
    """

    peak_reserved_before: int
    peak_reserved_after: int
    smallest_before: int
    smallest_after: int


@dataclass(frozen=True)
class Advice:
    """Something to do.

    Attributes:
        text: One sentence.
        conf: The allocator setting to set, if it is one.
        verified: What replay says of it; an advice about settings is never given without.
    """

    text: str
    conf: str | None = None
    verified: Verified | None = None


@dataclass(frozen=True)
class Finding:
    """What is the case, how many bytes it concerns, why we say so, and what to do.

    Attributes:
        code: Stable name, such as `fragmentation.remainders`.
        severity: How much it matters.
        bytes: Bytes concerned.
        title: One sentence.
        evidence: Sentences with numbers.
        advice: What would help, best first; empty where nothing needs doing.
        confidence: How sure it is.
        because_of: Code of the finding that this one follows from; it is told after that one.
    """

    code: str
    severity: Severity
    bytes: int
    title: str
    evidence: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    confidence: Confidence = Confidence.MEASURED
    because_of: str | None = None

    @property
    def more(self) -> str:
        """Where the documentation of its code is."""
        return f"docs/findings/{self.code}.md"
