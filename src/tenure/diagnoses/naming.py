"""How findings call what they speak of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence


def stream_name(stream: int) -> str:
    """The stream as people know it."""
    return "the default stream" if stream == 0 else f"stream {stream:#x}"


def pool_name(pool: tuple[int, int]) -> str:
    """The pool by the id that PyTorch gives it."""
    if pool == (0, 0):
        return "the default pool"
    return f"pool ({pool[0]}, {pool[1]})"


def age(evidence: Evidence, number: int, event: int) -> str:
    """How long an allocation has lived at an event, in words."""
    born = int(evidence.trace.allocations.born[number])
    if born < 0:
        return "alive since before the recording"
    events = event - born
    return f"alive for {events:,} event{'s' if events != 1 else ''}"


def kind(category: str) -> str:
    """A category as part of a sentence."""
    return "bytes" if category == "unknown" else category


def some(items: list[str], most: int = 4) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def at(address: int) -> str:
    """An address as the record writes it."""
    return f"{address:#x}"
