"""Advice checked by running again: each change that applies is made, and what it gains measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tenure.units import format_bytes
from tenure.virtual.batches import find_argument
from tenure.virtual.changes import CHANGES, Change, took_effect
from tenure.virtual.trials import Outcome, Trial, run_trials

BUDGET = 120.0  # seconds for all runs together, where nobody asked for them
_WHOLE_GAIN = 0.001  # of the peak; less is no gain worth a line of advice


@dataclass(frozen=True)
class Measured:
    """A change, and the run in which it was made.

    Attributes:
        name: Of the change.
        text: What to do.
        price: What it costs.
        outcome: Of the run.
        effective: Whether the run shows the change.
    """

    name: str
    text: str
    price: str
    outcome: Outcome
    effective: bool


@dataclass(frozen=True)
class Advised:
    """What was tried; sizes in bytes.

    Attributes:
        usable: Bytes of the card that tensors can use.
        before: The run as it is, without a limit.
        measured: Each change that was tried.
        left_out: Changes for which there was no time.
        seconds: How long all runs took.
    """

    usable: int
    before: Outcome
    measured: tuple[Measured, ...]
    left_out: tuple[str, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "before": {**_sizes(self.before), "cards": self.before.cards},
            "changes": [
                {
                    "change": m.name,
                    "text": m.text,
                    "price": m.price,
                    "took_effect": m.effective,
                    **_sizes(m.outcome),
                }
                for m in self.measured
            ],
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 1),
        }

    def text(self) -> str:
        """The same for people: what makes it fit first, then what saves most."""
        lines = [f"Tried by running again ({len(self.measured) + 1} runs, {self.seconds:.0f} s):"]
        lines.append("  peak allocated  peak reserved  fits  change")
        lines.append(_row(self.before, "as it is"))
        if self.before.error:
            lines.append(f"      the run as it is failed: {self.before.error}")
        for m in sorted(self.measured, key=lambda m: (not m.effective, m.outcome.allocated)):
            if m.outcome.error:
                lines.append(f"  {m.text}: the run failed: {m.outcome.error}")
            elif not m.effective:
                lines.append(f"  {m.text}: did not take effect here")
            elif m.outcome.allocated > self.before.allocated * (1 - _WHOLE_GAIN):
                lines.append(f"  {m.text}: gains nothing")
            else:
                lines.append(_row(m.outcome, f"{m.text} (costs: {m.price})"))
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.append(f"  not tried for lack of time: {names} (--advise takes its time)")
        smallest = next((name for name, fits in self.before.cards.items() if fits != "no"), "")
        if smallest and not self.before.fits:
            lines.append(f"  as it is, the smallest card here that it fits: {smallest}")
        if self.before.stopped:
            steps = self.before.traits.steps
            lines.append(f"  each run ended after {steps} optimizer steps")
        return "\n".join(lines) + "\n"


def advise(
    trial: Trial,
    usable: int,
    *,
    batch: str = "",
    budget: float | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Advised:
    """Runs the script as it is, then with each change that applies to what it does.

    Args:
        trial: The run as it is.
        usable: Bytes of the card that tensors can use.
        batch: The argument that sets the batch size, to try half of it; empty if not known.
        budget: Seconds after which no further run is begun; None for no end.
        progress: Called with a word on what comes.

    Raises:
        UsageError: A virtual GPU cannot be had here.
    """
    begun = time.monotonic()
    progress("running again without a limit")
    (before,) = run_trials([trial], budget)
    chosen = [] if before.error else [c for c in CHANGES if c.applies(before.traits)]
    trials = [replace(trial, change=change.name) for change in chosen]
    half = _halved(trial, batch) if batch and not before.error else None
    if half is not None:
        chosen.insert(0, _accumulation(batch))
        trials.insert(0, half)
    measured: list[Measured] = []
    together = 2
    for first in range(0, len(trials), together):
        spent = time.monotonic() - begun
        if budget is not None and spent + before.seconds > budget:
            break
        batch_of = chosen[first : first + together]
        progress("trying " + " and ".join(change.name for change in batch_of))
        left = None if budget is None else budget - spent
        outcomes = run_trials(trials[first : first + together], left)
        measured += [_measured(c, before, o) for c, o in zip(batch_of, outcomes, strict=True)]
    left_out = tuple(change.name for change in chosen[len(measured) :])
    return Advised(usable, before, tuple(measured), left_out, time.monotonic() - begun)


def _measured(change: Change, before: Outcome, outcome: Outcome) -> Measured:
    effective = change.name == "accumulation" or took_effect(
        change.name, before.traits, outcome.traits
    )
    return Measured(change.name, change.text, change.price, outcome, effective)


def _accumulation(batch: str) -> Change:
    return Change(
        "accumulation",
        f"half the {batch}, gradients accumulated over two",
        "twice as many smaller passes",
        lambda _traits: True,
    )


def _halved(trial: Trial, batch: str) -> Trial | None:
    """The trial with half the batch; None if it is 1."""
    argument, arguments = find_argument(batch, trial.arguments, os.environ)
    if argument.start < 2:
        return None
    return argument.put(replace(trial, arguments=arguments), argument.start // 2)


def _sizes(outcome: Outcome) -> dict[str, Any]:
    return {
        "peak_allocated": outcome.allocated,
        "peak_reserved": outcome.reserved,
        "fits": outcome.fits,
        "error": outcome.error,
    }


def _row(outcome: Outcome, text: str) -> str:
    sizes = format_bytes(outcome.allocated), format_bytes(outcome.reserved)
    return f"  {sizes[0]:>14}  {sizes[1]:>13}  {'yes' if outcome.fits else 'no':<4}  {text}"
