"""What a recording lacks, contradicts, or leaves open, each as one sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.traces.columns import Action

if TYPE_CHECKING:
    from tenure.settings import AllocatorSettings
    from tenure.traces.beginning import StartBlock, StartSegment
    from tenure.traces.columns import Events

MIB = 1 << 20
LARGE_SEGMENT = 10 * MIB  # bytes; the least that large pools ask of the driver
FIRST_BY_AGE = (2, 12)  # the torch version from which ties between free blocks go by age


@dataclass(frozen=True)
class Note:
    """Something that a recording lacks, or leaves open.

    Attributes:
        code: Stable name, such as `trace.late`.
        text: One sentence for people.
    """

    code: str
    text: str


def note_late(events: Events, start: tuple[StartSegment, ...]) -> Note:
    """That something was there before the first event, and why, as far as a guess goes."""
    blocks = [b for s in start for b in s.blocks if not b.pending]
    held = sum(b.size for b in blocks) / MIB
    count = len(events)
    one = len(blocks) == 1
    number = "1 block" if one else f"{len(blocks):,} blocks"
    there = f"{number} ({held:,.1f} MiB) {'was' if one else 'were'} live before its first event"
    if looks_like_a_full_ring(count):
        return Note(
            "trace.truncated",
            f"the recording holds exactly {count:,} events and {there}: its ring was probably full "
            "and overwrote what came earlier, so peaks are those of the events kept; record with a "
            "larger max_entries",
        )
    return Note(
        "trace.late",
        f"the recording begins late: {there}; peaks are those of the {count:,} events recorded",
    )


def looks_like_a_full_ring(count: int) -> bool:
    """Whether a number of events is one that people give as max_entries."""
    return count >= 1000 and (count % 1000 == 0 or count & (count - 1) == 0)


def note_contradictions(addresses: list[int]) -> Note:
    """That events and end state cannot all be true."""
    return Note(
        "trace.contradiction",
        f"{len(addresses):,} addresses do not fit between the events and the end state (the first "
        f"is {addresses[0]:#x}): events are missing in the middle, or the recording was switched "
        "off and on",
    )


def notes_ambiguous(
    events: Events,
    start: tuple[StartSegment, ...],
    pools: tuple[tuple[int, int], ...],
    settings: AllocatorSettings,
) -> list[Note]:
    """What the state before the first event might be instead, and what that can change.

    Args:
        events: As recorded, before pools were worked out.
        start: That state, as rebuilt.
        pools: Pool ids; index 0 is the default pool.
        settings: Of the recording.
    """
    texts = [
        _open_sizes([b for s in start for b in s.blocks]),
        _unknown_ages(start, settings),
        _unknown_order(start, settings),
        _unknown_pools(events, start, pools),
    ]
    return [Note("trace.ambiguous", text) for text in texts if text]


def _open_sizes(blocks: list[StartBlock]) -> str:
    unsure = [b.slack for b in blocks if b.slack]
    if not unsure:
        return ""
    most = sum(unsure) / MIB
    return (
        f"{len(unsure):,} of {len(blocks):,} blocks from before the first event are taken as small "
        "as the rules allow, but each may hold up to 1 MiB that was left unsplit: allocated and "
        f"active may be up to {most:,.1f} MiB higher until they are freed"
    )


def _unknown_ages(start: tuple[StartSegment, ...], settings: AllocatorSettings) -> str:
    if not settings.garbage_collection_threshold:
        return ""
    whole = sum(
        not s.arena and not s.blocks and s.pool == 0 and s.size >= LARGE_SEGMENT for s in start
    )
    if not whole:
        return ""
    return (
        f"how long {whole:,} whole cached segments had been unused before the first event is "
        "unknown: where garbage collection goes by that, the replay follows the record"
    )


def _unknown_order(start: tuple[StartSegment, ...], settings: AllocatorSettings) -> str:
    if settings.torch_version < FIRST_BY_AGE:
        return ""
    homes = [(s.stream, s.pool, s.small) for s in start]
    if len(homes) == len(set(homes)):
        return ""
    return (
        f"the order in which {len(homes):,} segments were made before the first event is unknown "
        "and taken from their addresses: torch 2.12 and newer go by it to choose between free "
        "blocks of equal size"
    )


def _unknown_pools(
    events: Events, start: tuple[StartSegment, ...], pools: tuple[tuple[int, int], ...]
) -> str:
    if len(pools) == 1:
        return ""
    returned = (events.action == Action.SEGMENT_FREE) & (events.pool < 0)
    there = np.array([s.address for s in start if not s.arena and s.pool == 0], np.uint64)
    unsure = int(np.isin(there, events.address[returned]).sum())
    if not unsure:
        return ""
    return (
        f"{unsure:,} segments from before the first event were returned during the recording, "
        "which does not say to which pool they belonged: taken for the default pool's"
    )
