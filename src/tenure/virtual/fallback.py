"""Operators without a fake kernel, or a fixed size: run on the host, to see what they return."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from tenure.units import MIB, format_bytes
from tenure.virtual.shadow import value_of

if TYPE_CHECKING:
    from tenure.patches import Patches
    from tenure.virtual.shadow import Shadows

_MOST = 512 * MIB  # of an operator's inputs, on the host


def paint(patches: Patches, mode: Any, noted: Callable[[Any], None]) -> None:
    """Replaces what PyTorch does where there is no fake kernel: it asks the card.

    Args:
        patches: To undo it.
        mode: The fake tensors'.
        noted: Called with each operator that ran so.
    """

    def run(_mode: Any, func: Any, flat_args: Any, args_spec: Any, error: Any) -> Any:
        noted(func)
        return _on_the_host(mode, func, tree_unflatten(flat_args, args_spec), error)

    patches.set(fake_tensor, "run_fallback_kernel", run)


def by_values(
    mode: Any, noted: Callable[[Any], None], shadows: Shadows
) -> Callable[[Any, Any, Any, Exception], Any]:
    """What runs an operator whose result has a size that values decide, and no rule of its own."""

    def run(func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        noted(func)
        shadows.assume(f"{func} returns what it does of random numbers")
        return _on_the_host(mode, func, (args, kwargs), error)

    return run


def _on_the_host(mode: Any, func: Any, given: Any, error: Exception) -> Any:
    """Fake tensors of the sizes that the operator's kernel for the host returns."""
    fakes = [a for a in tree_leaves(given) if isinstance(a, fake_tensor.FakeTensor)]
    size = sum(t.numel() * t.element_size() for t in fakes)  # were they dense
    returns_views = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
    if torch.Tag.inplace_view in func.tags or returns_views:
        raise _missing(func, "what it returns are views") from error
    if any(t.layout is not torch.strided for t in fakes):
        raise _missing(func, "its inputs have a sparse layout") from error
    if size > _MOST:
        raise _missing(func, f"its inputs have {format_bytes(size)}") from error
    devices = [t.fake_device for t in fakes if t.fake_device.type == "cuda"]
    devices += [a for a in tree_leaves(given) if isinstance(a, torch.device)]
    device = next(iter(devices), torch.device("cpu"))
    inputs: dict[int, Any] = {}

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, fake_tensor.FakeTensor):
            return value
        known = value_of(value)
        made = torch.zeros_like(value, device="cpu") if known is None else known.clone()
        if known is None and made.is_floating_point():
            made.uniform_()
        inputs[id(made)] = value
        return made

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in inputs:
            return inputs.get(id(value), value)
        shape = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return fake_tensor.FakeTensor(mode, shape, device)

    with torch._C._DisableTorchDispatch(), torch.no_grad():
        args, kwargs = tree_map(real, given)
        try:
            results = func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as failure:
            raise _missing(func, "it has none for the host either") from failure
        return tree_map(fake, results)


def _missing(func: Any, why: str) -> NotImplementedError:
    return NotImplementedError(
        f"{func}: there is no fake impl (a kernel that tells sizes), and {why}"
    )
