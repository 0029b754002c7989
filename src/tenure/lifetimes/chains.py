"""Chains in the user's own names, and the heading that each puts its bytes under."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.edges import Torch, edges_of

if TYPE_CHECKING:
    from collections.abc import Iterable

Links = list[tuple[str, str, int]]  # kind, text, id of what the link leads to


class Heading(StrEnum):
    """Why bytes are live; each live byte is under exactly one."""

    PARAMETER = "parameters"
    BUFFER = "buffers"
    GRADIENT = "gradients"
    OPTIMIZER = "optimizer state"
    GRAPH = "autograd graph"
    CTX = "ctx attributes"
    HOOK = "hooks"
    EXCEPTION = "exceptions"
    CYCLE = "reference cycles"
    CONTAINER = "containers"
    VARIABLE = "variables"
    CLOSURE = "closures"
    LIBRARY = "libraries"
    OPERATION = "the running operation"
    UNKNOWN = "unknown"


_OWN = {
    "parameter": Heading.PARAMETER,
    "buffer": Heading.BUFFER,
    "grad": Heading.GRADIENT,
    "state": Heading.OPTIMIZER,
}
_CONTAINERS = frozenset({"list", "tuple", "dict", "set", "deque", "defaultdict", "OrderedDict"})


def heading_of(links: Links, hook_containers: frozenset[int] = frozenset()) -> Heading:
    """The heading of what a chain leads to.

    Args:
        links: From a root to the tensor.
        hook_containers: `id`s of containers that a hook fills.
    """
    kinds = [kind for kind, _, _ in links]
    if "exception" in kinds:
        return Heading.EXCEPTION
    if kinds[-1] in _OWN and "graph" not in kinds:
        return _OWN[kinds[-1]]
    if "hook" in kinds or any(key in hook_containers for _, _, key in links):
        return Heading.HOOK
    if "ctx" in kinds:
        return Heading.CTX
    if kinds[-1] == "leaf":
        return Heading.PARAMETER  # nothing else leads to a leaf that gradients are gathered for
    if "graph" in kinds:
        return Heading.GRAPH
    if kinds[0] == "operation":
        return Heading.OPERATION
    if kinds[0] == "library":
        return Heading.LIBRARY
    if kinds[-1] == "item" and "closure" not in kinds[-2:]:
        return Heading.CONTAINER
    return Heading.CLOSURE if "closure" in kinds else Heading.VARIABLE


def chain_text(links: Links, *, longest: int = 12) -> str:
    """The chain as one line; the middle of a long one is left out.

    Args:
        links: From a root to the tensor.
        longest: How many links are written.
    """
    texts = [f" -> {t}" if i and t.startswith("local ") else t for i, (_, t, _) in enumerate(links)]
    if len(texts) > longest:
        half = longest // 2
        left = len(texts) - longest
        texts = [*texts[:half], f" -> ... {left} more ...", *texts[-half:]]
    return "".join(texts)


def chain_key(links: Links) -> str:
    """The chain with every index made alike, and cut where the graph begins: `kept[*]`."""
    parts = []
    for kind, text, _ in links:
        if kind in {"graph", "saved", "leaf"}:
            break
        parts.append("[*]" if kind == "item" and text.startswith("[") else text)
    return "".join(parts)


def container_of(links: Links) -> int:
    """`id` of the container that the tensor, or what its graph hangs from, lies in; 0 if none."""
    before = 0
    for kind, _, key in links:
        if kind == "item":
            return before
        before = key
    return 0


def hook_containers(modules: Iterable[Any], torch: Torch) -> dict[int, str]:
    """Containers that a hook can fill: those in its closure, its arguments, its owner, its globals.

    Returns:
        `id` of the container -> the hook.
    """
    found: dict[int, str] = {}
    for module in modules:
        for kind, text, hook in edges_of(module, torch):
            if kind == "hook":
                for container in _containers_near(hook, torch):
                    found.setdefault(id(container), text.strip())
    return found


def _containers_near(hook: Any, torch: Torch) -> list[object]:
    near, level, seen = [], [hook], {id(hook)}
    for _ in range(4):  # hook -> method -> owner -> its dictionary -> list
        following = []
        for one in level:
            for kind, _, child in _hook_edges(one, torch):
                if id(child) in seen or kind in {"parameter", "buffer", "part", "hook"}:
                    continue
                seen.add(id(child))
                if type(child).__name__ in _CONTAINERS:
                    near.append(child)
                elif torch.kind(child) in {"tensor", "optimizer", "node"}:
                    continue
                following.append(child)
        level = following[:200]
    return near


def _hook_edges(value: Any, torch: Torch) -> Iterable[tuple[str, str, object]]:
    yield from edges_of(value, torch)
    code = getattr(type(value), "__code__", None) and value.__code__
    if code is not None:
        for name in code.co_names:
            item = value.__globals__.get(name)
            if type(item).__name__ in _CONTAINERS:
                yield "global", name, item
