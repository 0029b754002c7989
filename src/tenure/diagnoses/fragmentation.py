"""fragmentation.holes and fragmentation.remainders: cached bytes that live neighbours pin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.advice import settings_advice, worth_a_setting
from tenure.diagnoses.finding import Finding, Severity
from tenure.diagnoses.naming import age, at
from tenure.diagnoses.split import Holes, find_holes, pins
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.replays import Layout

PINS_SHOWN = 3


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding about bytes that are cached, pinned, and of no use to the requests that came."""
    if not evidence.pins_matter:
        return ()
    layout, event = evidence.most_pinned
    reserved = int(layout.size.sum())
    failed = evidence.replay.first_oom is not None
    holes = find_holes(layout, evidence.split.stream)
    code = "fragmentation.remainders"
    if holes.holes > holes.remainders:
        code = "fragmentation.holes"
    advice = settings_advice(evidence)
    return (
        Finding(
            code,
            Severity.WARNING if worth_a_setting(advice) or failed else Severity.NORMAL,
            holes.total,
            _title(evidence, holes, reserved, event),
            tuple(_evidence(evidence, layout, holes, event)),
            advice,
            because_of="oom" if failed else None,
        ),
    )


def _title(evidence: Evidence, holes: Holes, reserved: int, event: int) -> str:
    when = "when the request failed"
    if evidence.replay.first_oom is None:
        when = "at the end" if event == len(evidence.trace.events) else "at the peak"
    return (
        f"{format_bytes(holes.total)} of the {format_bytes(reserved)} reserved {when} is cached "
        "beside live blocks, which pin it"
    )


def _evidence(evidence: Evidence, layout: Layout, holes: Holes, event: int) -> list[str]:
    lines = []
    if holes.holes:
        lines.append(
            f"{format_bytes(holes.holes)} in {holes.pieces:,} holes: live and free blocks take "
            f"turns in the same segments; the largest is {format_bytes(holes.largest)}"
        )
    if holes.remainders:
        lines.append(
            f"{format_bytes(holes.remainders)} in remainders: each the rest of a segment that a "
            "smaller request was served from, too small for what came later; the largest is "
            f"{format_bytes(holes.largest_remainder)}"
        )
    if evidence.elastic:
        lines.append(
            f"a chunk ({format_bytes(layout.chunk)} here) moves only where all of it is free: "
            "these bytes serve only requests of their stream that fit a piece"
        )
    else:
        lines.append(
            "PyTorch cannot return these bytes, empty_cache() neither; only requests that fit a "
            "piece can use them"
        )
    if holes.holes > holes.remainders and not evidence.trace.settings.expandable_segments:
        lines.append(_page_line(holes, layout.chunk))
    for pin in pins(layout)[:PINS_SHOWN]:
        number = int(layout.allocation[pin.row])
        lines.append(
            f"    {format_bytes(pin.pinned)} pinned by {format_bytes(int(layout.size[pin.row]))} "
            f"of {evidence.label(number)} at {at(int(layout.address[pin.row]))}, "
            f"{age(evidence, number, event)}"
        )
    return lines


def _page_line(holes: Holes, granule: int) -> str:
    chunk = format_bytes(granule)
    if holes.largest < granule:
        return (
            f"the holes are smaller than {chunk}, which is what expandable_segments can unmap at a "
            "time: it would not give them back"
        )
    return f"holes of {chunk} and more can be unmapped and used elsewhere with expandable_segments"
