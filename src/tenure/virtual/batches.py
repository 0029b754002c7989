"""The largest value of a script's own argument, such as its batch size, with which it fits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.cards import card_named
from tenure.errors import UsageError
from tenure.settings import AllocatorSettings, parse_alloc_conf
from tenure.units import format_bytes
from tenure.virtual.foretelling import largest_that_fits
from tenure.virtual.running import virtual_settings
from tenure.virtual.trials import Outcome, Trial, run_trials

MOST_RUNS = 24
_LARGEST = 1 << 24
_FARTHEST = 64  # times the largest that fits: what a script makes on the host is real
_BENT = 4  # rounds after which it should have been foretold
_BATCH = re.compile(r"(^|[-_.])(batch([-_]?size)?|bs|bsz)$")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_FORMS = (
    "name it as the script takes it: --batch, batch_size (for batch_size=8), the number of a "
    "positional argument, or an environment variable; give a first value as in --batch=8"
)


@dataclass(frozen=True)
class Argument:
    """Where a script takes a whole number from.

    Attributes:
        name: As the user named it.
        start: The value that is there.
        place: Index in the script's arguments; -1 for an environment variable.
        prefix: What stands before the value in that argument, such as `batch_size=`.
    """

    name: str
    start: int
    place: int
    prefix: str = ""

    @property
    def label(self) -> str:
        """As it is called in messages."""
        return f"argument {self.name}" if self.name.isdigit() else self.name

    def put(self, trial: Trial, value: int) -> Trial:
        """The trial with another value."""
        if self.place < 0:
            return replace(trial, environment={**trial.environment, self.name: str(value)})
        arguments = list(trial.arguments)
        arguments[self.place : self.place + 1] = [f"{self.prefix}{value}"]
        return replace(trial, arguments=tuple(arguments))


@dataclass(frozen=True)
class BatchSearch:
    """What a search found.

    Attributes:
        argument: What was varied.
        usable: Bytes of the card that tensors can use.
        tried: Each value's outcome.
        largest: The largest value with which it fits; None if none was found.
        notes: What limits the answer, in sentences.
    """

    argument: Argument
    usable: int
    tried: dict[int, Outcome]
    largest: int | None
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "argument": self.argument.name,
            "start": self.argument.start,
            "largest": self.largest,
            "tried": [
                {
                    "value": value,
                    "peak_allocated": outcome.allocated,
                    "peak_reserved": outcome.reserved,
                    "fits": outcome.fits,
                    "error": outcome.error,
                }
                for value, outcome in sorted(self.tried.items())
            ],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """The same for people."""
        name, usable = self.argument.label, format_bytes(self.usable)
        if self.largest is None:
            lines = [f"No value of {name} was found with which it fits in {usable}."]
        else:
            lines = [f"Largest {name} that fits in {usable}: {self.largest}"]
        lines.append(f"  {name[:14]:>14}  peak allocated  peak reserved  fits")
        for value, outcome in sorted(self.tried.items()):
            if outcome.error:
                lines.append(f"  {value:>14}  failed: {outcome.error[:56]}")
                continue
            sizes = format_bytes(outcome.allocated), format_bytes(outcome.reserved)
            fits = "yes" if outcome.fits else "no"
            if outcome.fits and outcome.reserved > self.usable:
                fits = "yes, tight"
            lines.append(f"  {value:>14}  {sizes[0]:>14}  {sizes[1]:>13}  {fits}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)]) + "\n"


def find_argument(
    name: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[Argument, tuple[str, ...]]:
    """Where the value of an argument stands, and the arguments to run with.

    Args:
        name: As the user named it; with `=8` after it, the first value to try.
        arguments: Of the script.
        environment: Where a variable may be.

    Raises:
        UsageError: It is not there, or has no whole number.
    """
    bare, _, given = name.partition("=")
    found = _among_arguments(bare, arguments)
    if found is None and bare.isdigit():
        found = _positional(bare, arguments)
    if found is None and bare in environment:
        found = -1, "", environment[bare]
    added = tuple(arguments)
    if found is None and given and bare == str(len(arguments) + 1):
        added = (*arguments, given)
        found = _positional(bare, added)
    if found is None and given and not bare.isdigit():
        if _VARIABLE.fullmatch(bare):
            found = -1, "", given
        else:
            added = (*arguments, *((bare, given) if bare.startswith("-") else (name,)))
            found = _among_arguments(bare, added)
    if found is None:
        had = " ".join(arguments) or "none"
        raise UsageError(f"{bare} is not among the script's arguments ({had}); {_FORMS}")
    place, prefix, text = found
    text = given or text
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{bare} has the value {text!r}, not a whole number above 0; {_FORMS}")
    return Argument(bare, int(text), place, prefix), added


def likely_batch(arguments: Sequence[str]) -> str:
    """The argument that is called a batch size and has a whole number; empty if none is."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if _BATCH.search(name.lower()):
            found = _among_arguments(name, arguments)
            if found is not None and found[2].isdigit():
                return name
    return ""


def _among_arguments(name: str, arguments: Sequence[str]) -> tuple[int, str, str] | None:
    """Index, what stands before the value there, and the value; the last one holds."""
    for index in reversed(range(len(arguments))):
        if arguments[index] == name and index + 1 < len(arguments):
            return index + 1, "", arguments[index + 1]
        if arguments[index].startswith(f"{name}="):
            return index, f"{name}=", arguments[index].partition("=")[2]
    return None


def _positional(name: str, arguments: Sequence[str]) -> tuple[int, str, str] | None:
    index = int(name) - 1  # as in sys.argv, where the script is number 0
    return (index, "", arguments[index]) if 0 <= index < len(arguments) else None


def find_batch(
    name: str,
    trial: Trial,
    usable: int,
    progress: Callable[[str, int, Outcome], None] = lambda _label, _value, _outcome: None,
) -> BatchSearch:
    """Runs the script with other values of an argument until the largest that fits is known.

    Args:
        name: The argument, as `find_argument` takes it.
        trial: The run to vary.
        usable: Bytes of the card that tensors can use.
        progress: Called with the argument's label, a value and its outcome.

    Raises:
        UsageError: There is no such argument.
    """
    argument, arguments = find_argument(name, trial.arguments, os.environ)
    trial = replace(trial, arguments=arguments, keeps_requests=True)

    def measure(values: list[int]) -> list[Outcome]:
        outcomes = run_trials([argument.put(trial, value) for value in values])
        for value, outcome in zip(values, outcomes, strict=True):
            progress(argument.label, value, outcome)
        return outcomes

    def settings(conf: str) -> AllocatorSettings:
        return virtual_settings(card_named(trial.gpu), conf, trial.torch_version)

    return search(argument, usable, measure, settings)


def search(
    argument: Argument,
    usable: int,
    measure: Callable[[list[int]], list[Outcome]],
    settings: Callable[[str], AllocatorSettings] = parse_alloc_conf,
) -> BatchSearch:
    """The search itself: foretells from two runs, and confirms the answer and the value after it.

    Args:
        argument: What is varied; its start is tried first.
        usable: Bytes of the card.
        measure: Runs values, two at a time at best.
        settings: The allocator's, from a conf.
    """
    tried: dict[int, Outcome] = {}
    notes: list[str] = []
    step = rounds = 1
    wanted = [argument.start, argument.start * 2]
    while wanted and len(tried) < MOST_RUNS:
        tried.update(zip(wanted, measure(wanted), strict=True))
        if step == 1 and any(tried[v].error for v in wanted) and not tried[argument.start].error:
            step = argument.start
            notes.append(
                f"the script fails with some values, so only multiples of {step} were tried"
            )
        if any(tried[v].error for v in wanted if v % argument.start == 0):
            break
        bracket = _bracket(tried, step)
        if bracket.is_answer:
            break
        if bracket.low and not bracket.high and _is_level(bracket.good):
            notes.append(
                f"memory does not grow with {argument.label}: is it what sets the size of a batch?"
            )
            break
        wanted = _next(bracket, _foretold(bracket, usable, settings), rounds)
        rounds += 1
    largest, more = _conclusion(tried, step)
    if len(tried) >= MOST_RUNS:
        more.append(f"stopped after {len(tried)} runs: larger values than the answer may fit")
    stopped = [o for o in tried.values() if o.stopped]
    if stopped:
        steps = max(o.traits.steps for o in stopped)
        more.append(f"each run ended after {steps} optimizer steps (--steps 0: whole runs)")
    return BatchSearch(argument, usable, tried, largest, (*notes, *more))


@dataclass(frozen=True)
class _Bracket:
    """What is known of the answer.

    Attributes:
        good: Outcomes of values that the script takes.
        low: The largest value that fits, below all that do not; 0 if there is none.
        high: The least above it that does not fit; 0 if there is none.
        step: Values are multiples of it.
    """

    good: dict[int, Outcome]
    low: int
    high: int
    step: int

    @property
    def is_answer(self) -> bool:
        """Whether nothing is left to try."""
        if self.high:
            return self.high - self.low <= self.step
        return self.low >= _LARGEST


def _bracket(tried: dict[int, Outcome], step: int) -> _Bracket:
    good = {v: o for v, o in tried.items() if not o.error}
    fitting = [v for v, o in good.items() if o.fits]
    failing = [v for v, o in good.items() if not o.fits]
    low = max((v for v in fitting if all(v < f for f in failing)), default=0)
    high = min((v for v in failing if v > low), default=0)
    return _Bracket(good, low, high, step)


def _next(bracket: _Bracket, guess: int, rounds: int) -> list[int]:
    """The values to run next, given the one that is foretold to be the answer."""
    low, high, step = bracket.low, bracket.high, bracket.step
    last = high - step if high else min(low * _FARTHEST, _LARGEST)
    guess = guess // step * step
    if high and rounds > _BENT:  # not as foretold: into three
        third = (high - low) // 3 // step * step
        pair = {low + max(third, step), high - max(third, step)}
    elif guess <= low:  # what was foretold is near: in longer and longer strides
        pair = {low + step, low + step * 4 ** max(rounds - 2, 0)}
    elif high and guess >= high - step:
        pair = {high - step, high - step * 4 ** max(rounds - 2, 0)}
    else:
        pair = {guess, guess + step} if guess < last else {last}
    pair = {min(max(value, low + step), last) for value in pair}
    return sorted(value for value in pair if value not in bracket.good)


def _foretold(bracket: _Bracket, usable: int, settings: Callable[[str], AllocatorSettings]) -> int:
    """The largest value that should fit, by the two nearest runs."""
    good = bracket.good
    nearest = sorted(sorted(good, key=lambda v: abs(good[v].allocated - usable))[:2])
    if len(nearest) == 2:
        runs = {v: found for v in nearest if (found := good[v].requests) is not None}
        if len(runs) == 2:
            bounds = bracket.low, bracket.high or bracket.low * _FARTHEST
            value = largest_that_fits(runs, settings(good[nearest[0]].conf), usable, bounds)
            if value is not None:
                return value
    return _on_a_line(good, usable)


def _on_a_line(good: dict[int, Outcome], usable: int) -> int:
    """The largest value that fits if memory is a straight line through the two nearest runs."""
    distinct = {good[value].allocated: value for value in sorted(good)}
    nearest = [distinct[size] for size in sorted(distinct, key=lambda s: abs(s - usable))[:2]]
    if len(nearest) < 2:
        return max(good, default=1) * 2
    low, high = sorted(nearest)
    rise = (good[high].allocated - good[low].allocated) / (high - low)
    if rise <= 0:
        return high * 2
    return int(low + (usable - good[low].allocated) / rise)


def _is_level(good: dict[int, Outcome]) -> bool:
    """Whether the largest value needs no more than one at most half as large, well apart."""
    largest = max(good)
    below = max((value for value in good if value <= largest // 2), default=0)
    apart = below and largest >= 4 * min(good)
    return bool(apart and good[below].allocated == good[largest].allocated)


def _conclusion(tried: dict[int, Outcome], step: int) -> tuple[int | None, list[str]]:
    good = {v: o for v, o in tried.items() if not o.error}
    fitting = sorted(v for v, o in good.items() if o.fits)
    failing = sorted(v for v, o in good.items() if not o.fits)
    notes = []
    assumed = sum(o.assumptions for o in good.values())
    if assumed:
        notes.append("some values that the script reads were assumed (run without --find-batch)")
    if not fitting:
        return None, notes
    largest = fitting[-1]
    below = [v for v in failing if v < largest]
    if below:
        notes.append(
            f"memory is not monotone in it: {largest} fits, but {', '.join(map(str, below))} "
            "did not; values between those tried may do either"
        )
    if largest + step not in tried and any(v > largest for v in failing):
        notes.append(f"{largest + step} was not tried")
    if not failing:
        notes.append(f"no value failed; larger ones than {largest} may fit")
    return largest, notes
