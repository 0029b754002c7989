"""What changed from one snapshot to another: by line, by category, in the settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.budgets import check
from tenure.diagnoses.evidence import Evidence, Progress
from tenure.diagnoses.explaining import find_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.diagnoses.budgets import Budget, Verdict
    from tenure.diagnoses.evidence import Share
    from tenure.replays import ByteCounts, Layout
    from tenure.traces import Trace

SAME_RUN = 0.5  # of the smaller one's segments, at equal addresses: one process, two moments
LINE = re.compile(r":\d+")
NOT_COMPARED = {"conf", "ignored", "device_memory"}
HEEDED = {"rules", "torch_version", "limit", "soft_limit"}  # also where one is under elastic rules


@dataclass(frozen=True)
class Change:
    """Live bytes of one line or one category, before and after.

    Attributes:
        label: The line as the later snapshot has it; empty for a category.
        category: What the bytes are for.
        before: Bytes before.
        after: Bytes after.
        blocks_before: Blocks before.
        blocks_after: Blocks after.
    """

    label: str
    category: str
    before: int
    after: int
    blocks_before: int
    blocks_after: int

    @property
    def grown(self) -> int:
        """Bytes more after than before."""
        return self.after - self.before


@dataclass(frozen=True)
class SettingChange:
    """An allocator setting that differs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Totals:
    """The byte counts of one snapshot.

    Attributes:
        peak: Most of each.
        end: After the last event.
    """

    peak: ByteCounts
    end: ByteCounts


@dataclass(frozen=True)
class Comparison:
    """Two snapshots, compared.

    Attributes:
        at: The moment whose live bytes are compared by line: "peak" or "end".
        same_run: Whether both are of one process: the later one shows what became of the earlier.
        before: Byte counts of the first.
        after: Byte counts of the second.
        by_category: What changed by category, most growth first.
        by_site: What changed by line, most growth first; empty where only one has stacks.
        settings: Allocator settings that differ.
        new_findings: Codes that only the second has; empty where findings were not asked for.
        gone_findings: Codes that only the first has.
        verdicts: The budgets asked about, checked.
    """

    at: str
    same_run: bool
    before: Totals
    after: Totals
    by_category: tuple[Change, ...]
    by_site: tuple[Change, ...]
    settings: tuple[SettingChange, ...]
    new_findings: tuple[str, ...]
    gone_findings: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = ()

    @property
    def broken(self) -> bool:
        """Whether any budget is broken."""
        return any(verdict.broken for verdict in self.verdicts)


def compare(
    before: Trace,
    after: Trace,
    *,
    at: str | None = None,
    budgets: Sequence[Budget] = (),
    findings: bool = True,
    progress: Progress = lambda _: None,
) -> Comparison:
    """Compares two snapshots.

    Args:
        before: The first.
        after: The second.
        at: "peak": when most was live; "end": when the snapshots were written. Default: "end" for
            two snapshots of one run, else "peak".
        budgets: Conditions that must not hold, as `read_budget` reads them.
        findings: Say also which findings came and went; that takes as long as explaining both.
        progress: Called with a word before anything that may take a second.

    Raises:
        UsageError: A budget is about a line or category that neither snapshot has.
    """
    same = _same_run(before, after)
    at = at or ("end" if same else "peak")
    first, second = Evidence(before, None, progress), Evidence(after, None, progress)
    old, new = (find_all(e) if findings else [] for e in (first, second))
    old_codes = list(dict.fromkeys(f.code for f in old))
    new_codes = list(dict.fromkeys(f.code for f in new))
    sides = [_layout(evidence, at) for evidence in (first, second)]
    comparison = Comparison(
        at=at,
        same_run=same,
        before=Totals(first.recorded.peak, first.recorded.end),
        after=Totals(second.recorded.peak, second.recorded.end),
        by_category=_changes(first.by_category(sides[0]), second.by_category(sides[1])),
        by_site=_changes(first.by_site(sides[0]), second.by_site(sides[1]))
        if before.has_stacks == after.has_stacks
        else (),
        settings=_setting_changes(before, after),
        new_findings=tuple(code for code in new_codes if code not in old_codes),
        gone_findings=tuple(code for code in old_codes if code not in new_codes),
    )
    verdicts = tuple(check(budget, comparison) for budget in budgets)
    return replace(comparison, verdicts=verdicts)


def _layout(evidence: Evidence, at: str) -> Layout:
    return evidence.recorded.blocks if at == "end" else evidence.at_live_peak


def _same_run(before: Trace, after: Trace) -> bool:
    """Whether the end states share their segments at a time when one process can have had them."""
    first = np.unique(before.end.segments.address)
    second = np.unique(after.end.segments.address)
    fewer = min(len(first), len(second))
    if not fewer or before.device != after.device:
        return False
    if len(np.intersect1d(first, second)) < SAME_RUN * fewer:
        return False
    # Addresses of arenas are alike from run to run: times decide, or that the later one began late.
    windows = [t.events.time_us[t.events.time_us > 0] for t in (before, after)]
    if all(len(w) for w in windows) and after.starts_empty:
        return bool(windows[0].min() <= windows[1].max() and windows[1].min() <= windows[0].max())
    return True


def _changes(before: tuple[Share, ...], after: tuple[Share, ...]) -> tuple[Change, ...]:
    """Shares by label and category; of lines that moved, those that only their number tells."""
    old = {(s.label, s.category): s for s in before}
    new = {(s.label, s.category): s for s in after}
    pairs = {key: key for key in new if key in old}
    pairs |= _moved([k for k in old if k not in new], [k for k in new if k not in old])
    known = set(pairs.values())
    changes = [_change(old.get(pairs.get(key, key)), share) for key, share in new.items()]
    changes += [_change(share, None) for key, share in old.items() if key not in known]
    return tuple(sorted(changes, key=lambda c: (-c.grown, -c.after, c.label)))


def _moved(
    gone: list[tuple[str, str]], come: list[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Lines whose number alone changed, because the file did: where there is one of each."""

    def loose(keys: list[tuple[str, str]]) -> dict[tuple[str, str], list[tuple[str, str]]]:
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for label, category in keys:
            found.setdefault((LINE.sub("", label), category), []).append((label, category))
        return found

    old = loose(gone)
    return {
        keys[0]: old[name][0]
        for name, keys in loose(come).items()
        if len(keys) == 1 and len(old.get(name, ())) == 1
    }


def _change(before: Share | None, after: Share | None) -> Change:
    known = after or before
    if known is None:
        raise AssertionError("a change has at least one side")
    return Change(
        label=known.label,
        category=known.category,
        before=before.bytes if before else 0,
        after=after.bytes if after else 0,
        blocks_before=before.blocks if before else 0,
        blocks_after=after.blocks if after else 0,
    )


def _setting_changes(before: Trace, after: Trace) -> tuple[SettingChange, ...]:
    names = {field.name for field in fields(before.settings)} - NOT_COMPARED
    if "elastic" in {before.settings.rules, after.settings.rules}:
        names &= HEEDED
    return tuple(
        SettingChange(
            field.name,
            str(getattr(before.settings, field.name)),
            str(getattr(after.settings, field.name)),
        )
        for field in fields(before.settings)
        if field.name in names
        and getattr(before.settings, field.name) != getattr(after.settings, field.name)
    )
