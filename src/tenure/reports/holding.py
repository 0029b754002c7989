"""Who held the memory of a script that ran: text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.diagnoses import Severity
from tenure.reports.plain import finding_dict
from tenure.reports.text import wrapped
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses import Finding
    from tenure.lifetimes.holders import Holders


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
        operations: Operations that ran.
        peak_operation: The one that reached the peak.
        holders: At the highest moment that was looked at; None if none was.
        findings: What matters most first.
        missing: What the report lacks, in sentences.
        seconds: That looking took.
    """

    file: str
    device: str
    exit_code: int
    error: str
    peak: int
    end: int
    operations: int
    peak_operation: int
    holders: Holders | None
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    seconds: float


def holding_dict(holding: Holding) -> dict[str, Any]:
    """The report in the form of `tenure explain --json`; sizes in bytes."""
    looked = holding.holders
    return {
        "file": holding.file,
        "device": holding.device,
        "complete": not holding.missing,
        "missing": list(holding.missing),
        "exit_code": holding.exit_code,
        "error": holding.error or None,
        "peak": {
            # Live bytes as tensors count them; what an allocator makes of them is not known here.
            "requested": holding.peak,
            "allocated": holding.peak,
            "active": None,
            "reserved": None,
            "at_event": holding.peak_operation,
            "by_site": [],
            "by_category": [
                {"category": row.heading, "bytes": row.bytes, "blocks": row.storages}
                for row in (looked.rows if looked else ())
            ],
        },
        "end": {"allocated": holding.end},
        "operations": holding.operations,
        "holders": {
            "live": looked.live if looked else 0,
            "complete": looked.complete if looked else False,
            "rows": [
                {
                    "heading": row.heading,
                    "bytes": row.bytes,
                    "storages": row.storages,
                    "chain": row.chain,
                }
                for row in (looked.rows if looked else ())
            ],
        },
        "seconds": {"looking": round(holding.seconds, 3)},
        "findings": [finding_dict(finding) for finding in holding.findings],
    }


def holding_text(holding: Holding) -> str:
    """The report for people, 80 columns."""
    lines = _headline(holding)
    for text in holding.missing:
        lines += wrapped(f"Note: {text}.", rest="  ")
    for finding in holding.findings:
        lines += ["", *wrapped(f"[{finding.code}] {finding.title}", rest="  ")]
        for text in finding.evidence:
            lines += wrapped(text, "  ", "    ")
        for advice in finding.advice:
            lines += wrapped(advice.text, "  -> ", "     ")
    looked = holding.holders
    if looked is not None and looked.live:
        lines += [
            "",
            f"Live at the highest moment looked at: {format_bytes(looked.live)} allocated",
        ]
        for row in looked.rows:
            head = f"  {format_bytes(row.bytes):>10}  {row.heading:<21} {row.storages:>6,}"
            lines.append(head)
            lines += wrapped(row.chain, " " * 14, " " * 16)
    return "\n".join(lines) + "\n"


def _headline(holding: Holding) -> list[str]:
    bad = [f for f in holding.findings if f.severity in {Severity.ERROR, Severity.WARNING}]
    ended = f" It ended with {holding.error}." if holding.error else ""
    peak = f"peak {format_bytes(holding.peak)} allocated on {holding.device}"
    if bad:
        return wrapped(f"tenure: {peak}; {bad[0].title}.{ended}")
    return wrapped(f"tenure: {peak}; nothing is held that should not be.{ended}")
