"""How many elements of a mask are set, where its values are not known.

Half of them, if nothing else can be said. Much can be: one number is not two, numbers that were put
into zeros are as many as their places, and no sigmoid is below zero.
"""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_SET = "_tenure_set"  # of a mask: how many of its elements are set, and why
_TAKEN = "_tenure_taken"  # of numbers: those asked for -> the part of all that equals each
_LEAST = "_tenure_least"  # of numbers: what none of them lies below
_WRITES = "_tenure_writes"  # of a storage of which something was noted: how often it was written
_ZERO_OR_MORE = frozenset(
    getattr(packet, overload)
    for packet in (
        *(_aten.sigmoid, _aten._softmax, _aten.exp, _aten.relu, _aten.relu_, _aten.abs),
        *(_aten.sqrt, _aten.square, _aten.linalg_vector_norm),
    )
    for overload in packet.overloads()
    if not overload.endswith("out")
)
_SELECTIONS = frozenset(  # operators whose elements are all among those of their first argument
    getattr(packet, overload)
    for packet in (
        *(_aten.select, _aten.slice, _aten.index, _aten.index_select, _aten.gather, _aten.unbind),
        *(_aten.split, _aten.split_with_sizes, _aten.topk, _aten.sort, _aten.masked_select),
        *(_aten.view, _aten._unsafe_view, _aten.reshape, _aten.permute, _aten.transpose, _aten.t),
        *(_aten.squeeze, _aten.unsqueeze, _aten.expand, _aten.clone, _aten.detach, _aten.alias),
        *(_aten._to_copy, _aten.flatten, _aten.max, _aten.min, _aten.amax, _aten.amin),
    )
    for overload in packet.overloads()
    if not overload.endswith("out") and overload != "other"  # the least of two tensors
)
_AS_MANY = frozenset(  # those of them that leave nothing out and repeat nothing
    getattr(packet, overload)
    for packet in (
        *(_aten.view, _aten._unsafe_view, _aten.reshape, _aten.permute, _aten.transpose, _aten.t),
        *(_aten.squeeze, _aten.unsqueeze, _aten.clone, _aten.detach, _aten.alias, _aten._to_copy),
        _aten.flatten,
    )
    for overload in packet.overloads()
    if not overload.endswith("out")
)
_EACH_INDEX = "each index sets a place of its own in an unknown mask"
_HALF_OF_THE_REST = "of unknown numbers equal to none asked for before, half equal the next"
_FOUND_ONCE = "each of some unknown numbers is found once among others"
_PUTS = frozenset(
    (_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)
)


def expected(mask: Any) -> tuple[int, str]:
    """How many elements of a mask are taken to be set, and that in words."""
    noted: tuple[int, str] | None = _noted(mask, _SET)
    return noted or ((mask.numel() + 1) // 2, "half of the elements of an unknown mask are set")


def is_always_met(func: Any, args: Any) -> bool:
    """Whether a comparison holds for every value that its first argument may have."""
    if func not in {_aten.ge.Scalar, _aten.gt.Scalar}:
        return False
    least = _noted(args[0], _LEAST)
    return least is not None and (args[1] < least or (func is _aten.ge.Scalar and args[1] == least))


def follow(
    func: Any,
    args: Any,
    outputs: list[Any],
    written: list[Any],
    value_of: Callable[[Any], Any],
) -> None:
    """Notes what an operator tells of its results, whatever the values are.

    Args:
        func: The operator.
        args: Its arguments.
        outputs: The tensors among its results.
        written: The tensors that it changed.
        value_of: Gives a tensor's values from before it was changed, or None.
    """
    notes: dict[str, Any] = {}
    if func in _ZERO_OR_MORE:
        notes[_LEAST] = 0.0
    elif func in _SELECTIONS:
        notes[_LEAST] = _noted(args[0], _LEAST)
    if outputs and outputs[0].dtype in {torch.bool, torch.uint8}:
        notes[_SET] = _count(func, args, outputs[0], value_of)
    for tensor in written:
        storage = tensor.untyped_storage()
        if hasattr(storage, _WRITES):
            setattr(storage, _WRITES, getattr(storage, _WRITES) + 1)
    for kind, value in notes.items():
        if value is not None:
            for tensor in written or (outputs if kind == _LEAST else outputs[:1]):
                _note(tensor, kind, value)


def _note(tensor: Any, kind: str, value: Any) -> None:
    storage = tensor.untyped_storage()
    writes = getattr(storage, _WRITES, 0)
    setattr(storage, _WRITES, writes)
    setattr(tensor, kind, (value, writes))


def _noted(tensor: Any, kind: str) -> Any:
    """What was noted of a tensor, unless it was written since; None if nothing was."""
    note = getattr(tensor, kind, None)
    if note is None or note[1] != getattr(tensor.untyped_storage(), _WRITES, 0):
        return None
    return note[0]


def _count(
    func: Any, args: Any, result: Any, value_of: Callable[[Any], Any]
) -> tuple[int, str] | None:
    """How many elements of a mask are set, and why; None if nothing can be said."""
    count: tuple[int, str] | None = None
    if func is _aten.eq.Scalar:
        count = _equal_to_number(args[0], args[1])
    elif func is _aten.eq.Tensor:
        count = _equal_to_each_other(args[0], args[1], result)
    elif func in _PUTS:
        count = _with_indices(args[0], args[1], value_of)
    elif func is _aten.cat.default:
        count = _total(args[0])
    elif func in {_aten.bitwise_or.Tensor, _aten.logical_or.default}:
        count = _total(args[:2])
    elif func in {_aten.bitwise_not.default, _aten.logical_not.default}:
        others = _noted(args[0], _SET)
        count = others and (result.numel() - others[0], others[1])
    elif func in _AS_MANY:
        count = _noted(args[0], _SET)
    return count and (min(count[0], result.numel()), count[1])


def _equal_to_number(numbers: Any, number: Any) -> tuple[int, str]:
    """Half of those that are equal to none of the numbers that were asked for before."""
    parts = _noted(numbers, _TAKEN)
    if parts is None:
        parts = {}
        _note(numbers, _TAKEN, parts)
    part: float = parts.setdefault(number, (1 - sum(parts.values())) / 2)
    return round(int(numbers.numel()) * part), _HALF_OF_THE_REST


def _equal_to_each_other(first: Any, second: Any, result: Any) -> tuple[int, str] | None:
    """Each of the fewer, spread over the more, is found there once: as a maximum is."""
    fewer: int = min(first.numel(), second.numel())
    return (fewer, _FOUND_ONCE) if 1 < fewer < result.numel() else None


def _with_indices(
    mask: Any, indices: Any, value_of: Callable[[Any], Any]
) -> tuple[int, str] | None:
    """What was set before, and a place for each index."""
    values = value_of(mask)
    if values is None:
        noted: tuple[int, str] | None = _noted(mask, _SET)
        if noted is None:
            return None
        before = noted[0]
    else:
        with torch._C._DisableTorchDispatch():
            before = int(torch.count_nonzero(values))
    places = next((i for i in indices if i is not None), None)
    more = places.numel() if places is not None and places.dtype is torch.long else 0
    return before + more, _EACH_INDEX


def _total(masks: Any) -> tuple[int, str] | None:
    total, why = 0, ""
    for mask in masks:
        noted = _noted(mask, _SET) if isinstance(mask, torch.Tensor) else None
        if noted is None:
            return None
        total, why = total + noted[0], noted[1]
    return total, why
