"""What autograd holds: nodes, what they saved, and what was put on a ctx. Runs no hook."""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Type of a node -> its attributes that hold saved tensors: (attribute, name as PyTorch calls it).
_SAVED: dict[type, tuple[tuple[str, str], ...]] = {}


def node_name(node: object) -> str:
    """The name PyTorch prints for a node, such as `MulBackward0`."""
    return type(node).__name__


def own_dict(value: object) -> dict[str, Any] | None:
    """An object's own `__dict__`, fetched without running a property or `__getattr__`."""
    for cls in type(value).__mro__:
        found = cls.__dict__.get("__dict__")
        if found is not None:
            if not isinstance(found, (GetSetDescriptorType, MemberDescriptorType)):
                return None
            try:
                attributes = found.__get__(value)
            except (AttributeError, TypeError):
                return None
            return attributes if type(attributes) is dict else None
    return None


def graph_edges(node: Any) -> Iterator[tuple[str, str, object]]:
    """What a node of the autograd graph holds, as (kind, text, object).

    Saved tensors are read as they lie, so that no unpack hook runs; those released by a backward
    pass are gone and do not come.
    """
    attributes = own_dict(node)
    if attributes:  # a custom Function's ctx
        for name, value in list(attributes.items()):
            yield "ctx", f".{name} (set on ctx)", value
    for attribute, name in _saved_attributes(type(node)):
        for value in _raw(node, attribute):
            yield "saved", f" -> saved {name}", value
    variable = getattr(node, "variable", None) if node_name(node) == "AccumulateGrad" else None
    if variable is not None:
        yield "leaf", ".variable", variable
    for following, _ in node.next_functions:
        if following is not None:
            yield "graph", f" -> {node_name(following)}", following


def _saved_attributes(cls: type) -> tuple[tuple[str, str], ...]:
    if cls not in _SAVED:
        names = {name for base in cls.__mro__ for name in base.__dict__}
        raw = sorted(name for name in names if name.startswith("_raw_saved_"))
        _SAVED[cls] = tuple((name, name.removeprefix("_raw_saved_")) for name in raw)
    return _SAVED[cls]


def _raw(node: Any, attribute: str) -> list[object]:
    try:
        saved = getattr(node, attribute)
    except RuntimeError:  # released
        return []
    found = []
    for one in saved if isinstance(saved, (tuple, list)) else (saved,):
        if hasattr(one, "data"):
            value = one.data  # the tensor, or what a pack hook made of it; None if released
        elif hasattr(node, attribute.removeprefix("_raw")):  # torch without SavedTensor.data
            try:
                value = getattr(node, attribute.removeprefix("_raw"))
            except RuntimeError:
                value = None
        else:
            value = None
        if value is not None:
            found.append(value)
    return found
