"""Whether a run fits, on which cards, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.cards import CARDS, Card
from tenure.replays import replay
from tenure.units import format_bytes
from tenure.virtual import hidden
from tenure.virtual.spread import peak_ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.traces import Trace
    from tenure.virtual.running import VirtualRun

# How far off peaks may be, as parts of them: allocated, reserved (docs/virtual.md).
_PLAIN, _GUESSED = (0.01, 0.04), (0.02, 0.05)


@dataclass(frozen=True)
class Fit:
    """One card's answer.

    Attributes:
        card: Which.
        fits: Whether the run would end without running out of memory.
        tight: Whether it only does by giving cached memory back on the way.
    """

    card: Card
    fits: bool
    tight: bool = False


@dataclass(frozen=True)
class Verdict:
    """The answer of a virtual run; all sizes in bytes.

    Attributes:
        card: On which it ran.
        fits: Whether no request failed there.
        message: Of the first request that failed, as PyTorch words it.
        failed_at: The line that made it.
        failures: How many requests failed; the script may have caught some.
        caught: Whether requests failed and the script ended well all the same.
        error: What else ended the script: its last line; empty if nothing did.
        error_at: The line of the script at which it ended.
        hint: Why, and what to try, where a virtual GPU is the reason.
        stopped: Whether it was ended after as many optimizer steps as were asked for.
        steps: Most steps that one optimizer made.
        confidence: "exact" where only rules confirmed to the byte were used, "modelled" with
            guesses within bars, "unknown" where operators or values are not known.
        allocated: Lowest and highest peak allocated, if what was assumed holds; None if it failed.
        reserved: The same of peak reserved.
        modelled: Operators whose temporaries are modelled, with how often each ran.
        unknown: Operators whose temporaries are not known, likewise.
        assumptions: Values that were assumed, with the line, and how often.
        decisive: Those of them by which the script may have decided what to do.
        cards: Every card's answer, smallest first.
    """

    card: Card
    fits: bool
    message: str
    failed_at: str
    failures: int
    caught: bool
    error: str
    error_at: str
    hint: str
    stopped: bool
    steps: int
    confidence: str
    allocated: tuple[int, int] | None
    reserved: tuple[int, int] | None
    modelled: dict[str, int]
    unknown: dict[str, int]
    assumptions: dict[str, int]
    decisive: frozenset[str]
    cards: tuple[Fit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "card": self.card.name,
            "total": self.card.total,
            "usable": self.card.usable,
            "fits": self.fits,
            "message": self.message,
            "failed_at": self.failed_at,
            "failures": self.failures,
            "caught": self.caught,
            "error": self.error,
            "error_at": self.error_at,
            "hint": self.hint,
            "stopped": self.stopped,
            "steps": self.steps,
            "confidence": self.confidence,
            "peak_allocated_range": list(self.allocated) if self.allocated else None,
            "peak_reserved_range": list(self.reserved) if self.reserved else None,
            "modelled": self.modelled,
            "unknown": self.unknown,
            "assumptions": self.assumptions,
            "decisive": sorted(self.decisive),
            "cards": [
                {"card": f.card.name, "usable": f.card.usable, "fits": f.fits, "tight": f.tight}
                for f in self.cards
            ],
        }

    def text(self) -> str:
        """The same for people."""
        lines = [f"{self.card.title}: {self._answer()} (virtual run)."]
        if self.failures:
            times = f" {self.failures:,} times, first" if self.failures > 1 else ""
            lines.append(f"  out of memory{times} at {self.failed_at}")
        if self.caught:
            lines.append("  the script caught the error and went on to its end")
        if self.error:
            lines.append(f"  it ended at {self.error_at or '?'} with {self.error}")
        if self.hint:
            lines.append(f"  {self.hint}")
        if self.stopped:
            lines.append(f"  ended after {self.steps} optimizer steps, as asked for")
        return "\n".join([*lines, self.basis(), *cards_text(self.cards)]) + "\n"

    def _answer(self) -> str:
        if self.failures:
            return "does NOT fit"
        if self.error:
            return "the script failed before its end; what it had asked for until then fits"
        if self.reserved and self.allocated and self.allocated[1] > self.card.usable:
            return "fits, but narrowly: the upper end of the range does not"
        return "fits"

    def basis(self) -> str:
        """What the figures rest on, for people."""
        words = {
            "exact": "Every temporary is modelled by a rule that recordings confirmed.",
            "modelled": "Some temporaries are guesses"
            + ("; the ranges hold for those tried." if self.allocated else "."),
            "unknown": "Some of what it rests on is not known:",
        }
        lines = [words[self.confidence]]
        if self.decisive:
            lines = ["It rests on assumptions by which the script may have decided what to do."]
            if self.allocated:
                lines[0] += " If they hold:"
        for name, span in (("allocated", self.allocated), ("reserved", self.reserved)):
            if span:
                low, high = map(format_bytes, span)
                lines.append(f"  peak {name}: between {low} and {high}")
        lines += [f"  unmodelled: {name} ({count:,} x)" for name, count in self.unknown.items()]
        for what, count in self.assumptions.items():
            use = "" if what in self.decisive else "; nothing was decided by it"
            lines.append(f"  assumed: {what} ({count:,} x){use}")
        return "\n".join(lines)


def cards_text(cards: tuple[Fit, ...]) -> list[str]:
    """The table of cards."""
    lines = ["  card (usable for tensors)"] if cards else []
    for fit in cards:
        answer = "yes, tight" if fit.tight else "yes" if fit.fits else "no"
        title = f"{fit.card.title} ({format_bytes(fit.card.usable)})"
        lines.append(f"    {title:<32}{answer}")
    return lines


def judge(run: VirtualRun, trace: Callable[[], Trace]) -> Verdict:
    """The answer of a run; the trace is asked for only where a card is a close call."""
    modelled = _modelled(run)
    guessed = bool(hidden.guessed() & set(modelled))
    peak = run.peak()
    allocated, reserved = _GUESSED if guessed else _PLAIN
    # Operators without a rule matter where what they may take reaches above the peak.
    beyond = max(run.reach - int(peak["allocated"] * (1 + allocated)), 0)
    failed = run.memory.failed
    sure = not beyond and not run.decisive and (failed or not run.error)
    spans: list[tuple[int, int] | None] = [None, None]
    if not failed and not run.error:  # what was assumed may still hold
        moved = peak_ranges(run.memory)
        # No less is reserved than is allocated.
        lowest = int(peak["allocated"] * min(1 - allocated, moved["allocated"][0]))
        spans = [
            (
                max(int(peak[name] * min(1 - bar, moved[name][0])), lowest),
                int(peak[name] * max(1 + bar, moved[name][1])) + beyond,
            )
            for name, bar in (("allocated", allocated), ("reserved", reserved))
        ]
    measured = run.memory.measured and not run.unmodelled
    confidence = "unknown" if not sure else "modelled" if guessed or not measured else "exact"
    return Verdict(
        card=run.memory.card,
        fits=not failed,
        message=failed,
        failed_at=run.memory.failed_at,
        failures=run.memory.failures,
        caught=bool(failed) and run.exit_code == 0,
        error="" if failed else run.error,
        error_at="" if failed else run.error_at,
        hint="" if failed else run.hint,
        stopped=run.stopped,
        steps=run.traits.steps,
        confidence=confidence,
        allocated=spans[0],
        reserved=spans[1],
        modelled=modelled,
        unknown=run.unmodelled,
        assumptions=run.assumptions,
        decisive=frozenset(run.decisive),
        cards=() if failed else fits_of(trace, peak["allocated"], peak["reserved"]),
    )


def _modelled(run: VirtualRun) -> dict[str, int]:
    """Counts of operators whose temporaries are modelled."""
    planned = set(hidden.modelled())
    counts: dict[str, int] = {}
    for overload, count in run.operators.items():
        name = overload.rsplit(".", 1)[0]
        if name in planned:
            counts[name] = counts.get(name, 0) + count
    return counts


def fits_of(trace: Callable[[], Trace], allocated: int, reserved: int) -> tuple[Fit, ...]:
    """Every card's answer, smallest first."""
    cards = sorted(CARDS, key=lambda card: card.usable)
    return tuple(fit_of(card, trace, allocated, reserved) for card in cards)


def fit_of(card: Card, trace: Callable[[], Trace], allocated: int, reserved: int) -> Fit:
    """One card's answer; in doubt, the requests are replayed under the card's memory."""
    if reserved <= card.usable:
        return Fit(card, fits=True)
    if allocated > card.usable:
        return Fit(card, fits=False)
    fits = replay(trace(), capacity=card.usable).statistics["num_ooms"] == 0
    return Fit(card, fits=fits, tight=fits)
