"""The fast path of torch.nn's transformer layers in evaluation, step by step.

On a card each layer is one operator whose inner steps dispatch does not show: those of PyTorch's
transformer.cpp and attention.cu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.patches import Patches
    from tenure.virtual.shadow import Shadows

_functional = torch.nn.functional
_PADDED = "torch.nn.TransformerEncoder keeps its padding: as nested tensors it needs less"


def paint(patches: Patches, shadows: Shadows) -> None:
    """Replaces the operators of the fast path."""
    for name, steps in (
        ("_transformer_encoder_layer_fwd", _layer),
        ("_native_multi_head_attention", _attention),
    ):
        patches.set(torch, name, _on_the_card(getattr(torch, name), steps))

    def left_aligned(_source: Any, _mask: Any) -> bool:
        shadows.assume(_PADDED)
        return False

    patches.set(torch, "_nested_tensor_from_mask_left_aligned", left_aligned)


def _on_the_card(original: Callable[..., Any], steps: Callable[..., Any]) -> Callable[..., Any]:
    def run(source: Any, *rest: Any, **named: Any) -> Any:
        plain = source.device.type == "cuda" and not source.is_nested
        return (steps if plain else original)(source, *rest, **named)

    return run


def _layer(  # noqa: PLR0917  the signature is PyTorch's
    source: Any,
    width: int,
    heads: int,
    in_weight: Any,
    in_bias: Any,
    out_weight: Any,
    out_bias: Any,
    _use_gelu: bool,
    norm_first: bool,
    eps: float,
    scale1: Any,
    shift1: Any,
    scale2: Any,
    shift2: Any,
    up_weight: Any,
    up_bias: Any,
    down_weight: Any,
    down_bias: Any,
    mask: Any = None,
    _mask_type: Any = None,
) -> Any:
    """One layer of an encoder."""

    def norm(value: Any, scale: Any, shift: Any) -> Any:
        return _functional.layer_norm(value, (width,), scale, shift, eps)

    x = norm(source, scale1, shift1) if norm_first else source
    x = _attention(
        x, x, x, width, heads, in_weight, in_bias, out_weight, out_bias, mask, need_weights=False
    )[0]  # fmt: skip
    x.add_(source)
    if not norm_first:
        x = norm(x, scale1, shift1)
    before = x
    if norm_first:
        x = norm(x, scale2, shift2)
    # The activation works in place, as the product's last step.
    wide = torch.addmm(up_bias, x.reshape(-1, width), up_weight.t())
    x = torch.addmm(down_bias, wide, down_weight.t()).view(source.shape)
    del wide
    x.add_(before)
    return x if norm_first else norm(x, scale2, shift2)


def _attention(  # noqa: PLR0917  the signature is PyTorch's
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    in_weight: Any,
    in_bias: Any,
    out_weight: Any,
    out_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    _mask_type: Any = None,
) -> Any:
    """Attention of a layer: fused where no mask is given and no weights are wanted."""
    batch, each = query.shape[0], width // heads
    same = query is key and key is value
    if same and each % 8 == 0 and not need_weights and mask is None:
        packed = _functional.linear(query, in_weight, in_bias)
        parts = (p.view(batch, -1, heads, each).transpose(1, 2) for p in packed.chunk(3, -1))
        mixed = _functional.scaled_dot_product_attention(*parts)
        mixed = mixed.transpose(1, 2).reshape(batch, -1, width)
        return _functional.linear(mixed, out_weight, out_bias), None
    if same:
        projected = _functional.linear(query, in_weight)
    else:
        pairs = zip((query, key, value), in_weight.chunk(3), strict=True)
        projected = torch.cat([_functional.linear(x, w) for x, w in pairs], -1)
    rows = [x.shape[1] for x in (query, key, value)]
    packed = projected.new_empty((3, batch * heads, max(rows), each))
    del projected
    scores = torch.bmm(packed[0, :, : rows[0]], packed[1, :, : rows[1]].transpose(1, 2))
    scores = scores.view(batch, heads, rows[0], rows[1])
    if mask is not None:
        scores = torch.empty_like(scores)  # without a mask the softmax is made in place
    # The product takes the place of the query.
    mixed = packed[0, :, : rows[0]].view(batch, heads, rows[0], each)
    mixed = mixed.transpose(1, 2).reshape(batch * rows[0], width)
    result = torch.addmm(out_bias, mixed, out_weight.t()).view(batch, rows[0], width)
    if not need_weights:
        return result, None
    return result, scores.mean(1) if average_attn_weights else scores
