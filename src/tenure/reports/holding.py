"""Who held the memory of a script that ran: text and JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tenure.diagnoses import Severity
from tenure.reports.plain import explanation_dict, finding_dict
from tenure.reports.text import explanation_text, wrapped
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses import Explanation, Finding

COUNTS = ("requested", "allocated", "active", "reserved")
CLEAR = 0.0005  # of allocated, below which an unknown rest is not worth a percentage


@dataclass(frozen=True)
class Row:
    """Live bytes under one heading, or made by one line.

    Attributes:
        heading: Why they are live.
        bytes: Their sum.
        blocks: How many storages or blocks.
        chain: What holds the largest; or the line.
    """

    heading: str
    bytes: int
    blocks: int
    chain: str


@dataclass(frozen=True)
class Device:
    """One GPU, in bytes.

    Attributes:
        index: Its number.
        peak: The four byte counts at their highest; None where the allocator keeps none.
        end: The same at the end.
        total: All of its memory; None where the driver did not say.
        free: What the driver would still give.
        others: Of other processes; None if not told apart.
        rest: Context, kernels, libraries, and other processes where those are not told apart.
        why: How others are known, or why not.
    """

    index: int
    peak: tuple[int, int, int, int] | None
    end: tuple[int, int, int, int] | None
    total: int | None = None
    free: int | None = None
    others: int | None = None
    rest: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Call:
    """What a call each step would do in this run.

    Attributes:
        name: The call.
        gain: What it would give, in words with numbers.
        cost: What it would cost, likewise.
        verdict: "helps", "does nothing" or "hurts".
        why: One sentence.
    """

    name: str
    gain: str
    cost: str
    verdict: str
    why: str = ""


@dataclass(frozen=True)
class Stepping:
    """The run's steps.

    Attributes:
        count: How many.
        rise: Bytes that live memory rises a step; 0 if it does not.
        first: The step from which that was measured.
        recorded: Which were recorded, and why not the others, in words; "" if all were.
    """

    count: int
    rise: int = 0
    first: int = 0
    recorded: str = ""


@dataclass(frozen=True)
class Holding:
    """What is reported of a watched run.

    Attributes:
        file: The script.
        device: Whose bytes were watched: "cpu" or "cuda".
        exit_code: Of the script.
        error: Name of the exception that ended it; "" for none.
        peak: Most bytes live at once.
        end: Bytes live at the end.
        operations: Operations that were watched.
        peak_operation: The one that reached the peak.
        rows: Every live byte of the highest moment looked at, under one heading.
        live: What the rows add up to.
        pending: Bytes on top of them, freed but waiting for another stream.
        whole: Whether every reference was followed at that moment.
        by_site: The same bytes by line and heading.
        findings: What matters most first.
        missing: What the report lacks, in sentences.
        seconds: That looking took.
        stepping: The steps.
        calls: What `del`, `empty_cache()` and so on would do each step.
        devices: GPUs that were used.
        explanation: Of the run's own snapshot; None without one.
    """

    file: str
    device: str
    exit_code: int
    error: str
    peak: int
    end: int
    operations: int
    peak_operation: int
    rows: tuple[Row, ...]
    live: int
    pending: int
    whole: bool
    by_site: tuple[Row, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    seconds: float
    stepping: Stepping
    calls: tuple[Call, ...] = ()
    devices: tuple[Device, ...] = ()
    explanation: Explanation | None = None


def holding_dict(holding: Holding) -> dict[str, Any]:
    """The report in the form of `tenure explain --json`, with the holders; sizes in bytes."""
    explained = holding.explanation
    value = explanation_dict(explained, holding.file) if explained else _without_trace(holding)
    value["device"] = holding.device if explained is None else value["device"]
    known = value["missing"] if explained else []
    value["missing"] = list(dict.fromkeys([*holding.missing, *known]))
    value["complete"] = not holding.missing and bool(value.get("complete", True))
    value["findings"] = [finding_dict(finding) for finding in holding.findings]
    value.update(
        exit_code=holding.exit_code,
        error=holding.error or None,
        end={"allocated": holding.end},
        operations=holding.operations,
        holders={
            "live": holding.live,
            "pending": holding.pending,
            "complete": holding.whole,
            "rows": [
                {"heading": r.heading, "bytes": r.bytes, "storages": r.blocks, "chain": r.chain}
                for r in holding.rows
            ],
        },
        steps={
            "count": holding.stepping.count,
            "growth_per_step": holding.stepping.rise,
            "measured_from": holding.stepping.first,
            "recorded": holding.stepping.recorded or None,
        },
        calls_each_step=[
            {"call": c.name, "gain": c.gain, "cost": c.cost, "verdict": c.verdict, "why": c.why}
            for c in holding.calls
        ],
        devices=[_device_dict(device) for device in holding.devices],
        seconds={"looking": round(holding.seconds, 3)},
    )
    return value


def _without_trace(holding: Holding) -> dict[str, Any]:
    return {
        "file": holding.file,
        "device": holding.device,
        "complete": True,
        "missing": [],
        "peak": {
            # Live bytes as tensors count them; what an allocator makes of them is not known here.
            "requested": holding.peak,
            "allocated": holding.peak,
            "active": None,
            "reserved": None,
            "at_event": holding.peak_operation,
            "by_site": [
                {"site": r.chain, "category": r.heading, "bytes": r.bytes, "blocks": r.blocks}
                for r in holding.by_site
            ],
            "by_category": [
                {"category": r.heading, "bytes": r.bytes, "blocks": r.blocks} for r in holding.rows
            ],
        },
    }


def _device_dict(device: Device) -> dict[str, Any]:
    def named(counts: tuple[int, int, int, int] | None) -> dict[str, int] | None:
        return dict(zip(COUNTS, counts, strict=True)) if counts else None

    return {
        "device": device.index,
        "peak": named(device.peak),
        "end": named(device.end),
        "total": device.total,
        "free": device.free,
        "other_processes": device.others,
        "context_and_libraries": device.rest,
        "note": device.why,
    }


def holding_text(holding: Holding) -> str:
    """The report for people, 80 columns."""
    if holding.explanation is not None:
        explained = replace(
            holding.explanation,
            findings=holding.findings,
            missing=tuple(dict.fromkeys([*holding.missing, *holding.explanation.missing])),
        )
        lines = explanation_text(explained).rstrip("\n").splitlines()
        if holding.error:
            lines = [*wrapped(f"The script ended with {holding.error}."), "", *lines]
    else:
        lines = [*_headline(holding), *_notes_and_findings(holding)]
    lines += _held(holding)
    lines += _counts(holding)
    lines += _steps(holding)
    lines += _calls(holding)
    for device in holding.devices:
        lines += _footer(device)
    return "\n".join(lines) + "\n"


def _headline(holding: Holding) -> list[str]:
    bad = [f for f in holding.findings if f.severity in {Severity.ERROR, Severity.WARNING}]
    ended = f" It ended with {holding.error}." if holding.error else ""
    peak = f"peak {format_bytes(holding.peak)} allocated on {holding.device}"
    if bad:
        return wrapped(f"tenure: {peak}; {bad[0].title}.{ended}")
    return wrapped(f"tenure: {peak}; nothing is held that should not be.{ended}")


def _notes_and_findings(holding: Holding) -> list[str]:
    lines = []
    for text in holding.missing:
        lines += wrapped(f"Note: {text}.", rest="  ")
    for finding in holding.findings:
        lines += ["", *wrapped(f"[{finding.code}] {finding.title}", rest="  ")]
        for text in finding.evidence:
            lines += wrapped(text, "  ", "    ")
        for advice in finding.advice:
            lines += wrapped(advice.text, "  -> ", "     ")
    return lines


def _held(holding: Holding) -> list[str]:
    if not holding.live:
        return []
    unknown = sum(row.bytes for row in holding.rows if row.heading == "unknown")
    part = f", {1 - unknown / holding.live:.1%} of it named" if unknown else ""
    lines = [
        "",
        f"Live at the highest moment looked at: {format_bytes(holding.live)} allocated{part}",
    ]
    if not holding.whole:
        lines.append("  (time ran out before every reference was followed)")
    for row in holding.rows:
        count = f"{row.blocks:,}" if row.blocks else ""
        lines.append(f"  {format_bytes(row.bytes):>10}  {row.heading:<25} {count:>6}".rstrip())
        lines += wrapped(row.chain, " " * 14, " " * 16)
    if holding.pending:
        lines.append(f"  {format_bytes(holding.pending):>10}  more: freed, awaiting other streams")
    return lines


def _counts(holding: Holding) -> list[str]:
    counted = [d for d in holding.devices if d.peak and d.end]
    if not counted:
        return []
    lines = ["", f"{'':<16}" + "".join(f"{name:>13}" for name in COUNTS)]
    for device in counted:
        for name, counts in (("peak", device.peak), ("end", device.end)):
            head = f"  GPU {device.index}, {name}"
            lines.append(f"{head:<16}" + "".join(f"{format_bytes(n):>13}" for n in counts or ()))
    return lines


def _steps(holding: Holding) -> list[str]:
    stepping = holding.stepping
    if not stepping.count:
        return []
    if stepping.rise:
        text = (
            f"{stepping.count:,} steps; live bytes at their ends rise "
            f"{format_bytes(stepping.rise)} a step since step {stepping.first:,}."
        )
    else:
        text = f"{stepping.count:,} steps; live bytes at their ends do not rise."
    return ["", *wrapped(text), *wrapped(stepping.recorded)]


def _calls(holding: Holding) -> list[str]:
    if not holding.calls:
        return []
    lines = ["", "Would it help, each step?   gain              cost          verdict"]
    for call in holding.calls:
        lines.append(f"  {call.name:<24}  {call.gain:<16}  {call.cost:<12}  {call.verdict}")
        if call.why:
            lines += wrapped(call.why, " " * 6, " " * 6)
    return lines


def _footer(device: Device) -> list[str]:
    if device.total is None or device.free is None:
        return []
    used = device.total - device.free
    lines = [
        "",
        (
            f"GPU {device.index} at the end: {format_bytes(used)} of "
            f"{format_bytes(device.total)} in use, by the driver"
        ),
    ]
    reserved = device.end[-1] if device.end else 0
    rows = [(reserved, "reserved by this process's allocator")]
    if device.others is None:
        rows.append((device.rest or 0, f"context, kernels, libraries ({device.why})"))
    else:
        rows.append((device.rest or 0, "context, loaded kernels, libraries of this process"))
        rows.append((device.others, f"other processes ({device.why})"))
    for size, text in rows:
        lines += wrapped(text, f"  {format_bytes(size):>10}  ", " " * 14)
    return lines
