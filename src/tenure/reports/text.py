"""Text for people: 80 columns, the answer first, then the evidence, then what to do."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tenure.diagnoses import Confidence, Severity
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.diagnoses import Explanation, Finding, Share
    from tenure.replays import Candidate
    from tenure.traces import Trace

WIDTH = 80
GIB = 1 << 30
MIB = 1 << 20
POOL_COLUMNS = ("reserved", "live", "pending", "returnable", "pinned")


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
    unit = unit_of(explanation.split.reserved)
    lines = [*_headline(explanation), ""]
    lines += rules_lines(explanation.trace)
    lines += _missing(explanation)
    shown = [f for f in explanation.findings if f.severity in (Severity.ERROR, Severity.WARNING)]
    said: set[str] = set()  # advice that several findings share is given once
    for finding in shown:
        lines += _finding(finding, explanation, said)
    lines += _possible(explanation)
    lines += _split(explanation, unit)
    lines += _pools(explanation, unit)
    lines += _streams(explanation, unit)
    lines += _settings(explanation, unit)
    lines += _live(explanation)
    lines += _normal(explanation)
    return "\n".join(lines).rstrip() + "\n"


def unit_of(size: int) -> int:
    """The unit that columns of sizes up to this one are written in."""
    return GIB if size >= 2 * GIB else MIB


def in_unit(size: int, unit: int) -> str:
    """Bytes in that unit, with two decimals."""
    return f"{size / unit:.2f}"


def _moment(event: int) -> str:
    return f"event {event:,}" if event >= 0 else "the beginning"


def _name(unit: int) -> str:
    return "GiB" if unit == GIB else "MiB"


def _sentence(text: str) -> str:
    first = text.split(maxsplit=1)[0]
    return (text[0].upper() + text[1:] if first.isalpha() else text) + "."


def _headline(explanation: Explanation) -> list[str]:
    peak = explanation.replay.peak
    worst = explanation.findings[0] if explanation.findings else None
    if worst and worst.severity in (Severity.ERROR, Severity.WARNING):
        return wrapped(_sentence(worst.title))
    if not len(explanation.trace.events):
        return wrapped(
            f"Only the state when the file was written: {format_bytes(peak.allocated)} live, "
            f"{format_bytes(peak.reserved)} reserved. What came before is not in it."
        )
    ratio = f" ({peak.reserved / peak.allocated:.2f} x)" if peak.allocated >= MIB else ""
    flat, rounds = explanation.flat_since, explanation.rounds
    text = (
        f"Nothing wrong. Peak {format_bytes(peak.allocated)} live, {format_bytes(peak.reserved)} "
        f"reserved{ratio}"
    )
    if flat is not None and rounds is not None:
        text += f", flat since {rounds.per} {flat:,} of {rounds.last_number:,}"
    if explanation.recorded_candidate:
        smallest = explanation.recorded_candidate.smallest_capacity
        text += f". Smallest card for this run as it is: {format_bytes(smallest)}"
    return wrapped(text + ".")


def rules_lines(trace: Trace) -> list[str]:
    """Whose rules were in force, where they were not PyTorch's own."""
    settings = trace.settings
    if settings.rules != "elastic":
        return []
    text = "Recorded under tenure's elastic rules"
    if settings.limit >= 0:
        text += f", limit {format_bytes(settings.limit)}"
    if settings.soft_limit:
        text += f", soft limit {settings.soft_limit:g} x the live peak"
    text += ": settings of PyTorch's allocator have no effect there"
    if settings.conf:
        text += f", so {settings.conf} had none"
    return [*wrapped(text + ".", rest="  "), ""]


def _missing(explanation: Explanation) -> list[str]:
    lines = []
    truncated = next((f for f in explanation.findings if f.code == "trace.truncated"), None)
    if truncated is not None:
        lines += wrapped(f"Note: {truncated.title}.", rest="  ")
    for text in explanation.missing:
        lines += wrapped(f"Note: {text}.", rest="  ")
    return [*lines, ""] if lines else []


def _finding(finding: Finding, explanation: Explanation, said: set[str]) -> list[str]:
    first = explanation.findings[0] is finding
    sure = "" if finding.confidence is Confidence.MEASURED else f" ({finding.confidence.value})"
    code = f"[{finding.code}]{sure}"
    lines = [code] if first else wrapped(f"{code} {finding.title}", rest="  ")
    for text in finding.evidence:
        indent = "  " + " " * (len(text) - len(text.lstrip()))
        lines += wrapped(text.strip(), indent, indent + "  ")
    for advice in finding.advice:
        if advice.text not in said:
            lines += wrapped(advice.text, "  -> ", "     ")
        said.add(advice.text)
    return [*lines, f"  more: {finding.more}", ""]


def _possible(explanation: Explanation) -> list[str]:
    """What the record fits, but which may be harmless; notes on the recording come elsewhere."""
    lines = []
    for finding in explanation.findings:
        if finding.severity is Severity.INFO and not finding.code.startswith("trace."):
            lines += wrapped(f"[{finding.code}] (possible) {finding.title}", rest="  ")
            for text in finding.evidence:
                lines += wrapped(text.strip(), "  ", "    ")
            lines += [f"  more: {finding.more}", ""]
    return lines


def _split(explanation: Explanation, unit: int) -> list[str]:
    split = explanation.split
    if not split.reserved:
        return []
    elastic = explanation.trace.settings.rules == "elastic"
    parts = (
        (split.live, "live tensors", ""),
        (split.pending, "pending: freed, waiting for other streams", ""),
        (split.whole, f"whole {'chunks' if elastic else 'segments'} in the cache", "returnable"),
        (split.remainders, "remainders beside live blocks", "pinned"),
        (split.other_streams, "cached in other streams", "" if elastic else "not shared"),
        (split.private, "cached in private pools", "not shared"),
    )
    when = "at its peak"
    if explanation.replay.first_oom is not None:
        when = "when the request failed"
    lines = [
        (
            f"Reserved {when}: {in_unit(split.reserved, unit)} {_name(unit)} "
            f"({_moment(explanation.split_event)})"
        )
    ]
    sign = "="
    for part, what, note in parts:
        if part.bytes or what == "live tensors":
            text = f"  {sign} {in_unit(part.bytes, unit):>8}  {what} ({part.blocks:,})"
            lines.append(f"{text:<62}{note}".rstrip())
            sign = "+"
    return [*lines, *_device(explanation), ""]


def _device(explanation: Explanation) -> list[str]:
    use = explanation.device
    if use is None or use.total is None or use.outside is None:
        return []
    return wrapped(
        f"Device: {gib(use.total)} GiB = reserved {gib(use.reserved)} + free {gib(use.free)} + "
        f"context, libraries and other processes {gib(use.outside)} (an {use.card}, by its size)",
        rest="  ",
    )


def _pools(explanation: Explanation, unit: int) -> list[str]:
    """The same bytes by stream and pool, where there is more than one of either."""
    shares = explanation.split.pools
    if len(shares) < 2:
        return []
    lines = [f"  {'stream':<13}{'pool':<10}" + "".join(f"{c:>11}" for c in POOL_COLUMNS)]
    shown = shares[:8]
    for share in shown:
        stream = "default" if share.stream == 0 else f"{share.stream:#x}"
        pool = "default" if share.pool == (0, 0) else f"({share.pool[0]}, {share.pool[1]})"
        sizes = (share.reserved, share.live, share.pending, share.whole, share.pinned)
        lines.append(
            f"  {stream[:12]:<13}{pool[:9]:<10}"
            + "".join(f"{in_unit(size, unit):>11}" for size in sizes)
        )
    if len(shares) > len(shown):
        rest = sum(share.reserved for share in shares[len(shown) :])
        lines.append(f"  {f'{len(shares) - len(shown)} more':<23}{in_unit(rest, unit):>11}")
    return [*lines, ""]


def _streams(explanation: Explanation, unit: int) -> list[str]:
    if len(explanation.streams) < 2:
        return []
    name = _name(unit)
    lines = [f"  stream                live peak   pending peak   reserved peak  ({name})"]
    for usage in explanation.streams[:6]:
        stream = "default" if usage.stream == 0 else f"{usage.stream:#x}"
        lines.append(
            f"  {stream:<20}{in_unit(usage.live_peak, unit):>11}"
            f"{in_unit(usage.pending_peak, unit):>15}{in_unit(usage.reserved_peak, unit):>16}"
        )
    return [*lines, ""]


def settings_table(
    candidates: Iterable[Candidate],
    recorded: Candidate,
    live: int,
    capacity: int | None,
    unit: int = GIB,
) -> list[str]:
    """Each setting with its peak reserved and the smallest card that the run fits on."""
    lines = [f"  setting (sizes in {_name(unit)})          reserved  smallest card"]
    for candidate in candidates:
        same = candidate.conf == recorded.conf and candidate.rules == recorded.rules
        peak = recorded.peak_reserved if same else candidate.peak_reserved
        name = candidate.conf or ("default" if candidate.rules == "torch" else "tenure elastic")
        note = "as recorded" if same else ""
        if capacity is not None and not candidate.fits:
            note = f"does not fit in {in_unit(capacity, unit)}"
        smallest = in_unit(candidate.smallest_capacity, unit)
        lines.append(
            f"  {visible(name):<30}{in_unit(peak, unit):>10}{smallest:>15}  {note}".rstrip()
        )
    bound = in_unit(live, unit)
    lines.append(f"  {'live bytes (the bound)':<30}{bound:>10}{bound:>15}")
    return lines


def _settings(explanation: Explanation, unit: int) -> list[str]:
    recorded = explanation.recorded_candidate
    if recorded is None or not explanation.candidates:
        return []
    live = explanation.replay.peak.allocated
    title = "The same requests under other settings (replayed):"
    if recorded.rules == "elastic":
        title = "The same requests under PyTorch's rules and settings (replayed):"
    table = settings_table(explanation.candidates, recorded, live, explanation.capacity, unit)
    best = next((a for f in explanation.findings for a in f.advice if a.conf), None)
    lines = [title, *table]
    if best and best.conf:
        lines.append(f"  set: PYTORCH_CUDA_ALLOC_CONF={best.conf}")
    return [*lines, ""]


def _live(explanation: Explanation) -> list[str]:
    if not explanation.by_site:
        return []
    moment = _moment(explanation.replay.peak_event.allocated)
    total = format_bytes(explanation.replay.peak.allocated)
    if not explanation.trace.has_stacks:
        lines = [f"Live at the live peak, {total} ({moment}); inferred from lifetimes:"]
        shares = explanation.by_category
        return [
            *lines,
            *(_share(s, f"{s.blocks:,} block{'s' if s.blocks != 1 else ''}", "") for s in shares),
            "",
        ]
    lines = [f"Live at the live peak, {total} at {moment} (categories are inferred):"]
    categories = [f"{s.category} {format_bytes(s.bytes)}" for s in explanation.by_category]
    lines += wrapped(", ".join(categories), "  ", "  ")
    lines += [
        f"  {'bytes':>10}  {'category':<15}  {'line':<42} blocks",
    ]
    lines += [_share(s, visible(s.label), f"{s.blocks:,}") for s in explanation.by_site[:10]]
    rest = explanation.by_site[10:]
    if rest:
        size, blocks = sum(s.bytes for s in rest), sum(s.blocks for s in rest)
        lines.append(f"  {format_bytes(size):>10}  {'':<15}  {_more(len(rest)):<42} {blocks:>6,}")
    return [*lines, ""]


def _more(count: int) -> str:
    return "1 more line" if count == 1 else f"{count:,} more lines"


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
