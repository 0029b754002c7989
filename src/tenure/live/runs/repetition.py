"""Whether steps repeat what was recorded: what repeats need not be recorded again.

Recording costs a host-bound step more than a few hundredths. But a training step asks the allocator
for the same bytes in the same order as the one before, and the allocator counts what it is asked
for whether or not it is recorded. So recording rests while each step's counts are those of a step
that was recorded, and goes on when something rises above all before it, or when steps differ again
and again: a single one, such as a shorter last batch, shows nothing that a higher one did not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenure.live.runs.counting import Counters

FIRST = 4  # steps that are always recorded: three are watched, one is not disturbed by that
AGAIN = 2  # whole steps that are recorded when recording begins again; twice as many each time
NEARBY = 8  # steps within which a second one that differs shows that they do so again
MORE = 1.01  # times the highest peak: a step that needs so much is waited for, to be recorded ...
PATIENCE = 64  # ... for so many steps
LONGEST = 4096  # steps between two tries to see again what is rare
KINDS = 4096  # of steps, that are remembered
SPANS = 3  # of recorded steps, that are told one by one


@dataclass(frozen=True)
class Kind:
    """What a step asked of one device's allocator; equal for steps that repeat each other.

    Attributes:
        device: Its index.
        allocations: Made in the step.
        asked: Bytes of them, as requested.
        frees: Made in the step; whether the device was done with them by its end depends on luck.
    """

    device: int
    allocations: int
    asked: int
    frees: int


class Repetition:
    """Told of each step's end, says whether the next step is to be recorded.

    Attributes:
        recording: Whether that which now runs is.
        news: Whether what has been recorded since recording last began shows anything new.
        repeated: Steps that were not recorded and were of a recorded kind.
        different: Those that were of none, and not recorded from their beginning.
        risen: Those that used more than any before, likewise.
        grown: Steps since the first rest at whose end more was live than ever before.
    """

    def __init__(self, may_rest: Callable[[], bool] = lambda: True) -> None:
        """Recording is on.

        Args:
            may_rest: Asked before recording is to rest.
        """
        self.recording = self.news = True
        self.repeated = self.different = self.risen = self.grown = 0
        self._may_rest = may_rest
        self._recorded: set[tuple[Kind, ...]] = set()
        self._seen: set[tuple[Kind, ...]] = set()
        self._last: dict[int, Counters] = {}
        self._highest: dict[int, tuple[int, ...]] = {}
        self._whole = 0  # steps recorded from end to end since recording last began
        self._fewest = FIRST
        self._gap = AGAIN
        self._next_try = 0
        self._spans: list[tuple[int, int]] = []
        self._learned = False
        self._odd = -NEARBY  # the last step of no recorded kind
        self._rises = 0  # steps since the first rest that used more than any before
        self._awaited: tuple[Kind, ...] | None = None  # the kind with the highest peak, if missed
        self._until = 0  # the step to which it is waited for

    def ended(self, number: int, counted: Iterable[Counters]) -> bool:
        """A step has ended: whether the next one is to be recorded.

        Args:
            number: The step's, from 1.
            counted: Every device's counters now.
        """
        before = self._peak
        kind, rises, grows = self._compare(list(counted))
        if self._spans:
            self._rises += rises
            self.grown += grows
        unseen = kind not in self._seen
        known = kind in self._recorded
        if len(self._seen) < KINDS:
            self._seen.add(kind)
        if not self.recording:
            again = not known and number - self._odd <= NEARBY and number >= self._next_try
            self._count(number, known=known, rises=rises)
            if self._peak > MORE * before:
                self._awaited, self._until = kind, number + PATIENCE
            if rises or again:
                # What rises now and then is recorded for ever longer, until it is seen to rise.
                twice = min(self._rises - 1, LONGEST.bit_length()) if rises else 0
                self._begin_again(whole=0, fewest=AGAIN << twice)
            return self.recording
        self._whole += 1
        self.news |= rises or (unseen if not self._whole else not known)
        if not self._whole:
            self._count(number, known=known, rises=rises)
        elif not known and len(self._recorded) < KINDS:
            self._recorded.add(kind)
            self._learned = True
        waits = self._awaited not in self._recorded and number < self._until
        settled = known and not rises and not waits and self._whole >= self._fewest
        if settled and self._may_rest():
            self._rest(number)
        return self.recording

    @property
    def _peak(self) -> int:
        return sum(levels[1] for levels in self._highest.values())

    @property
    def settling(self) -> bool:
        """Whether so few steps were recorded since it last began that they must all be."""
        return self._whole < min(self._fewest, FIRST)

    def overdue(self) -> None:
        """No step has ended for long: what goes on in its place is recorded from here on."""
        self._begin_again(whole=-1, fewest=AGAIN)

    def told(self, count: int) -> str:
        """In words, which of a run's steps were recorded; "" if all.

        Args:
            count: Steps that were made.
        """
        spans = list(self._spans)
        if self.recording and self._spans and self._whole > 0:
            spans.append((count - self._whole + 1, count))
        if not self.repeated + self.different + self.risen:
            return ""
        shown = [f"{a:,} to {b:,}" if a < b else f"{a:,}" for a, b in spans[:SPANS]]
        if len(spans) > SPANS:
            shown.append(f"{len(spans) - SPANS:,} more times a few")
        text = (
            f"Recorded: steps {' and '.join(shown)}. {self.repeated:,} others asked for exactly "
            "what a recorded one did, by the allocator's counters, and were not recorded again"
        )
        if self.different:
            text += f"; {self.different:,} did not, but used no more than one before them"
        if self.risen:
            text += f"; {self.risen:,} used more than any before: what came next was recorded"
        return text + "."

    def _compare(self, counted: list[Counters]) -> tuple[tuple[Kind, ...], bool, bool]:
        """The step's kind; whether anything is higher than ever; whether what lives is."""
        kinds, rises, grows = [], False, False
        for now in counted:
            last = self._last.get(now.device)
            before = (last.allocations, last.asked, last.frees) if last else (0, 0, 0)
            kinds.append(
                Kind(
                    now.device,
                    now.allocations - before[0],
                    now.asked - before[1],
                    now.frees - before[2],
                )
            )
            levels = (now.allocated, now.peak_allocated, now.reserved, now.failures)
            highest = self._highest.get(now.device, (0, 0, 0, 0))
            grows |= levels[0] > highest[0]
            rises |= any(a > b for a, b in zip(levels, highest, strict=True))
            self._highest[now.device] = tuple(map(max, levels, highest))
            self._last[now.device] = now
        return tuple(kinds), rises, grows

    def _count(self, number: int, *, known: bool, rises: bool) -> None:
        """A step that was not recorded, or not from its beginning."""
        if rises:
            self.risen += 1
        elif known:
            self.repeated += 1
        else:
            self.different += 1
            self._odd = number

    def _begin_again(self, *, whole: int, fewest: int) -> None:
        self.recording, self.news, self._learned = True, False, False
        self._whole, self._fewest = whole, fewest

    def _rest(self, number: int) -> None:
        """What is rare, and was not caught, is waited for ever more seldom."""
        self._gap = AGAIN if self._learned else min(self._gap * 2, LONGEST)
        self._next_try = number + self._gap
        self._spans.append((number - self._whole + 1, number))
        self.recording = False
