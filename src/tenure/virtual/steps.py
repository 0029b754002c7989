"""What an operator does with memory, step by step: the words in which plans are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tenure.virtual.card import Kernels


@dataclass(frozen=True)
class Step:
    """One thing that an operator does with memory.

    Attributes:
        kind: "output" (a new storage by its index; -1 is all that are left), "skip" of one that the
            card does not make, "take" or "drop" of a temporary, "keep" of one that stays for ever.
        name: Of the temporary.
        size: Its bytes.
        index: Of the output's storage among the new ones.
    """

    kind: str
    name: str = ""
    size: int = 0
    index: int = -1


@dataclass(frozen=True)
class Call:
    """An operator with what it was given and what it returned.

    Attributes:
        func: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.
        kernels: The card's.
        first_use: Whether this thread uses the workspace of that name for the first time.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    kernels: Kernels
    first_use: Callable[[str], bool]


Plan = Callable[[Call], Iterator[Step]]
OUTPUTS = Step("output")
_PLANS: dict[str, Plan] = {}
_CONFIRMED: set[str] = set()
_BY_OPERATOR: dict[Any, Plan | None] = {}


def plan_of(func: Any) -> Plan | None:
    """The plan of an operator; None where all it takes are its outputs, in order."""
    try:
        return _BY_OPERATOR[func]
    except KeyError:
        name = str(func)
        plan = _PLANS.get(name) or _PLANS.get(name.rsplit(".", 1)[0])
        _BY_OPERATOR[func] = plan
        return plan


def modelled() -> list[str]:
    """Names of the operators with a plan."""
    return sorted(_PLANS)


def guessed() -> set[str]:
    """Names of those whose plan follows from sources or few examples, not from many recordings."""
    return set(_PLANS) - _CONFIRMED


def is_guess(func: Any) -> bool:
    """Whether the plan of an operator is one of those."""
    name = str(func)
    return not _CONFIRMED.intersection((name, name.rsplit(".", 1)[0]))


def planned(*names: str, library: str = "aten", confirmed: bool = False) -> Callable[[Plan], Plan]:
    """Makes a generator the plan of operators.

    Args:
        names: Of the operators, or of one overload of each.
        library: Whose they are.
        confirmed: Whether recordings agreed with it to the byte.
    """

    def add(plan: Plan) -> Plan:
        full = [f"{library}.{name}" for name in names]
        _PLANS.update(dict.fromkeys(full, plan))
        if confirmed:
            _CONFIRMED.update(full)
        return plan

    return add


def once(name: str, size: int) -> Iterator[Step]:
    """A temporary that is taken and dropped again; nothing for no bytes."""
    if size <= 0:
        return
    yield Step("take", name, size)
    yield Step("drop", name)


def bytes_of(tensor: Any) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def on_card(tensor: Any) -> bool:
    """Whether a tensor lies on the card."""
    return bool(tensor.device.type == "cuda")
