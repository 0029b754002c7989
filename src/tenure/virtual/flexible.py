"""flex_attention as its compiled kernel takes memory: no matrix of scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import flex_attention as module

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.patches import Patches
    from tenure.virtual.shadow import Shadows

_COMPILED = "flex_attention is compiled into one kernel"


def paint(patches: Patches, shadows: Shadows) -> None:
    """Replaces flex_attention for tensors on the card."""
    original = module.flex_attention
    patches.set(module, "flex_attention", _stand_in(original, shadows))


def _stand_in(original: Callable[..., Any], shadows: Shadows) -> Callable[..., Any]:
    def flex_attention(  # noqa: PLR0917  the signature is PyTorch's
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        kernel_options: Any = None,
        *,
        return_aux: Any = None,
    ) -> Any:
        if query.device.type != "cuda":
            return original(
                query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse,
                kernel_options, return_aux=return_aux,
            )  # fmt: skip
        shadows.assume(_COMPILED)
        result, sums = _Kernel.apply(query, key, value)
        if return_aux is not None:
            aux = module.AuxOutput(lse=sums if return_aux.lse else None)
            return result, aux
        return (result, sums * math.log(2)) if return_lse else result

    return flex_attention


class _Kernel(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for mypy
    """Keeps its inputs, its result and 32-bit sums of rows for the backward."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        result = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, result, sums)
        return result, sums

    @staticmethod
    def backward(ctx: Any, grad: Any, _of_sums: Any) -> Any:
        query, key, value, _result, sums = ctx.saved_tensors
        delta = torch.empty_like(sums)
        if not grad.is_contiguous():
            grad = grad.contiguous()
        grads = tuple(torch.empty_like(t) for t in (query, key, value))
        del delta
        return grads
