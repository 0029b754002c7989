"""Two snapshots, compared, as text and as plain values; computes no numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure.reports.text import in_unit, unit_of, visible, wrapped
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.diagnoses import Change, Comparison, Verdict

GIB = 1 << 30
LINES_SHOWN = 12
COUNTS = ("requested", "allocated", "active", "reserved")
MEANING = {
    "requested": "requested",
    "allocated": "live",
    "active": "active (live and pending)",
    "reserved": "reserved",
}


def comparison_dict(comparison: Comparison, before: str, after: str) -> dict[str, Any]:
    """A comparison; all sizes in bytes."""
    return {
        "before": before,
        "after": after,
        "at": comparison.at,
        "same_run": comparison.same_run,
        "peak": {
            "before": comparison.before.peak.as_dict(),
            "after": comparison.after.peak.as_dict(),
        },
        "end": {
            "before": comparison.before.end.as_dict(),
            "after": comparison.after.end.as_dict(),
        },
        "by_category": [_change(change) for change in comparison.by_category],
        "by_site": [{"site": change.label, **_change(change)} for change in comparison.by_site],
        "settings": [
            {"name": s.name, "before": s.before, "after": s.after} for s in comparison.settings
        ],
        "findings": {
            "new": list(comparison.new_findings),
            "gone": list(comparison.gone_findings),
        },
        "budgets": [
            {
                "budget": v.budget.text,
                "before": v.before,
                "after": v.after,
                "limit": v.limit,
                "broken": v.broken,
            }
            for v in comparison.verdicts
        ],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "category": change.category,
        "before": change.before,
        "after": change.after,
        "grown": change.grown,
        "blocks_before": change.blocks_before,
        "blocks_after": change.blocks_after,
    }


def comparison_text(comparison: Comparison, before: str, after: str) -> str:
    """The report of `tenure diff`."""
    lines = [*_headline(comparison), ""]
    lines += wrapped(f"before  {before}", rest="        ")
    lines += wrapped(f"after   {after}", rest="        ")
    if comparison.same_run:
        lines.append("Both are of one run: the second shows what became of the first.")
    lines += ["", *_counts(comparison), ""]
    lines += _settings(comparison)
    lines += _categories(comparison)
    lines += _sites(comparison)
    lines += _findings(comparison)
    lines += _verdicts(comparison.verdicts)
    return "\n".join(lines).rstrip() + "\n"


def signed(size: int) -> str:
    """A difference with its sign: `+12.00 MiB`; `0 B` for none."""
    return f"+{format_bytes(size)}" if size > 0 else format_bytes(size)


def _headline(comparison: Comparison) -> list[str]:
    if comparison.at == "end":
        old, new = comparison.before.end.allocated, comparison.after.end.allocated
        when = "when the snapshots were written"
    else:
        old, new = comparison.before.peak.allocated, comparison.after.peak.allocated
        when = "at the peak"
    if old == new:
        return wrapped(f"As much is live {when} in both: {format_bytes(new)}.")
    share = f", {(new - old) / old:+.1%}" if old else ""
    text = (
        f"{signed(new - old)} live {when}{share}: {format_bytes(old)} before, {format_bytes(new)} "
        "after."
    )
    largest = max(comparison.by_site, key=lambda c: abs(c.grown), default=None)
    if largest is not None and largest.label and largest.grown:
        text += f" Most of it: {signed(largest.grown)} of {largest.label} ({largest.category})."
    return wrapped(text)


def _counts(comparison: Comparison) -> list[str]:
    sides = (comparison.before, comparison.after)
    unit = unit_of(max(side.peak.reserved for side in sides))
    name = "GiB" if unit == GIB else "MiB"
    lines = [f"  {name:<38}{'before':>11}{'after':>11}{'change':>12}"]
    for moment in ("peak", "end"):
        for count in COUNTS:
            old, new = (getattr(getattr(side, moment), count) for side in sides)
            label = f"{MEANING[count]}, {'most' if moment == 'peak' else 'at the end'}"
            change = "=" if old == new else f"{(new - old) / unit:+.2f}"
            lines.append(
                f"  {label:<38}{in_unit(old, unit):>11}{in_unit(new, unit):>11}{change:>12}"
            )
    return lines


def _settings(comparison: Comparison) -> list[str]:
    lines = []
    for change in comparison.settings:
        lines += wrapped(
            f"Setting {change.name}: {change.before} before, {change.after} after.", rest="  "
        )
    return [*lines, ""] if lines else ["Allocator settings are the same.", ""]


def _row(change: Change, label: str) -> str:
    return (
        f"  {signed(change.grown):>12}  {label[:35]:<36}{format_bytes(change.before):>11} ->"
        f"{format_bytes(change.after):>12}"
    )


def _when(comparison: Comparison) -> str:
    return "at the end" if comparison.at == "end" else "at the live peak"


def _categories(comparison: Comparison) -> list[str]:
    changed = [c for c in comparison.by_category if c.grown]
    if not changed:
        return []
    lines = [f"By category, {_when(comparison)} (inferred):"]
    return [*lines, *(_row(change, change.category) for change in changed), ""]


def _sites(comparison: Comparison) -> list[str]:
    changed = sorted((c for c in comparison.by_site if c.grown), key=lambda c: -abs(c.grown))
    if not comparison.by_site and comparison.by_category:
        return ["Lines are not compared: only one of the files has stacks.", ""]
    if not changed:
        return []
    lines = [f"By line, {_when(comparison)}, largest changes first:"]
    for change in changed[:LINES_SHOWN]:
        lines.append(_row(change, change.category))
        lines += wrapped(change.label, " " * 16, " " * 18)
    rest = changed[LINES_SHOWN:]
    if rest:
        lines.append(f"  {signed(sum(c.grown for c in rest)):>12}  {len(rest):,} more lines")
    return [*lines, ""]


def _findings(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.new_findings:
        lines += wrapped(f"Findings only after: {', '.join(comparison.new_findings)}.", rest="  ")
    if comparison.gone_findings:
        lines += wrapped(f"Findings only before: {', '.join(comparison.gone_findings)}.", rest="  ")
    return [*lines, ""] if lines else []


def _verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    lines = []
    for verdict in verdicts:
        word = "BROKEN" if verdict.broken else "kept"
        lines += wrapped(
            f"Budget {visible(verdict.budget.text)}: {word}. {format_bytes(verdict.after)} where "
            f"{format_bytes(verdict.limit)} was allowed ({format_bytes(verdict.before)} before).",
            rest="  ",
        )
    return lines
