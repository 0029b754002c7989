"""All that a watched run showed, put together: the record, its explanation, one list of findings.

The findings of the run's own snapshot come from the same `explain` as those of a file.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.diagnoses import Finding, Severity, explain
from tenure.lifetimes.edges import short_file
from tenure.live.runs import beyond
from tenure.live.runs.attribution import Attribution, attribute, event_at
from tenure.live.runs.judging import judge
from tenure.live.runs.lines import completed
from tenure.live.runs.naming import name_births
from tenure.live.runs.stepping import Rise, rise_of
from tenure.live.runs.tidying import answers
from tenure.live.runs.windows import SLACK
from tenure.snapshots import read_snapshot, to_trace
from tenure.snapshots.loading import devices_with_content
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.diagnoses import Explanation
    from tenure.live.runs.record import Look, Record
    from tenure.live.runs.stepping import StepMark
    from tenure.traces import Trace

_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2, Severity.NORMAL: 3}


@dataclass
class Conclusion:
    """What is reported of a run.

    Attributes:
        record: What was seen.
        highest: The look at most live bytes; None if none was made.
        explanation: Of the main device's snapshot; None without one.
        attribution: That look's moment, every allocated byte under a heading; None likewise.
        others: Explanations of further devices.
        findings: What matters most first.
        rise: Growth from step to step.
        by_site: Live bytes at the highest look by the line that made them, with heading and count.
        missing: What the report lacks, in sentences.
        step_count: Steps that were made.
        calls: What each call would do every step: name, gain, cost, verdict, why.
    """

    record: Record
    highest: Look | None = None
    explanation: Explanation | None = None
    attribution: Attribution | None = None
    others: dict[int, Explanation] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    rise: Rise | None = None
    by_site: tuple[tuple[str, str, int, int], ...] = ()
    missing: tuple[str, ...] = ()
    step_count: int = 0
    calls: tuple[tuple[str, str, str, str, str], ...] = ()

    @property
    def trace(self) -> Trace | None:
        """The main device's trace; None if there is none."""
        return self.explanation.trace if self.explanation else None


def conclude(
    record: Record,
    *,
    failed: bool = False,
    torch_version: tuple[int, int] | None = None,
    races: tuple[Finding, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Conclusion:
    """Puts a run's record together.

    Args:
        record: What was seen.
        failed: Whether an exception ended the run.
        torch_version: Whose rules its snapshot follows.
        races: Findings of the streams.
        progress: Called with a word before anything that may take a second.
    """
    missing = [*record.missing, *record.gpu.missing]
    if record.gpu.stacks:
        missing.append(record.gpu.stacks)
    count = record.steps[-1].number if record.steps else 0
    found = Conclusion(record, rise=rise_of(record.steps), step_count=count)
    if record.gpu.snapshot:
        progress("explaining the run")
        _try(missing, "the run's snapshot could not be explained", _explain, found, torch_version)
    found.highest = max(record.looks, key=lambda look: look.holders.live, default=None)
    if found.trace is not None:
        _try(missing, "lines of live blocks are missing", name_births, record, found.trace)
        _try(missing, "holders and blocks could not be brought together", _attribute, found)
    _shorten_births(record)
    found.by_site = _by_site(found.highest)
    findings = list(races)
    _try(missing, "holders could not be judged", _judge, record, failed, findings)
    _try(missing, "devices could not be judged", _beyond, found, findings)
    if found.explanation is not None:
        findings += found.explanation.findings
    for device, other in found.others.items():
        findings += [_of_device(f, device) for f in other.findings if f.severity in _LOUD]
    found.findings = merged(findings)
    _try(missing, "what was recorded could not be told", _recorded, record, missing)
    highest = max((c.peak_allocated for c in record.gpu.peaks.values()), default=record.peak)
    found.calls = answers(record, found.findings, highest)
    found.missing = tuple(dict.fromkeys(missing))
    return found


NAMED = 3  # growth of up to so many times what a holder was seen to hold follows from that
_LOUD = (Severity.ERROR, Severity.WARNING)


def _try(missing: list[str], what: str, act: Callable[..., None], *arguments: Any) -> None:
    """One part that fails costs its own lines, not the report."""
    try:
        act(*arguments)
    except Exception as error:
        if os.environ.get("TENURE_DEBUG"):
            raise
        missing.append(f"{what} ({type(error).__name__}: {str(error)[:120]})")


def _judge(record: Record, failed: bool, findings: list[Finding]) -> None:
    findings += judge(record, failed=failed)


def _beyond(found: Conclusion, findings: list[Finding]) -> None:
    findings += beyond.findings_of(found.record, found.trace)
    if found.rise is None:
        return
    rested = bool(found.record.gpu.recorded)  # then the trace has only some of the steps
    known = found.explanation
    if known is None or (rested and not any(f.code == "growth" for f in known.findings)):
        findings.append(beyond.growth(found.rise, found.record))


def _explain(found: Conclusion, torch_version: tuple[int, int] | None) -> None:
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        path = Path(folder) / "run.pickle"
        path.write_bytes(found.record.gpu.snapshot)
        snapshot = completed(read_snapshot(path), _recorded_steps(found.record))
    devices = devices_with_content(snapshot)
    traces = {d: to_trace(snapshot, device=d, torch_version=torch_version) for d in devices}
    # The device whose allocator moved most is the one the run was about.
    order = sorted(traces, key=lambda d: -len(traces[d].events))
    for device in order:
        explanation = explain(traces[device])
        if found.explanation is None:
            found.explanation = explanation
        else:
            found.others[device] = explanation


def _recorded_steps(record: Record) -> list[StepMark]:
    window = record.gpu.window
    if window is None:
        return record.steps
    return [mark for mark in record.steps if window.begun < mark.time <= window.ended]


def _recorded(record: Record, missing: list[str]) -> None:
    """Says where the highest moment of the run is not within what was recorded."""
    window, gpu = record.gpu.window, record.gpu
    if window is None or not gpu.recorded:
        return
    if window.out_of_memory and window.begun >= max(gpu.ooms) - SLACK:
        missing.append(
            "memory ran out while recording rested: which lines made what was live is known only "
            "of what was made while it was recorded"
        )
        return
    peak = sum(counters.peak_requested for counters in gpu.peaks.values())
    if peak > window.peak:
        missing.append(
            f"the highest moment of the run was not recorded: {format_bytes(peak)} were requested "
            f"there, {format_bytes(peak - window.peak)} more than at the highest recorded one, "
            "which is the one that is shown"
        )


def _shorten_births(record: Record) -> None:
    """Nothing of the run is kept alive by its record."""
    for look in record.looks:
        for birth in look.births.values():
            birth.reference = None


def _attribute(found: Conclusion) -> None:
    """At the look with most live bytes of the main device."""
    explanation = found.explanation
    if explanation is None:
        return
    trace = explanation.replay.trace
    place = f"cuda:{trace.device}"
    window = found.record.gpu.window
    looks = [
        (look, [h for h in look.holders.holders if h.device in {place, "cuda"}])
        for look in found.record.looks
        if window is None or window.covers(look.time)
    ]
    sums = [(sum(h.bytes for h in mine), look, mine) for look, mine in looks]
    if not sums:
        return
    _, look, mine = max(sums, key=lambda one: one[0])
    shared = {
        one.address: f"held by another process: {', '.join(one.receivers) or 'none alive now'}"
        for one in found.record.gpu.shared
    }
    event = event_at(trace, look.time)
    found.highest = look
    found.attribution = attribute(trace, event, mine, shared)


def _by_site(look: Look | None) -> tuple[tuple[str, str, int, int], ...]:
    """Live bytes of a look by line: label, heading, bytes, storages."""
    sums: dict[tuple[str, str], list[int]] = {}
    for holder in look.holders.holders if look else ():
        birth = look.births.get(holder.storage) if look else None
        label = "(made before it was watched)"
        if birth is not None and birth.lines:
            file, line, name = birth.lines[0]
            label = f"{short_file(file)}:{line} {name}"
        one = sums.setdefault((label, holder.heading.value), [0, 0])
        one[0] += holder.bytes
        one[1] += 1
    rows = [(label, heading, size, count) for (label, heading), (size, count) in sums.items()]
    return tuple(sorted(rows, key=lambda row: -row[2]))


def _of_device(finding: Finding, device: int) -> Finding:
    return replace(finding, title=f"GPU {device}: {finding.title}")


def merged(findings: list[Finding]) -> tuple[Finding, ...]:
    """One list: by severity, then by bytes; of two that say the same the more telling one.

    What names a holder explains what a trace can only call growth, so that comes after it; the
    holder was seen before the end, with less.
    """
    holding = max((f.bytes for f in findings if f.code.startswith("holder.")), default=0)
    floors = [f for f in findings if f.code == "normal.floor"]
    kept = [f for f in findings if f not in floors[1:]]  # the first has the driver's figure

    def weight(finding: Finding) -> tuple[int, int, int]:
        explained = finding.code == "growth" and finding.bytes <= NAMED * holding
        rank = _RANK[finding.severity]
        if finding.code.startswith("trace."):
            rank = 4
        return rank, int(explained), -finding.bytes

    return tuple(sorted(kept, key=weight))
