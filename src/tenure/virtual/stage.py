"""Fake CUDA: the modes and the patches that make a script believe in a card."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._library import fake_impl
from torch._subclasses import fake_tensor

from tenure.patches import Patches
from tenure.virtual import encoders, face, fallback, flexible, outside, recurrent, selection
from tenure.virtual.card import kernels_of
from tenure.virtual.shadow import Shadows
from tenure.virtual.tracker import Tracker
from tenure.virtual.unmodelled import Unmodelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.virtual.memory import Memory
    from tenure.virtual.shim import CurrentStream

_kernels: list[Any] = []  # registered once a process: PyTorch takes none twice


class Stage:
    """A context in which `cuda` is a card that is not there.

    Attributes:
        tracker: Sees every operator.
        shadows: Knows values, and what was assumed.
        unmodelled: Knows what no rule describes.
    """

    def __init__(self, memory: Memory, current: CurrentStream) -> None:
        if not _kernels:
            _kernels.append(selection.register_kernels())
        self.current = current
        self.kernels = kernels_of(memory.card)
        self.fake = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
        self.fake.stands_for_memory = True  # for who looks for holders: torch.compile's do not
        self.tracker = Tracker(memory, self.kernels)
        self.shadows = Shadows()
        self.unmodelled = Unmodelled(memory)
        self.patches = Patches()
        self.tracker.override(self.shadows.overrides())
        self.tracker.override(selection.overrides())
        self.tracker.override(recurrent.overrides())
        self.tracker.by_values = fallback.by_values(self.fake, self.unmodelled.add, self.shadows)
        self.tracker.after += (self.shadows.follow, self.unmodelled.watch)

    def __enter__(self) -> Self:
        try:
            face.paint(self.patches, self.tracker, self.current)
            self._patch_torch()
            self.fake.__enter__()
            self.tracker.__enter__()
        except BaseException:
            self.patches.undo()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.tracker.__exit__(*error)
            self.fake.__exit__(*error)
        finally:
            self.patches.undo()

    def _patch_torch(self) -> None:
        put = self.patches.set
        fake, functional = fake_tensor.FakeTensor, torch.nn.functional
        put(fake_tensor.FakeTensorMode, "avoid_device_init", property(lambda _mode: True))
        put(torch.nn.Module, "_apply", _apply)
        optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute
        supported = [*vars(optimizer)["_foreach_supported_types"], fake]
        put(optimizer, "_foreach_supported_types", supported)
        attention = functional.scaled_dot_product_attention
        put(
            functional, "scaled_dot_product_attention", selection.attention(self.kernels, attention)
        )
        put(torch._subclasses, "FakeTensor", _seen_only_by_torch(fake))
        put(torch.Tensor, "__deepcopy__", _deep_copier(torch.Tensor.__deepcopy__))
        for owner in (torch, torch.autograd.grad_mode):
            put(owner, "inference_mode", _InferenceMode)
        outside.paint(self.patches, self.shadows)
        encoders.paint(self.patches, self.shadows)
        flexible.paint(self.patches, self.shadows)
        fallback.paint(self.patches, self.fake, self.unmodelled.add)
        put(fake_impl.FakeImplCtx, "new_dynamic_size", self._assumed_size)
        put(torch, "ctc_loss", selection.ctc_loss(torch.ctc_loss))
        recurrent.paint(self.patches, self.tracker, self.shadows)

    def _assumed_size(self, *, min: int = 0, max: int | None = None) -> int:  # noqa: A002
        """A size that an operator of another library leaves to its values."""
        operator, shapes = self.tracker.running
        return builtins.max(min, self.shadows.size_of(str(operator), shapes, max))


class _InferenceMode(torch.no_grad):  # type: ignore[misc]  # torch is not there for mypy
    """torch.inference_mode without what fake tensors cannot do; it needs the same memory."""

    def __new__(cls, mode: Any = True) -> Any:
        return super().__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.mode = mode

    def __enter__(self) -> None:
        if self.mode:
            super().__enter__()

    def __exit__(self, *error: object) -> None:
        if self.mode:
            super().__exit__(*error)

    def clone(self) -> Any:
        return type(self)(self.mode)


def _seen_only_by_torch(fake: Any) -> Any:
    """A class that says of no tensor that it is fake, unless PyTorch itself asks.

    Libraries take other paths when they meet one, as if they were traced: transformers builds
    4-dimensional masks and chooses another attention.
    """

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            asking = sys._getframe(1).f_globals.get("__name__", "")
            return asking.startswith("torch.") and isinstance(value, fake)

    return Kind("FakeTensor", (), {})


def _deep_copier(original: Any) -> Any:
    """copy.deepcopy for fake tensors; the original copies a storage that has no data."""

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        if not isinstance(self, fake_tensor.FakeTensor) or not self.is_leaf:
            return original(self, memo)
        if id(self) not in memo:
            copy = self.detach().clone()
            if isinstance(self, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, self.requires_grad)
            else:
                copy.requires_grad_(self.requires_grad)
            memo[id(self)] = copy
            if self.grad is not None:
                copy.grad = copied(self.grad, memo)
        return memo[id(self)]

    return copied


def _moved(tensor: Any, changed: Any) -> None:
    """Gives a tensor other data and keeps its identity, as eager PyTorch does."""
    if changed is tensor:
        return
    tensor.data = changed
    if isinstance(changed, fake_tensor.FakeTensor):
        tensor.fake_device = changed.fake_device
    value = getattr(changed, "_tenure_value", None)
    if value is not None:
        tensor._tenure_value = value


def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """torch.nn.Module._apply for fake tensors, which the original tries to swap, and fails."""
    if recurse:
        for module in self.children():
            module._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            changed = fn(parameter)
        if parameter.is_meta != changed.is_meta:  # as eager PyTorch does: no data to replace
            self._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
            continue
        _moved(parameter, changed)
        if parameter.grad is not None:
            with torch.no_grad():
                _moved(parameter.grad, fn(parameter.grad))
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self
