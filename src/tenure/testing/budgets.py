"""What a test may need: budgets as written in a marker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.cards import card_named
from tenure.errors import UsageError
from tenure.units import parse_size

CPU = "cpu"
_NAMES = ("peak", "reserved", "growth", "gpu")


@dataclass(frozen=True)
class Budget:
    """What a test may need; sizes in bytes, None where nothing is asked.

    Attributes:
        peak: Most bytes allocated at a time.
        reserved: Most bytes reserved at a time.
        growth: Most bytes by which live memory may grow from step to step.
        gpu: The card to run on where there is none: a name, a size, or "cpu" for CPU tensors.
    """

    peak: int | None = None
    reserved: int | None = None
    growth: int | None = None
    gpu: str = "h100"


def read_budget(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Budget:
    """The budget of a marker's arguments; sizes are whole bytes or texts such as "2 GiB".

    Raises:
        UsageError: An argument is not one of those, or none is there.
    """
    if args:
        raise UsageError(f"name the budget: peak={args[0]!r}, reserved=..., growth=...")
    unknown = [name for name in kwargs if name not in _NAMES]
    if unknown:
        raise UsageError(f"{unknown[0]} is none of {', '.join(_NAMES)}")
    sizes = {name: _bytes(name, kwargs.get(name)) for name in _NAMES[:3]}
    if all(size is None for size in sizes.values()):
        raise UsageError("no budget is given: peak='2 GiB', reserved=..., growth=0")
    gpu = str(kwargs.get("gpu", Budget.gpu))
    if gpu != CPU:
        card_named(gpu)
    elif sizes["reserved"] is not None:
        raise UsageError("reserved is a count of a GPU's allocator; gpu='cpu' has none")
    return Budget(sizes["peak"], sizes["reserved"], sizes["growth"], gpu)


def _bytes(name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, str):
        return parse_size(value)
    raise UsageError(f"{name}={value!r} is no size; write '2 GiB' or whole bytes")
