"""Tensors that nothing reaches any more: the shortest cycle that keeps them."""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from tenure.lifetimes.edges import SKIPPED, Torch, edges_of
from tenure.lifetimes.sources import is_own

_WIDTH = 64  # objects of one distance from the tensors that are looked at
_LEVELS = 9  # how far from the tensors: tensor <- dict <- module <- dict <- module <- cell ...
_NODES = 1500  # objects followed from each


@dataclass(frozen=True)
class Cycle:
    """A reference cycle.

    Attributes:
        text: The cycle, by the names of its links.
        through_graph: Whether it runs through autograd's graph, where Python's collector is blind.
        members: Types on it.
    """

    text: str
    through_graph: bool
    members: tuple[str, ...]


def find_cycles(
    lost: list[Any], reached: dict[int, Any], torch: Torch, deadline: float
) -> dict[int, Cycle]:
    """The cycles that keep tensors which no root reaches.

    Args:
        lost: The tensors, largest first.
        reached: `id`s of what lives for another reason.
        torch: The classes of torch.
        deadline: When to stop, on this thread's clock.

    Returns:
        `id` of a tensor -> a cycle on which it lies, or which leads to it.
    """
    found: dict[int, Cycle] = {}
    waiting = {id(tensor) for tensor in lost}
    seen = set(waiting)
    level: list[object] = list(lost[:_WIDTH])
    for _ in range(_LEVELS):
        for start in level:
            if time.thread_time() > deadline or not waiting:
                return found
            cycle = None if _is_container(start) else _around(start, reached, torch)
            if cycle is not None:
                kept = _kept_by(start, reached, torch) & waiting
                found.update(dict.fromkeys(kept, cycle))
                waiting -= kept
        if not waiting:
            return found
        level = _referrers(level, seen, reached, lost)
    return found


def _referrers(
    level: list[object], seen: set[int], reached: dict[int, Any], lost: list[Any]
) -> list[object]:
    """What refers to the objects of a level and is reached from no root."""
    own = {id(level), id(lost)}
    following: list[object] = []
    for one in gc.get_referrers(*level):
        if id(one) in seen or id(one) in own or id(one) in reached or type(one) is ModuleType:
            continue
        if type(one) is FrameType and is_own(one.f_code.co_filename):
            continue
        seen.add(id(one))
        following.append(one)
    return following[:_WIDTH]


def _kept_by(start: object, reached: dict[int, Any], torch: Torch) -> set[int]:
    """`id`s of tensors that are reached from an object, and not otherwise."""
    tensors, seen = set(), {id(start)}
    level: list[object] = [start]
    while level and len(seen) < _NODES * 4:
        following = []
        for one in level:
            if torch.kind(one) == "tensor":
                tensors.add(id(one))
            for _, _, child in edges_of(one, torch):
                if type(child) in SKIPPED or id(child) in seen or id(child) in reached:
                    continue
                seen.add(id(child))
                following.append(child)
        level = following
    return tensors


def _is_container(value: object) -> bool:
    return type(value).__name__ in {"dict", "cell", "tuple", "list"}


def _around(start: object, reached: dict[int, Any], torch: Torch) -> Cycle | None:
    came: dict[int, tuple[int, str, str, str]] = {}
    queue: deque[object] = deque([start])
    kept: list[object] = []  # so that no id is used twice while we look
    while queue and len(came) < _NODES:
        one = queue.popleft()
        for kind, text, child in edges_of(one, torch):
            if child is start:
                return _cycle(start, id(one), (kind, text), came)
            key = id(child)
            if type(child) in SKIPPED or key in came or key in reached:
                continue
            came[key] = (id(one), kind, text, type(child).__name__)
            kept.append(child)
            queue.append(child)
    return None


def _cycle(
    start: object, last: int, closing: tuple[str, str], came: dict[int, tuple[int, str, str, str]]
) -> Cycle:
    kinds, texts, members = [closing[0]], [closing[1]], [type(start).__name__]
    while last != id(start):
        last, kind, text, member = came[last]
        kinds.append(kind)
        texts.append(text)
        members.append(member)
    text = type(start).__name__ + "".join(texts[::-1]) + " = itself"
    graph = any(kind in {"graph", "leaf", "saved"} for kind in kinds)
    return Cycle(text, graph, tuple(dict.fromkeys(members)))


def gradient_cycle(parameter: Any, torch: Torch) -> Cycle | None:
    """The cycle of a gradient that was made with create_graph and leads back to its parameter."""
    grad = parameter.grad if parameter.is_leaf else None
    if grad is None or grad.grad_fn is None:
        return None
    return _around(parameter, {}, torch)
