"""Choices that the CPU build makes differently from CUDA: which operator runs, and in place or not.

Kept apart from sizes: a wrong choice costs tens of percent, a wrong temporary tenths.
"""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tenure.virtual.attentions import Request, choose
from tenure.virtual.convolutions import is_channels_last, prefers_channels_last
from tenure.virtual.shadow import value_of

if TYPE_CHECKING:
    from tenure.virtual.card import Kernels

_aten = torch.ops.aten
_is_dense = torch._prims_common.is_non_overlapping_and_dense_or_false
# Operators with a composite fallback and a CUDA kernel: the CPU build takes the fallback, which
# shows its temporaries. A kernel that is registered, though never run, makes it one operator again.
_ONE_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
# What the bare minimum looks like from inside a dispatch mode; found by trying, torch 2.13, 2.14.
_FEWEST_USES = 4
# Of derivatives: C++ refuses to write into tensor subclasses, and takes the first for the second.
_IN_PLACE = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.masked_scatter.default: _aten.masked_scatter_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}


def overrides() -> dict[Any, Any]:
    """Operators that run as another one, or give their result another layout."""
    return {
        _aten.add.Tensor: _accumulate,
        _aten.convolution.default: _convolution,
        _aten.convolution_backward.default: _convolution_backward,
        **dict.fromkeys(_IN_PLACE, _written_in_place),
        _aten._ctc_loss.default: _ctc_loss,
        _aten._ctc_loss_backward.default: lambda _func, args, _: torch.empty_like(args[1]),
    }


def _ctc_loss(_func: Any, args: Any, _kwargs: Any) -> Any:
    """The loss of each sequence and what the backward needs, by the longest target."""
    scores, targets, lengths = args[0], args[1], args[3]
    if targets.dim() == 2:
        longest = targets.shape[1]
    else:
        longest = max(lengths)
    batch = scores.shape[1:-1]
    kept = scores.new_empty((*batch, scores.shape[0], 2 * longest + 1))
    return scores.new_empty(batch), kept


def ctc_loss(original: Any) -> Any:
    """A stand-in for torch.ctc_loss that takes the lengths as numbers, as a card gets them."""

    def run(  # noqa: PLR0917  the signature is PyTorch's
        scores: Any,
        targets: Any,
        lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:
        if scores.device.type != "cuda":
            return original(
                scores, targets, lengths, target_lengths, blank, reduction, zero_infinity
            )
        batch = scores.shape[1] if scores.dim() == 3 else 1
        steps = _numbers(lengths, scores.shape[0], batch)
        longest = _numbers(target_lengths, targets.shape[-1], batch)
        loss = _aten._ctc_loss.default(scores, targets, steps, longest, blank, zero_infinity)[0]
        if zero_infinity:
            loss = torch.where(loss == float("inf"), 0.0, loss)
        if reduction == 1:
            return (loss / torch.tensor(longest, device=loss.device).clamp_min(1)).mean()
        return loss.sum() if reduction == 2 else loss

    return run


def _numbers(lengths: Any, otherwise: int, count: int) -> list[int]:
    if not isinstance(lengths, torch.Tensor):
        return list(lengths)
    value = value_of(lengths)
    if value is None:
        return [otherwise] * count
    with torch._C._DisableTorchDispatch():
        return [int(n) for n in value.reshape(-1).tolist()]


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


def _written_in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """A gradient put into fresh zeros: in place where these belong to nobody else."""
    if torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1:
        return NotImplemented
    target = args[0]
    # index_put's caller holds the zeros by a name of its own.
    most = _FEWEST_USES + (func is _aten.index_put.default)
    if not isinstance(target, FakeTensor) or target._use_count() > most:
        return NotImplemented
    if torch._C._storage_Use_Count(target.untyped_storage()._cdata) > 2:
        return NotImplemented
    _IN_PLACE[func](*args, **kwargs)
    return target


def _accumulate(_func: Any, args: Any, kwargs: Any) -> Any:
    """A sum of gradients: in place where the first belongs to nobody else, as the engine does it.

    C++ refuses to write into tensor subclasses, which fake ones are.
    """
    if torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1 or kwargs:
        return NotImplemented
    first, second = args[0], args[1]
    if not (isinstance(first, FakeTensor) and isinstance(second, FakeTensor)):
        return NotImplemented
    alike = (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
    if not alike or first is second or not _is_dense(first):
        return NotImplemented
    if (
        first._use_count() > _FEWEST_USES
        or torch._C._storage_Use_Count(first.untyped_storage()._cdata) > 2
    ):
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
        if query.device.type != "cuda":
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        needs = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        asked = Request(
            query, key, value, attn_mask, dropout_p, is_causal, needs, _allowed(),
            torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        chosen = choose(asked, kernels)
        if chosen == "math":
            return _aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
                enable_gqa=enable_gqa,
            )[0]  # fmt: skip
        if chosen == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        mask = _additive(attn_mask, query.dtype)
        if chosen == "cudnn":
            return _aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, needs, dropout_p, is_causal, False, scale=scale
            )[0]
        if mask is not None:
            mask = _aligned(mask).expand(*query.shape[:3], key.shape[2])
        needs = needs or (mask is not None and mask.requires_grad)
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs, dropout_p, is_causal, scale=scale
        )[0]

    return scaled_dot_product_attention


def _allowed() -> frozenset[str]:
    flags = {
        "cudnn": torch._C._get_cudnn_sdp_enabled(),
        "flash": torch._C._get_flash_sdp_enabled(),
        "efficient": torch._C._get_mem_efficient_sdp_enabled(),
        "math": torch._C._get_math_sdp_enabled(),
    }
    return frozenset(name for name, on in flags.items() if on)


def _flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: Any) -> Any:  # noqa: PLR0917
    """With heads padded to a multiple of 8, as PyTorch does before it calls the kernel."""
    width = query.shape[-1]
    padded = [torch.nn.functional.pad(t, (0, -width % 8)) if width % 8 else t
              for t in (query, key, value)]  # fmt: skip
    scale = width**-0.5 if scale is None else scale
    result = _aten._scaled_dot_product_flash_attention(
        *padded, dropout, causal, False, scale=scale
    )[0]
    return result[..., :width] if width % 8 else result


def _additive(mask: Any, dtype: torch.dtype) -> Any:
    """A mask to be added; from one of truth values as PyTorch makes it."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    lowest = torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, lowest)


def _aligned(mask: Any) -> Any:
    """A mask whose rows begin at multiples of 8 elements."""
    if mask.stride(-1) == 1 and all(step % 8 == 0 for step in mask.stride()[:-1]):
        return mask
    keys = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, 8 - keys % 8))[..., :keys]
