"""What the calls that people put into every step would do in this run, by what was seen of it.

`del`, `detach()`, `gc.collect()`, `empty_cache()` and `synchronize()` each help in one situation
and cost time in every other. The situation shows in the run: nothing is tried on the script for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.lifetimes.chains import Heading
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.diagnoses import Finding
    from tenure.live.runs.record import Record

MATTERS = 0.01  # of the peak: less is no gain
OFTEN = 0.5  # calls a step from which on the script does it "every step"
HELPS, NOTHING, HURTS = "helps", "does nothing", "hurts"

Answer = tuple[str, str, str, str, str]  # call, gain, cost, verdict, why


def answers(record: Record, findings: Iterable[Finding], peak: int) -> tuple[Answer, ...]:
    """One answer for each call; empty for a run without steps.

    Args:
        record: Of the run.
        findings: Of the run.
        peak: Most bytes live at once.
    """
    if not record.steps:
        return ()
    sizes: dict[str, int] = {}
    for finding in findings:
        sizes[finding.code] = max(sizes.get(finding.code, 0), finding.bytes)
    rows = [
        _del(sizes),
        _detach(sizes),
        _collect(record, peak),
    ]
    if record.device == "cuda":
        rows += [_empty_cache(record), _synchronize(record, peak)]
    return tuple(rows)


def _del(sizes: dict[str, int]) -> Answer:
    gain = sizes.get("holder.overlap", 0)
    if gain:
        why = "an old value lives while its successor is made: see holder.overlap"
        return "del x", format_bytes(gain), "none", HELPS, why
    return "del x", "0 B", "none", NOTHING, ""


def _detach(sizes: dict[str, int]) -> Answer:
    gain = max(sizes.get("holder.graph", 0), sizes.get("holder.hook", 0))
    if gain:
        why = "a value that outlives its step keeps its graph: see holder.graph, holder.hook"
        return "x.detach(), no_grad()", format_bytes(gain), "none", HELPS, why
    return "x.detach(), no_grad()", "0 B", "none", NOTHING, ""


def _collect(record: Record, peak: int) -> Answer:
    dead = max(
        (
            sum(h.bytes for h in look.holders.holders if h.heading is Heading.CYCLE)
            for look in record.looks
        ),
        default=0,
    )
    gain = max(dead, max(record.collected, default=0))
    if record.full_collections:
        mean = sum(record.full_collections) / len(record.full_collections)
        cost = f"{mean * 1e3:.1f} ms"
    else:
        cost = "not measured"
    if gain > MATTERS * peak:
        why = "that much waits in reference cycles; every some steps is enough, or break the cycle"
        return "gc.collect()", format_bytes(gain), cost, HELPS, why
    return "gc.collect()", format_bytes(gain), cost, NOTHING, "no cycle holds memory worth it"


def _empty_cache(record: Record) -> Answer:
    gpu = record.gpu
    calls = gpu.calls.get("empty_cache")
    if calls is not None and calls.count >= OFTEN * record.steps[-1].number:
        cost = f"{calls.seconds / calls.count * 1e3:.1f} ms"
        why = (
            "the script does it every step: what it returns is asked for again, each time with a "
            "wait for the device; the peak is the same without it"
        )
        return "empty_cache()", "0 B of the peak", cost, HURTS, why
    if gpu.emptied is None:
        return "empty_cache()", "0 B of the peak", "not measured", NOTHING, ""
    returned, seconds = gpu.emptied
    cost = f"{seconds * 1e3:.1f} ms"
    if not returned:
        return "empty_cache()", "0 B", cost, NOTHING, "no whole segment was free at the end"
    why = (
        f"it would return {format_bytes(returned)} to other processes, and the next step would "
        "ask for it again; the peak stays as it is"
    )
    return "empty_cache()", "0 B of the peak", cost, HURTS, why


def _synchronize(record: Record, peak: int) -> Answer:
    calls = record.gpu.calls.get("synchronize")
    cost = "the run-ahead"
    if calls is not None and calls.count:
        cost = f"{calls.seconds / calls.count * 1e3:.1f} ms"
    pending = max((mark.pending for mark in record.steps), default=0)
    if pending > MATTERS * peak:
        why = (
            "freed memory waits for another stream; a wait_stream() or an event gives it back "
            "without stopping the host"
        )
        return "synchronize()", format_bytes(pending), cost, HELPS, why
    why = "no freed memory waits for another stream"
    return "synchronize()", format_bytes(pending), cost, NOTHING, why
