"""Budgets such as `live>+5%`: conditions under which a comparison fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.errors import UsageError
from tenure.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenure.diagnoses.comparing import Change, Comparison

FORM = "write it as live>+5%, reserved>20GiB, category:gradients>+100MiB or site:model.py:40>1GiB"
_EXPRESSION = re.compile(r"\s*(?P<what>[^<>=]+?)\s*(?P<sign>>=?)\s*(?P<limit>[^<>=]+?)\s*")
_PERCENT = re.compile(r"\+\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*%")

# Name -> bytes of the two snapshots.
_COUNTS: dict[str, Callable[[Comparison], tuple[int, int]]] = {
    "live": lambda c: (c.before.peak.allocated, c.after.peak.allocated),
    "peak": lambda c: (c.before.peak.allocated, c.after.peak.allocated),
    "reserved": lambda c: (c.before.peak.reserved, c.after.peak.reserved),
    "active": lambda c: (c.before.peak.active, c.after.peak.active),
    "requested": lambda c: (c.before.peak.requested, c.after.peak.requested),
    "end.live": lambda c: (c.before.end.allocated, c.after.end.allocated),
    "end.reserved": lambda c: (c.before.end.reserved, c.after.end.reserved),
    "tensors": lambda c: _sum(x for x in c.by_category if x.category != "workspace"),
}


@dataclass(frozen=True)
class Budget:
    """A condition that must not hold, as `read_budget` understood it.

    Attributes:
        text: As written.
        what: A count, `category:NAME` or `site:TEXT`.
        strict: Whether the limit itself is allowed (`>`) or not (`>=`).
        growth: Whether the limit is meant relative to the first snapshot.
        share: Allowed growth as a share of it; None for bytes.
        bytes: Allowed bytes, or allowed growth in bytes; None for a share.
    """

    text: str
    what: str
    strict: bool
    growth: bool
    share: float | None
    bytes: int | None


@dataclass(frozen=True)
class Verdict:
    """A budget, checked.

    Attributes:
        budget: What was asked.
        before: Bytes of the first snapshot.
        after: Bytes of the second.
        limit: Most bytes that were allowed.
        broken: Whether the second has more.
    """

    budget: Budget
    before: int
    after: int
    limit: int
    broken: bool


def read_budget(text: str) -> Budget:
    """Reads an expression such as `live>+5%`.

    Raises:
        UsageError: It is none; the message says what is wrong and how to write it.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no budget; {FORM}")
    what, limit = match["what"], match["limit"]
    kind, _, name = what.partition(":")
    if what not in _COUNTS and not (kind in {"category", "site"} and name.strip()):
        known = ", ".join([*_COUNTS, "category:NAME", "site:TEXT"])
        raise UsageError(f"{text!r}: {what!r} is not one of {known}")
    percent = _PERCENT.fullmatch(limit)
    strict = match["sign"] == ">"
    if percent:
        return Budget(text, what, strict, True, float(percent["number"]) / 100, None)
    if "%" in limit:
        raise UsageError(f"{text!r}: {limit!r} needs a sign, as in +5%: growth is what is limited")
    growth = limit.startswith("+")
    try:
        size = parse_size(limit.removeprefix("+"))
    except UsageError as error:
        raise UsageError(f"{text!r}: {error}; {FORM}") from None
    return Budget(text, what, strict, growth, None, size)


def check(budget: Budget, comparison: Comparison) -> Verdict:
    """Whether the second snapshot keeps within a budget.

    Raises:
        UsageError: The budget is about a line or category that neither snapshot has.
    """
    before, after = _bytes_of(budget, comparison)
    limit = budget.bytes or 0
    if budget.share is not None:
        limit = before + int(before * budget.share)
    elif budget.growth:
        limit = before + (budget.bytes or 0)
    broken = after > limit if budget.strict else after >= limit
    return Verdict(budget, before, after, limit, broken)


def _bytes_of(budget: Budget, comparison: Comparison) -> tuple[int, int]:
    if budget.what in _COUNTS:
        return _COUNTS[budget.what](comparison)
    kind, _, name = budget.what.partition(":")
    name = name.strip()
    if kind == "category":
        found = [c for c in comparison.by_category if c.category == name.replace("_", " ")]
        known = ", ".join(sorted({c.category for c in comparison.by_category}))
        if not found:
            raise UsageError(
                f"{budget.text!r}: no category {name!r} in either file; there is {known}"
            )
        return _sum(found)
    lines = [c for c in comparison.by_site if name in c.label]
    if not lines:
        raise UsageError(f"{budget.text!r}: no line with {name!r} in either file")
    return _sum(lines)


def _sum(changes: Iterable[Change]) -> tuple[int, int]:
    chosen = list(changes)
    return sum(c.before for c in chosen), sum(c.after for c in chosen)
