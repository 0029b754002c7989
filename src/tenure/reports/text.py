"""Text for people: 80 columns, the answer first, then the evidence, then what to do."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tenure.diagnoses import Severity
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.diagnoses import Explanation, Finding, Share
    from tenure.replays import Candidate

WIDTH = 80
GIB = 1 << 30


def visible(text: str) -> str:
    """The text without control characters: names in a snapshot come from strangers."""
    return "".join(c if c.isprintable() else "?" for c in text)


def gib(size: int) -> str:
    """Bytes as GiB with two decimals, for columns."""
    return f"{size / GIB:.2f}"


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most 80 columns; file names and settings are not broken."""
    return textwrap.wrap(
        visible(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def explanation_text(explanation: Explanation) -> str:
    """The whole report of `tenure explain`."""
    lines = [*_headline(explanation), ""]
    lines += _missing(explanation)
    shown = [f for f in explanation.findings if f.severity in (Severity.ERROR, Severity.WARNING)]
    said: set[str] = set()  # advice that several findings share is given once
    for finding in shown:
        lines += _finding(finding, explanation, said)
    lines += _split(explanation)
    lines += _streams(explanation)
    lines += _settings(explanation)
    lines += _live(explanation)
    lines += _normal(explanation)
    return "\n".join(lines).rstrip() + "\n"


def _headline(explanation: Explanation) -> list[str]:
    peak = explanation.replay.peak
    worst = explanation.findings[0] if explanation.findings else None
    if worst and worst.severity in (Severity.ERROR, Severity.WARNING):
        return wrapped(worst.title[0].upper() + worst.title[1:] + ".")
    ratio = peak.reserved / max(peak.allocated, 1)
    text = (
        f"Nothing wrong. Peak {format_bytes(peak.allocated)} live, {format_bytes(peak.reserved)} "
        f"reserved ({ratio:.2f} x)."
    )
    if explanation.recorded_candidate:
        smallest = explanation.recorded_candidate.smallest_capacity
        text += f" Smallest card for this run as it is: {format_bytes(smallest)}."
    return wrapped(text)


def _missing(explanation: Explanation) -> list[str]:
    lines = []
    for text in explanation.missing:
        lines += wrapped(f"Note: {text}.", rest="  ")
    return [*lines, ""] if lines else []


def _finding(finding: Finding, explanation: Explanation, said: set[str]) -> list[str]:
    first = explanation.findings[0] is finding
    lines = (
        [f"[{finding.code}]"] if first else wrapped(f"[{finding.code}] {finding.title}", rest="  ")
    )
    for text in finding.evidence:
        indent = "  " + " " * (len(text) - len(text.lstrip()))
        lines += wrapped(text.strip(), indent, indent + "  ")
    for advice in finding.advice:
        if advice.text not in said:
            lines += wrapped(advice.text, "  -> ", "     ")
        said.add(advice.text)
    return [*lines, ""]


def _split(explanation: Explanation) -> list[str]:
    split = explanation.split
    if not split.reserved:
        return []
    parts = (
        (split.live, "live tensors", ""),
        (split.pending, "pending: freed, waiting for other streams", ""),
        (split.whole, "whole segments in the cache", "returnable"),
        (split.remainders, "remainders beside live blocks", "pinned"),
        (split.other_streams, "cached in other streams", "not shared"),
        (split.private, "cached in private pools", "not shared"),
    )
    lines = [
        (
            f"Reserved at its peak: {gib(split.reserved)} GiB "
            f"(event {explanation.replay.peak_event.reserved:,})"
        )
    ]
    sign = "="
    for part, what, note in parts:
        if part.bytes or what == "live tensors":
            text = f"  {sign} {gib(part.bytes):>7}  {what} ({part.blocks:,})"
            lines.append(f"{text:<62}{note}".rstrip())
            sign = "+"
    return [*lines, ""]


def _streams(explanation: Explanation) -> list[str]:
    if len(explanation.streams) < 2:
        return []
    lines = ["  stream                live peak   pending peak   reserved peak  (GiB)"]
    for usage in explanation.streams[:6]:
        name = "default" if usage.stream == 0 else f"{usage.stream:#x}"
        lines.append(
            f"  {name:<20}{gib(usage.live_peak):>11}{gib(usage.pending_peak):>15}"
            f"{gib(usage.reserved_peak):>16}"
        )
    return [*lines, ""]


def settings_table(
    candidates: Iterable[Candidate], recorded: Candidate, live: int, capacity: int | None
) -> list[str]:
    """Each setting with its peak reserved and the smallest card that the run fits on."""
    lines = ["  setting (sizes in GiB)          reserved  smallest card"]
    for candidate in candidates:
        same = candidate.conf == recorded.conf and candidate.rules == recorded.rules
        peak = recorded.peak_reserved if same else candidate.peak_reserved
        name = candidate.conf or ("default" if candidate.rules == "torch" else "tenure elastic")
        note = "as recorded" if same else ""
        if capacity is not None and not candidate.fits:
            note = f"does not fit in {gib(capacity)}"
        lines.append(
            f"  {visible(name):<30}{gib(peak):>10}{gib(candidate.smallest_capacity):>15}  "
            f"{note}".rstrip()
        )
    lines.append(f"  {'live bytes (the bound)':<30}{gib(live):>10}{gib(live):>15}")
    return lines


def _settings(explanation: Explanation) -> list[str]:
    recorded = explanation.recorded_candidate
    if recorded is None or not explanation.candidates:
        return []
    live = explanation.replay.peak.allocated
    title = "The same requests under other settings (replayed):"
    table = settings_table(explanation.candidates, recorded, live, explanation.capacity)
    best = next((a for f in explanation.findings for a in f.advice if a.conf), None)
    lines = [title, *table]
    if best and best.conf:
        lines.append(f"  set: PYTORCH_CUDA_ALLOC_CONF={best.conf}")
    return [*lines, ""]


def _live(explanation: Explanation) -> list[str]:
    if not explanation.by_site:
        return []
    moment = explanation.replay.peak_event.allocated
    total = format_bytes(explanation.replay.peak.allocated)
    if not explanation.trace.has_stacks:
        lines = [f"Live at the live peak, {total} (event {moment:,}); inferred from lifetimes:"]
        shares = explanation.by_category
        return [*lines, *(_share(s, f"{s.blocks:,} blocks", "") for s in shares), ""]
    lines = [
        f"Live at the live peak, {total} at event {moment:,} (categories are inferred):",
        f"  {'bytes':>10}  {'category':<15}  {'line':<42} blocks",
    ]
    lines += [_share(s, visible(s.label), f"{s.blocks:,}") for s in explanation.by_site[:10]]
    rest = explanation.by_site[10:]
    if rest:
        size, blocks = sum(s.bytes for s in rest), sum(s.blocks for s in rest)
        lines.append(
            f"  {format_bytes(size):>10}  {'':<15}  {f'{len(rest):,} more lines':<42} {blocks:>6,}"
        )
    return [*lines, ""]


def _share(share: Share, label: str, count: str) -> str:
    short = label if len(label) <= 42 else label[:39] + "..."
    return (
        f"  {format_bytes(share.bytes):>10}  {share.category:<15}  {short:<42} {count:>6}".rstrip()
    )


def _normal(explanation: Explanation) -> list[str]:
    normal = [f for f in explanation.findings if f.severity is Severity.NORMAL]
    lines = []
    for finding in normal:
        lines += wrapped(f"Normal: {finding.title}.", rest="  ")
    return lines
