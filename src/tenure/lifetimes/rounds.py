"""The trace cut into its repetitions: training steps, or what else a loop does again and again.

Optimizer annotations name steps where there are any. Elsewhere (inference, generation, evaluation,
a hand-written update) a loop shows by itself: some kind of allocation happens once in each round,
and what happens between two of them resembles what happens between the next two. Such an
allocation is an anchor. The rounds are those of the anchor that explains most of the trace; of
equally good ones, the anchor with most rounds, so that a step is found and not an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.lifetimes.codes import allocation_codes
from tenure.lifetimes.sites import site_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes.steps import Steps
    from tenure.traces import Frame, Trace

    Ints = NDArray[np.int64]

FEWEST = 4  # occurrences of an anchor; three rounds tell little, but more than none
LOOKED_AT = 60_000  # allocations, in the middle of a long trace, among which anchors are sought
MOST_PER_ROUND = 8  # requests of one line, to be looked at as the top of the loop
MOST_CODES = 2_000  # kinds of allocations that are looked at as anchors
CANDIDATES = 24  # anchors that are compared in full
ALIKE = 0.5  # of two rounds' allocations, from which on they count as alike
NEARLY_AS_GOOD = 0.95  # of the best anchor's score
GOOD = 0.8  # the same for one outside a model's forward pass: it stands for the loop over steps
LEAST_SCORE = 0.2  # of the allocations, that alike rounds must cover


@dataclass(frozen=True)
class Rounds:
    """Repetitions, in order; each covers the events begin[i] <= e < end[i].

    Attributes:
        begin: First event of each.
        end: Behind its last event.
        per: "step" where an optimizer names them, else "repetition".
        frame: Where the loop is, as far as the stacks have that in common; None if unknown.
        inside_module: The loop runs over the layers of a model, within one forward pass.
    """

    begin: Ints
    end: Ints
    per: str
    frame: Frame | None = None
    inside_module: bool = False

    def __len__(self) -> int:
        """Number of rounds."""
        return len(self.begin)

    @property
    def first_number(self) -> int:
        """What people call the first of them: what comes before the first step's end is step 1."""
        return 2 if self.per == "step" else 1

    @property
    def last_number(self) -> int:
        """What people call the last of them."""
        return self.first_number + len(self) - 1


def find_rounds(trace: Trace, steps: Steps | None) -> Rounds | None:
    """The repetitions of a trace, or None if it shows none.

    Args:
        trace: The trace.
        steps: Its optimizer steps, if it names them.
    """
    if steps is not None and len(steps) > FEWEST:
        return Rounds(steps.end[:-1], steps.end[1:], "step")
    return _repetitions(trace)


def _repetitions(trace: Trace) -> Rounds | None:
    allocations = trace.allocations
    made = np.flatnonzero(allocations.born >= 0)
    if len(made) < FEWEST:
        return None
    code = allocation_codes(trace)[made]
    inside_module = _module_codes(trace, code, made)
    at = _anchor_positions(code, inside_module)
    if at is None:
        return None
    at = _top_of_loop(trace, code, made, at, inside_module)
    born = allocations.born[made]
    usual = int(np.median(np.diff(at)))
    stop = min(int(at[-1]) + usual, len(made))
    last = int(born[stop]) if stop < len(made) else len(trace.events)
    begin = born[at]
    frame, layers = _loop_frame(trace, np.unique(allocations.stack[made[at[0] : stop]]))
    return Rounds(begin, np.append(begin[1:], last), "repetition", frame, layers)


def _top_of_loop(
    trace: Trace, code: Ints, made: Ints, at: Ints, inside_module: NDArray[np.bool_]
) -> Ints:
    """Another anchor that occurs as often, from the lowest line: a loop begins at its top."""
    tried = []
    count = np.bincount(code, minlength=len(inside_module))
    often = (count >= len(at)) & (count <= MOST_PER_ROUND * len(at))
    for other in np.flatnonzero(~inside_module & often).tolist():
        first = _firsts(code, other)
        stack = int(trace.allocations.stack[made[first[0]]])
        user = site_of(trace.stacks.frames(stack)).user
        if user is not None and len(first) == len(at):
            tried.append((user.line, int(first[0]), first))
    return min(tried, key=lambda t: t[:2])[2] if tried else at


def _module_codes(trace: Trace, code: Ints, made: Ints) -> NDArray[np.bool_]:
    """For each code, whether its requests come from within the forward pass of a module."""
    found = np.zeros(int(code.max()) + 1, bool)
    _, first = np.unique(code, return_index=True)
    for i in first.tolist():
        frames = trace.stacks.frames(int(trace.allocations.stack[made[i]]))
        found[code[i]] = any(_is_module_call(frame) for frame in frames)
    return found


def _anchor_positions(code: Ints, inside_module: NDArray[np.bool_]) -> Ints | None:
    """Where the rounds begin in a sequence of codes; None if it does not repeat itself."""
    middle = code[_middle(len(code))]
    scored = [(_score(middle, at), anchor, len(at)) for anchor, at in _candidates(middle)]
    best = max((score for score, *_ in scored), default=0.0)
    if best < LEAST_SCORE:
        return None
    outside = [(n, a) for score, a, n in scored if score >= GOOD * best and not inside_module[a]]
    good = outside or [(n, a) for score, a, n in scored if score >= NEARLY_AS_GOOD * best]
    return _firsts(code, max(good)[1])


def _middle(count: int) -> slice:
    first = max((count - LOOKED_AT) // 2, 0)
    return slice(first, first + LOOKED_AT)


def _firsts(code: Ints, anchor: int) -> Ints:
    """Where an anchor occurs; of occurrences close together, as in a row of equals, the first."""
    at = np.flatnonzero(code == anchor)
    gap = np.diff(at)
    if not len(gap):
        return at
    usual = float((gap * gap).sum()) / float(gap.sum())  # the gap that most of the sequence is in
    return np.asarray(at[np.append(True, gap >= usual / 2)])


def _candidates(code: Ints) -> list[tuple[int, Ints]]:
    """Anchors that come back at even intervals; of each number of occurrences the most even.

    Returns:
        Pairs of a code and where it occurs.
    """
    count = np.bincount(code)
    order = np.argsort(code, kind="stable")
    begin = np.cumsum(count) - count
    frequent = np.flatnonzero(count >= FEWEST)
    gap = np.diff(order).astype(float)
    found: dict[int, tuple[float, int, Ints]] = {}
    if len(frequent) > MOST_CODES:  # the rarest of them: a step has more layers than losses
        frequent = frequent[np.argsort(count[frequent], kind="stable")[:MOST_CODES]]
    for anchor in frequent.tolist():
        at = order[begin[anchor] : begin[anchor] + count[anchor]]
        mine = gap[begin[anchor] : begin[anchor] + count[anchor] - 1]
        at = at[np.append(True, mine >= (mine @ mine) / mine.sum() / 2)]
        if len(at) < FEWEST:
            continue
        between = np.diff(at)
        uneven = float(between.std() / between.mean())
        worth = float(at[-1] - at[0] + between.mean()) / len(code) / (1 + uneven)
        if worth > found.get(len(at), (0.0, 0, at))[0]:
            found[len(at)] = (worth, anchor, at)
    best = sorted(found.values(), key=lambda f: -f[0])[:CANDIDATES]
    return [(anchor, at) for _, anchor, at in best]


def _score(code: Ints, at: Ints) -> float:
    """Share of the sequence in rounds like the round before or after, weighted by likeness."""
    usual = int(np.median(np.diff(at)))
    stop = min(int(at[-1]) + max(usual, 1), len(code))
    piece = np.searchsorted(at, np.arange(at[0], stop), "right") - 1
    keys, amount = np.unique(code[at[0] : stop] * len(at) + piece, return_counts=True)
    length = np.bincount(piece, minlength=len(at))
    follows = (np.diff(keys) == 1) & (keys[1:] // len(at) == keys[:-1] // len(at))
    first = keys[:-1][follows] % len(at)
    shared = np.minimum(amount[:-1][follows], amount[1:][follows])
    both = np.bincount(first, weights=shared, minlength=len(at))[:-1]
    likeness = both / np.maximum(length[:-1] + length[1:] - both, 1)
    # Rounds of one length in a row of different sizes: a batch that varies, without stacks.
    likeness = np.maximum(likeness, np.where(_equal_lengths(length), 0.8, 0))
    likeness = np.where(likeness >= ALIKE, likeness, 0)
    beside = np.maximum(np.append(likeness, 0), np.append(0, likeness))
    return float((length * beside).sum() / len(code))


def _equal_lengths(length: Ints) -> NDArray[np.bool_]:
    return np.asarray((length[:-1] == length[1:]) & (length[1:] >= 4))


def _loop_frame(trace: Trace, stacks: NDArray[np.int32]) -> tuple[Frame | None, bool]:
    """The innermost function that all stacks of the rounds go through, and whether it is a model's.

    Returns:
        Its frame, and True if that function is the forward of a module: then the loop runs over
        layers and not over steps.
    """
    paths = [trace.stacks.frames(int(stack))[::-1] for stack in stacks if stack >= 0]
    if not paths:
        return None, False
    shared = 0
    while all(len(p) > shared and p[shared] == paths[0][shared] for p in paths):
        shared += 1
    # One level further the lines differ; the function may still be the same.
    here = [(p[shared].file, p[shared].name) for p in paths if len(p) > shared]
    if len(here) == len(paths) and len(set(here)) == 1:
        shared += 1
    if not shared:
        return None, False
    path = paths[0][:shared]
    return path[-1], any(_is_module_call(frame) for frame in path)


def _is_module_call(frame: Frame) -> bool:
    return frame.name == "_call_impl" and frame.file.endswith("nn/modules/module.py")
