"""Choices that the CPU build makes differently from CUDA: which operator runs, and in place or not.

Kept apart from sizes: a wrong choice costs tens of percent, a wrong temporary tenths.
"""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tenure.virtual.convolutions import is_channels_last, prefers_channels_last

if TYPE_CHECKING:
    from tenure.virtual.card import Kernels

_aten = torch.ops.aten
_is_dense = torch._prims_common.is_non_overlapping_and_dense_or_false
# Operators with a composite fallback and a CUDA kernel: the CPU build takes the fallback, which
# shows its temporaries. A kernel that is registered, though never run, makes it one operator again.
_ONE_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")


def overrides() -> dict[Any, Any]:
    """Operators that run as another one, or give their result another layout."""
    return {
        _aten.add.Tensor: _accumulate,
        _aten.convolution.default: _convolution,
        _aten.convolution_backward.default: _convolution_backward,
    }


def _convolution(func: Any, args: Any, kwargs: Any) -> Any:
    """In cuDNN's layout, which fake kernels give only where cuDNN is there to be asked."""
    return _as_cudnn_does(func(*args, **kwargs), args[0], args[1])


def _convolution_backward(func: Any, args: Any, kwargs: Any) -> Any:
    source, weight, mask = args[1], args[2], args[10]
    grads = list(func(*args, **kwargs))
    for index in (0, 1):
        if mask[index]:
            grads[index] = _as_cudnn_does(grads[index], source, weight)
    return tuple(grads)


def _as_cudnn_does(result: Any, source: Any, weight: Any) -> Any:
    if result.device.type != "cuda" or result.dim() not in {4, 5}:
        return result
    last = torch.channels_last if result.dim() == 4 else torch.channels_last_3d
    wanted = prefers_channels_last(source, weight)
    if wanted == is_channels_last(result.shape, result.stride()):
        return result
    return torch.empty_like(result, memory_format=last if wanted else torch.contiguous_format)


def _never_run(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("a virtual GPU computes nothing")


def register_kernels() -> Any:
    """Makes composite operators single ones; keep the result alive."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name in _ONE_KERNEL:
        library.impl(name, _never_run)
    return library


def _accumulate(_func: Any, args: Any, kwargs: Any) -> Any:
    """A sum of gradients: in place where the first belongs to nobody else, as the engine does it.

    C++ refuses to write into tensor subclasses, which fake ones are. The count 4 is what the bare
    minimum looks like from inside a dispatch mode; found by trying, torch 2.13.
    """
    if torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1 or kwargs:
        return NotImplemented
    first, second = args[0], args[1]
    if not (isinstance(first, FakeTensor) and isinstance(second, FakeTensor)):
        return NotImplemented
    alike = (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
    if not alike or first is second or not _is_dense(first):
        return NotImplemented
    if first._use_count() > 4 or torch._C._storage_Use_Count(first.untyped_storage()._cdata) > 2:
        return NotImplemented
    _aten.add_.Tensor(first, second)
    return first


def attention(kernels: Kernels, original: Any) -> Any:
    """A stand-in for scaled_dot_product_attention that chooses as the card would."""

    def scaled_dot_product_attention(  # noqa: PLR0917  the signature is PyTorch's
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        chosen = _attention_kernel(kernels, query, attn_mask)
        if not chosen:
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            zero = torch.zeros((), dtype=query.dtype, device=query.device)
            attn_mask = torch.where(attn_mask, zero, float("-inf")).to(query.dtype)
        if chosen == "cudnn":
            return _aten._scaled_dot_product_cudnn_attention(
                query, key, value, attn_mask, needs, dropout_p, is_causal, False, scale=scale
            )[0]
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            times = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(times, -3) for t in (key, value))
        if chosen == "flash":
            return _aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs, dropout_p, is_causal, scale=scale
        )[0]

    return scaled_dot_product_attention


def _attention_kernel(kernels: Kernels, query: Any, mask: Any) -> str:
    """`cudnn`, `flash`, `efficient`, or nothing for the plain path."""
    if query.device.type != "cuda" or query.dim() != 4 or not query.dtype.is_floating_point:
        return ""
    width = query.shape[-1]
    if query.element_size() == 2:
        if kernels.attention == "cudnn" and width % 8 == 0 and width <= 128:
            return "cudnn"
        if kernels.attention != "efficient" and mask is None and width <= 256:
            return "flash"
    return "efficient" if query.element_size() <= 4 else ""
