"""Real values of small tensors, and a ledger of what was assumed where none is known."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from tenure.virtual import masks

_aten = torch.ops.aten
_STORAGE_OPERATORS = frozenset(
    getattr(packet, overload)
    for packet in (_aten.set_, _aten.resize_, _aten.resize_as_)
    for overload in packet.overloads()
)
_PRODUCTS = frozenset(
    (
        *(_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default),
        *(_aten.convolution.default, _aten._fft_c2c.default, _aten._fft_r2c.default),
    )
)
_OVERWRITES = frozenset(
    (_aten.zero_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.copy_.default)
)
_DECIDED_BY_ONE = {  # operators of truth values -> the value that decides alone
    _aten.bitwise_and.Tensor: False,
    _aten.logical_and.default: False,
    _aten.bitwise_or.Tensor: True,
    _aten.logical_or.default: True,
}
_FILLED = {  # operators that take only the shape of their input -> what they fill another with
    _aten.zeros_like.default: 0,
    _aten.new_zeros.default: 0,
    _aten.ones_like.default: 1,
    _aten.new_ones.default: 1,
}
_MOST_INTEGERS = 20_000_000  # elements of a tensor whose values are kept
_MOST_FLOATS = 4_096
_MOST_DERIVED = 20_000_000  # floats that follow from known values, and not by a product
_PLAIN_INDEX = 7  # an index that means nothing special: a token that ends no text
_FEWEST_OF_IMAGES = 3  # dimensions
_LONGEST_WAIT = 1_000  # equal answers to one question before the other one is given
# Functions of libraries in which a truth value means that work is left: of transformers.
_ASK_WHETHER_TO_GO_ON = {"_beam_search"}
_FINITE = "numbers are finite"
_FINITE_GRADIENTS = "gradients are finite"
_UNTRIED = "cudnn.benchmark is left out: what cuDNN tries first may take much more for a moment"
_WITHIN = "random numbers lie within their bounds"
_ALLOWED = "what distributions are given lies within their bounds"
_DISTRIBUTIONS = "torch/distributions/"
_HOLDS = {_FINITE, _FINITE_GRADIENTS, _WITHIN, _ALLOWED}  # in every run that is worth asking about
_PACKAGE = str(Path(__file__).parent)
_VALUE = "_tenure_value"
_STALE = "_tenure_stale"
_GUESS = "_tenure_guess"  # of a value that rests on an assumption: which


class Shadows:
    """Keeps what is known of tensors' values beside the fake tensors.

    Attributes:
        assumptions: "what, at file:line" with how often it was assumed.
        decisive: Those by which the script may have decided what to do.
    """

    def __init__(self) -> None:
        self.assumptions: Counter[str] = Counter()
        self.decisive: set[str] = set()
        self._handed: Handed | None = None

    def overrides(self) -> dict[Any, Any]:
        """Operators whose result depends on values."""
        return {
            _aten._local_scalar_dense.default: self._scalar,
            _aten.equal.default: self._equal,
            _aten.nonzero.default: self._nonzero,
            _aten.index.Tensor: self._index,
            _aten.index_put.default: self._index_put,
            _aten.index_put_.default: self._index_put,
            _aten._index_put_impl_.default: self._index_put,
            _aten.masked_select.default: self._masked_select,
            _aten._unique2.default: self._unique,
            _aten.unique_consecutive.default: self._unique,
            _aten.unique_dim.default: self._unique_dim,
            _aten.bincount.default: self._bincount,
            _aten.repeat_interleave.Tensor: self._repeats,
        }

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Runs the operator on the values as well, where all of them are known and small."""
        if func is _aten._local_scalar_dense.default:
            return
        outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
        inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        written = _written(func, args) if func._schema.is_mutable else []
        masks.follow(func, args, outputs, written, value_of)
        if func is _aten.convolution.default and torch.backends.cudnn.benchmark:
            self._assume(_UNTRIED)
        # Of storage operators: a value would come to lie in a storage without data.
        if func in _STORAGE_OPERATORS or not _is_worth_computing(func, inputs, outputs):
            _forget(written)
        elif all(_is_known(t) for t in inputs):
            if not _compute(func, args, kwargs, inputs, outputs):
                _forget(written)
        elif func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._assume(_FINITE_GRADIENTS)
        elif func in _OVERWRITES and all(_is_known(t) for t in inputs[1:]):
            _forget(written)
            _overwrite(func, args)
        else:
            _forget(written)
            _guess(func, args, outputs)

    def _scalar(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        value = self._read(tensor)
        if value is not None:
            with torch._C._DisableTorchDispatch():
                return value.item()
        if tensor.dtype is torch.bool:
            if _is_asked_by("_no_grad_trunc_normal_"):  # torch.nn.init; draws again where not so
                self._assume(_WITHIN)
                return False
            if _is_asked_by("_validate_sample", _DISTRIBUTIONS) or _is_asked_by(
                "__init__", _DISTRIBUTIONS
            ):
                self._assume(_ALLOWED)
                return True
            goes_on = _caller().f_code.co_name in _ASK_WHETHER_TO_GO_ON
            times = self._assume(f"an unknown truth value is {goes_on}")
            return goes_on != (times % _LONGEST_WAIT == 0)  # a loop may wait for it
        if tensor.dtype.is_floating_point:
            self._assume("an unknown number is 1.0")
            return 1.0
        self._assume("an unknown whole number is 0")
        return 0

    def _equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        first, second = self._read(args[0]), self._read(args[1])
        if first is None or second is None:
            self._assume("two tensors of unknown values are not equal")
            return False
        with torch._C._DisableTorchDispatch():
            return torch.equal(first, second)

    def _nonzero(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        value = self._read(tensor)
        if value is None:
            count, why = masks.expected(tensor)
            self._assume(why)
            return _places(tensor, count)
        with torch._C._DisableTorchDispatch():
            found = torch.nonzero(value)
        fake = _places(tensor, found.shape[0])
        setattr(fake, _VALUE, found)
        return fake

    def _numbered(self, indices: Any) -> list[Any] | None:
        """Indices with each mask replaced by the places it selects; None if there is no mask."""
        if not any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in indices):
            return None
        numbers: list[Any] = []
        for index in indices:
            if index is not None and index.dtype in {torch.bool, torch.uint8}:
                numbers += self._nonzero(None, (index,), {}).unbind(1)
            else:
                numbers.append(index)
        return numbers

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Selection by masks: as CUDA does it, the places first, then by number."""
        numbers = self._numbered(args[1])
        return NotImplemented if numbers is None else func(args[0], numbers)

    def _index_put(self, func: Any, args: Any, kwargs: Any) -> Any:
        value = args[2]
        if value.numel() == 1 and value.device.type == "cpu":
            return NotImplemented  # CUDA fills by the mask, whatever it selects
        numbers = self._numbered(args[1])
        if numbers is None:
            return NotImplemented
        return func(args[0], numbers, *args[2:], **kwargs)

    def _masked_select(self, func: Any, args: Any, kwargs: Any) -> Any:
        source, mask = torch.broadcast_tensors(args[0], args[1])
        places = self._nonzero(None, (mask,), {}).unbind(1)
        return _aten.index.Tensor(source, list(places))

    def _unique(self, func: Any, args: Any, kwargs: Any) -> Any:
        known = self._known_result(func, args, kwargs)
        if known is not None:
            return known
        self._assume("an unknown tensor's elements all differ")
        source = args[0]
        first = 2 if func is _aten._unique2.default else 1  # the flag for inverse indices
        inverse, counted = (
            bool(args[first + n])
            if len(args) > first + n
            else bool(kwargs.get(("return_inverse", "return_counts")[n]))
            for n in (0, 1)
        )
        numbers = source.shape if inverse else (0,)
        counts = source.numel() if counted else 0
        return (
            torch.empty(source.numel(), dtype=source.dtype, device=source.device),
            torch.empty(numbers, dtype=torch.long, device=source.device),
            torch.empty(counts, dtype=torch.long, device=source.device),
        )

    def _unique_dim(self, func: Any, args: Any, kwargs: Any) -> Any:
        known = self._known_result(func, args, kwargs)
        if known is not None:
            return known
        self._assume("an unknown tensor's slices all differ")
        source, count = args[0], args[0].shape[args[1]]
        numbers, counts = (
            torch.empty(count, dtype=torch.long, device=source.device) for _ in range(2)
        )
        return torch.empty_like(source), numbers, counts

    def _bincount(self, func: Any, args: Any, kwargs: Any) -> Any:
        least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        with self.handing_out() as handed:
            known = self._known_result(func, args, kwargs)
        if known is not None:
            if known.numel() > least:
                handed.decided()
            return known
        self._assume("unknown numbers to be counted are below the least length asked for")
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        kind = torch.long if weights is None else weights.dtype
        return torch.empty(max(least, _PLAIN_INDEX + 1), dtype=kind, device=args[0].device)

    def _repeats(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("output_size") is not None:
            return NotImplemented
        known = self._known_result(func, args, kwargs)
        if known is not None:
            return known
        self._assume("unknown numbers of repeats are 1 each")
        return torch.empty(args[0].shape, dtype=torch.long, device=args[0].device)

    def _known_result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Fake tensors of the sizes that the values give, with these; None if one is not known."""
        inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if not all(_is_known(t) for t in inputs):
            return None
        for tensor in inputs:
            self._read(tensor)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            values = func(*_real(args), **_real(kwargs))

        def dressed(value: Any) -> Any:
            fake = torch.empty(tuple(value.shape), dtype=value.dtype, device=inputs[0].device)
            setattr(fake, _VALUE, value)
            return fake

        return dressed(values) if isinstance(values, torch.Tensor) else tuple(map(dressed, values))

    def size_of(self, operator: str, shapes: list[tuple[int, ...]], most: int | None) -> int:
        """A size that only values would give, of an operator that is not PyTorch's own."""
        sizes = [shape[0] for shape in shapes if shape]
        size = (sizes[0] + 1) // 2 if sizes else most or 1
        self._assume(f"{operator} returns {size} elements")
        return size if most is None else min(size, most)

    def _read(self, tensor: Any) -> Any:
        """The values on which the script now depends; None if they are not known."""
        value = value_of(tensor)
        guess = getattr(value, _GUESS, "")
        if guess:
            self._assume(guess)
        return value

    @contextlib.contextmanager
    def handing_out(self) -> Iterator[Handed]:
        """Within it, what is assumed decides nothing until `Handed.decided` is called."""
        handed = self._handed = Handed(self)
        try:
            yield handed
        finally:
            self._handed = None

    def array_of(self, tensor: Any) -> Any:
        """The values of a tensor as a script takes them out as a whole, assumed if not known."""
        value = self._read(tensor)
        if value is not None:
            return value
        number = 1 if tensor.dtype.is_floating_point else 0
        with self.handing_out() as handed:
            self._assume(f"unknown elements are {number}")
        pixels = tensor.dtype is torch.uint8 and tensor.dim() >= _FEWEST_OF_IMAGES
        if not tensor.dtype.is_floating_point and not pixels:  # indices, sizes, truth values
            handed.decided()
        with torch._C._DisableTorchDispatch():
            return torch.full(tuple(tensor.shape), number, dtype=tensor.dtype)

    def assume(self, what: str) -> None:
        """Notes an assumption that is not about a value."""
        self._assume(what)

    def _assume(self, what: str) -> int:
        """Notes an assumption; how often it was made at this line."""
        frame = _caller()
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
        text = f"{what}, at {place}"
        self.assumptions[text] += 1
        if self._handed is not None:
            self._handed.texts.append(text)
        elif what not in _HOLDS:
            self.decisive.add(text)
        return self.assumptions[text]


class Handed:
    """What was assumed for a number that a script took: it matters once the script decides by it.

    Attributes:
        texts: As in `Shadows.assumptions`.
    """

    def __init__(self, shadows: Shadows) -> None:
        self.texts: list[str] = []
        self._shadows = shadows

    def decided(self) -> None:
        """Notes that the script decided by it."""
        self._shadows.decisive.update(self.texts)


def _caller() -> Any:
    """The innermost frame that is neither ours nor PyTorch's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) and "/torch/" not in file:
            break
        frame = frame.f_back
    return frame


def _is_asked_by(name: str, folder: str = "torch/") -> bool:
    """Whether a function of that name is on the stack, inside PyTorch."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or "/torch/" in frame.f_code.co_filename
    ):
        if frame.f_code.co_name == name and f"/{folder}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def value_of(tensor: Any) -> Any:
    """The real values of a tensor, on the CPU; None if they are not known."""
    if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
        return tensor
    value = getattr(tensor, _VALUE, None)
    if value is None or hasattr(value.untyped_storage(), _STALE):
        return None
    return value


def _places(tensor: Any, count: int) -> Any:
    """Room for places of elements, strided as CUDA's nonzero strides them."""
    shape = (tensor.dim(), count)
    return torch.empty(shape, dtype=torch.long, device=tensor.device).t()


def _is_worth_computing(func: Any, inputs: list[Any], outputs: list[Any]) -> bool:
    """Whether values of these sizes are kept: weights and activations never are.

    Other libraries' operators, PyTorch's `prims` among them, may not run on plain values.
    """
    if func.namespace != "aten":
        return False
    made_up = not inputs or torch.Tag.nondeterministic_seeded in func.tags
    floats = _MOST_FLOATS if made_up or func in _PRODUCTS else _MOST_DERIVED
    return all(
        t.numel() <= (floats if t.dtype.is_floating_point else _MOST_INTEGERS) for t in outputs
    )


def _compute(func: Any, args: Any, kwargs: Any, inputs: list[Any], outputs: list[Any]) -> bool:
    """Runs the operator on values and keeps them beside the outputs; whether that worked."""
    try:
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            values = func(*_real(args), **_real(kwargs))
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
        return False
    known = [t for t in tree_flatten(values)[0] if isinstance(t, torch.Tensor)]
    if len(known) == len(outputs):
        guess = next((g for t in inputs if (g := getattr(value_of(t), _GUESS, ""))), "")
        for tensor, value in zip(outputs, known, strict=True):
            if tensor.shape == value.shape:
                setattr(tensor, _VALUE, value)
                if guess:
                    setattr(value, _GUESS, guess)
    return True


def _overwrite(func: Any, args: Any) -> None:
    """Gives a tensor whose values were not known those that it is filled with."""
    tensor = args[0]
    if not _is_worth_computing(func, [], [tensor]):
        return
    with torch._C._DisableTorchDispatch():
        value = torch.zeros(tensor.shape, dtype=tensor.dtype)
    setattr(tensor, _VALUE, value)
    _compute(func, args, {}, [], [tensor])


def _guess(func: Any, args: Any, outputs: list[Any]) -> None:
    """What can be said of a result without knowing what it was made of.

    A number equals itself and is finite, which is how PyTorch asks for NaN and infinity. An index
    that was chosen is one like any other.
    """
    if func in {_aten.eq.Tensor, _aten.ne.Tensor} and args[0] is args[1]:
        _fill(outputs[0], func is _aten.eq.Tensor, _FINITE)
    elif func in {_aten.eq.Scalar, _aten.ne.Scalar} and args[1] in {float("inf"), -float("inf")}:
        _fill(outputs[0], func is _aten.ne.Scalar, _FINITE)
    elif func in _FILLED and not outputs[0].dtype.is_floating_point:
        _fill(outputs[0], _FILLED[func], "")
    elif masks.is_always_met(func, args):
        _fill(outputs[0], True, "")
    elif func in _DECIDED_BY_ONE:
        _decide(outputs[0], [*map(value_of, args[:2])], _DECIDED_BY_ONE[func])
    elif func in {_aten.isnan.default, _aten.isinf.default}:
        _fill(outputs[0], False, _FINITE)
    elif func in {_aten.argmax.default, _aten.argmin.default}:
        dim = args[1] if len(args) > 1 else None
        size = args[0].numel() if dim is None else args[0].shape[dim]
        _choose(outputs[0], size)
    elif func is _aten.multinomial.default:
        _choose(outputs[0], args[0].shape[-1])
    elif func is _aten.topk.default:
        dim = args[2] if len(args) > 2 else -1
        _count_up(outputs[1], dim, args[0].shape[dim])


def _decide(result: Any, values: list[Any], decisive: bool) -> None:
    """A conjunction with what is False, or a disjunction with what is True, is known."""
    known = next((v for v in values if v is not None and v.dtype is torch.bool), None)
    if known is None:
        return
    with torch._C._DisableTorchDispatch():
        decided = bool((known == decisive).all())
    if decided:
        _fill(result, decisive, getattr(known, _GUESS, ""))


def _fill(tensor: Any, value: Any, guess: str) -> None:
    if tensor.numel() <= _MOST_INTEGERS:
        with torch._C._DisableTorchDispatch():
            made = torch.full(tensor.shape, value, dtype=tensor.dtype)
        setattr(made, _GUESS, guess)
        setattr(tensor, _VALUE, made)


def _choose(tensor: Any, size: int) -> None:
    """Indices of that many, each as often as any other."""
    if tensor.numel() > _MOST_INTEGERS:
        return
    with torch._C._DisableTorchDispatch():
        made = (torch.arange(tensor.numel()) + min(_PLAIN_INDEX, size - 1)) % size
        made = made.view(tensor.shape)
    _know(tensor, made, size)


def _count_up(tensor: Any, dim: int, size: int) -> None:
    """Indices that differ along a dimension, as the best k do, and go on from row to row."""
    if tensor.numel() > _MOST_INTEGERS or not tensor.dim():
        return
    count = tensor.shape[dim]
    first = max(min(_PLAIN_INDEX, size - count), 0)
    rows = list(tensor.shape)
    rows.append(rows.pop(dim))
    with torch._C._DisableTorchDispatch():
        made = (torch.arange(tensor.numel()) + first) % size
        made = made.view(rows).movedim(-1, dim).contiguous()
    _know(tensor, made, size)


def _know(tensor: Any, value: Any, size: int) -> None:
    setattr(value, _GUESS, f"of {size} each is chosen equally often")
    setattr(tensor, _VALUE, value)


def _is_known(tensor: Any) -> bool:
    return value_of(tensor) is not None


def _forget(tensors: list[Any]) -> None:
    """Drops the values of tensors that get unknown ones, and of every view of them."""
    for tensor in tensors:
        value = getattr(tensor, _VALUE, None)
        if value is not None:
            setattr(value.untyped_storage(), _STALE, True)
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
