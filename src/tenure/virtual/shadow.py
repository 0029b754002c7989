"""Real values of small tensors, and a ledger of what was assumed where none is known."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

_aten = torch.ops.aten
_STORAGE_OPERATORS = frozenset(
    getattr(packet, overload)
    for packet in (_aten.set_, _aten.resize_, _aten.resize_as_)
    for overload in packet.overloads()
)
_MOST_INTEGERS = 65_536  # elements of a tensor whose values are kept
_MOST_FLOATS = 4_096
_PACKAGE = str(Path(__file__).parent)
_VALUE = "_tenure_value"


class Shadows:
    """Keeps what is known of tensors' values beside the fake tensors.

    Attributes:
        assumptions: "what, at file:line" with how often it was assumed.
    """

    def __init__(self) -> None:
        self.assumptions: Counter[str] = Counter()

    def overrides(self) -> dict[Any, Any]:
        """Operators whose result depends on values."""
        return {
            _aten._local_scalar_dense.default: self._scalar,
            _aten.equal.default: self._equal,
            _aten.nonzero.default: self._nonzero,
            _aten.index.Tensor: self._index,
        }

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Runs the operator on the values as well, where all of them are known and small."""
        if func is _aten._local_scalar_dense.default:
            return
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
        inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        small = all(_is_small(t) for t in outputs)
        written = _written(func, args) if func._schema.is_mutable else []
        if func in _STORAGE_OPERATORS:  # a value would come to lie in a storage without data
            for tensor in written:
                _forget(tensor)
            return
        if not small or not all(_is_known(t) for t in inputs):
            if written and func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
                self._assume("gradients are finite")
                return
            for tensor in written:
                _forget(tensor)
            return
        try:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                values = func(*_real(args), **_real(kwargs))
        except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
            for tensor in written:
                _forget(tensor)
            return
        known = [t for t in tree_flatten(values)[0] if isinstance(t, torch.Tensor)]
        if len(known) == len(outputs):
            for tensor, value in zip(outputs, known, strict=True):
                if tensor.shape == value.shape:
                    setattr(tensor, _VALUE, value)

    def _scalar(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        value = value_of(tensor)
        if value is not None:
            with torch._C._DisableTorchDispatch():
                return value.item()
        if tensor.dtype is torch.bool:
            self._assume("an unknown truth value is False")
            return False
        if tensor.dtype.is_floating_point:
            self._assume("an unknown number is 1.0")
            return 1.0
        self._assume("an unknown whole number is 0")
        return 0

    def _equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        first, second = value_of(args[0]), value_of(args[1])
        if first is None or second is None:
            self._assume("two tensors of unknown values are not equal")
            return False
        with torch._C._DisableTorchDispatch():
            return torch.equal(first, second)

    def _nonzero(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        value = value_of(tensor)
        if value is None:
            self._assume("half of the elements of an unknown mask are set")
            shape = ((tensor.numel() + 1) // 2, tensor.dim())
            return torch.empty(shape, dtype=torch.long, device=tensor.device)
        with torch._C._DisableTorchDispatch():
            found = torch.nonzero(value)
        fake = torch.empty(tuple(found.shape), dtype=torch.long, device=tensor.device)
        setattr(fake, _VALUE, found)
        return fake

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Selection by masks: as CUDA does it, the places first, then by number."""
        source, indices = args[0], args[1]
        if not any(i is not None and i.dtype is torch.bool for i in indices):
            return NotImplemented
        numbers: list[Any] = []
        for index in indices:
            if index is not None and index.dtype is torch.bool:
                numbers += self._nonzero(func, (index,), {}).unbind(1)
            else:
                numbers.append(index)
        return func(source, numbers)

    def _assume(self, what: str) -> None:
        frame: Any = sys._getframe(1)
        place = "?"
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(_PACKAGE) and "/torch/" not in file:
                place = f"{file}:{frame.f_lineno}"
                break
            frame = frame.f_back
        self.assumptions[f"{what}, at {place}"] += 1


def value_of(tensor: Any) -> Any:
    """The real values of a tensor, on the CPU; None if they are not known."""
    if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
        return tensor
    return getattr(tensor, _VALUE, None)


def _is_small(tensor: Any) -> bool:
    most = _MOST_FLOATS if tensor.dtype.is_floating_point else _MOST_INTEGERS
    return bool(tensor.numel() <= most)


def _is_known(tensor: Any) -> bool:
    return value_of(tensor) is not None


def _forget(tensor: Any) -> None:
    if hasattr(tensor, _VALUE):
        delattr(tensor, _VALUE)


def _written(func: Any, args: Any) -> list[Any]:
    """The tensors that an operator changes."""
    found = []
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]
    return found


def _real(values: Any) -> Any:
    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value_of(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    return tree_map(one, values)
