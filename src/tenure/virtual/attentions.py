"""Fused attention: which kernel a card takes, and what that kernel takes for itself.

The order and the conditions are those of PyTorch's sdp_utils.cpp. cuDNN's workspace was recorded on
an H200; those of flash and memory-efficient attention follow from PyTorch's sources, and no
recording confirmed them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.virtual import scratch
from tenure.virtual.steps import OUTPUTS, Call, Step, bytes_of, once, planned

if TYPE_CHECKING:
    from tenure.virtual.card import Kernels

_WIDEST_FLASH = 256


@dataclass(frozen=True)
class Request:
    """What is asked of attention.

    Attributes:
        query: Tensor [batch, heads, queries, width].
        key: Likewise.
        value: Likewise.
        mask: Tensor, or None.
        dropout: Probability.
        causal: Whether later keys are hidden.
        needs_gradient: Of any of the three.
        allowed: What is switched on: of "cudnn", "flash", "efficient", "math".
        deterministic: Whether only such kernels may run.
    """

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    causal: bool
    needs_gradient: bool
    allowed: frozenset[str]
    deterministic: bool = False


def choose(request: Request, kernels: Kernels) -> str:
    """`cudnn`, `flash`, `efficient`, or `math` where none of these can serve the request."""
    query, key, value = request.query, request.key, request.value
    if any(t.dim() != 4 or t.numel() == 0 or t.shape[0] != query.shape[0]
           for t in (query, key, value)):  # fmt: skip
        return "math"
    if key.shape[1] != value.shape[1] or query.shape[1] % key.shape[1]:
        return "math"
    if any(t.stride(-1) != 1 and t.shape[-1] != 1 for t in (query, key, value)):
        return "math"
    order = ["flash", "efficient"]
    if kernels.attention == "cudnn":
        order.insert(0, "cudnn")
    elif "math" not in request.allowed:  # comes before cuDNN there
        order.append("cudnn")
    fits = {"cudnn": _cudnn_can, "flash": _flash_can, "efficient": _efficient_can}
    for name in order:
        if name in request.allowed and fits[name](request, kernels):
            return name
    return "math"


def _is_half(request: Request, kernels: Kernels) -> bool:
    """Whether it works in a 16-bit type that the card's kernels have."""
    if request.query.element_size() != 2:
        return False
    return kernels.capability >= (8, 0) or str(request.query.dtype) == "torch.float16"


def _cudnn_can(request: Request, kernels: Kernels) -> bool:
    widths = (request.query.shape[3], request.value.shape[3])
    limit = 256 if kernels.capability == (9, 0) else 128
    queries, keys = request.query.shape[2], request.key.shape[2]
    mask = request.mask
    return (
        kernels.capability >= (8, 0)
        and _is_half(request, kernels)
        and not request.deterministic
        and all(width <= limit and width % 8 == 0 for width in widths)
        and keys > 1
        and not (queries == 1 and request.dropout)
        and (mask is None or (mask.dim() in {2, 4} and not mask.requires_grad))
    )


def _flash_can(request: Request, kernels: Kernels) -> bool:
    width = request.query.shape[3]
    alike = width == request.key.shape[3] == request.value.shape[3]
    small_card = kernels.capability in {(8, 6), (8, 9), (12, 0)}
    refused = 192 < width <= 224 or (width > 224 and request.dropout > 0)
    return (
        kernels.capability >= (8, 0)
        and _is_half(request, kernels)
        and request.mask is None
        and alike
        and width <= _WIDEST_FLASH
        and not (request.causal and request.query.shape[2] != request.key.shape[2])
        and not (small_card and request.needs_gradient and refused)
    )


def _efficient_can(request: Request, kernels: Kernels) -> bool:
    size = request.query.element_size()
    align = 8 if size == 2 else 4
    return (
        (size == 4 or _is_half(request, kernels))
        and request.query.shape[1] == request.key.shape[1]
        and all(t.shape[3] % align == 0 for t in (request.query, request.value))
    )


# --- cuDNN ---------------------------------------------------------------------------------------


@planned("_scaled_dot_product_cudnn_attention", confirmed=True)
def _cudnn_forward(call: Call) -> Iterator[Step]:
    # The fake kernel returns output, log-sum-exp, seed and offset, in this order.
    yield Step("output", index=2)
    yield Step("output", index=3)
    yield Step("output", index=0)
    if not call.args[4]:
        yield Step("skip", index=1)
    yield OUTPUTS
    yield from once("workspace", 256)


@planned("_scaled_dot_product_cudnn_attention_backward", confirmed=True)
def _cudnn_backward(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    query, key = call.args[1], call.args[2]
    size = scratch.attention_backward(
        batch=query.shape[0],
        heads=query.shape[1],
        kv_heads=key.shape[1],
        queries=query.shape[2],
        keys=key.shape[2],
        width=query.shape[3],
    )
    yield from once("workspace", size)


# --- flash ---------------------------------------------------------------------------------------


@planned("_scaled_dot_product_flash_attention")
def _flash_forward(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    query, key = call.args[0], call.args[1]
    batch, heads, queries, width = query.shape
    dropout = call.args[3] if len(call.args) > 3 else call.kwargs.get("dropout_p", 0.0)
    if dropout:
        return
    parts = scratch.flash_splits(
        batch * heads, call.kernels, queries=queries, keys=key.shape[2], width=width
    )
    if parts > 1:
        rows = parts * batch * heads * queries * 4
        yield Step("take", "sums", rows)
        yield Step("take", "outputs", rows * scratch.align(width, 32))
        yield Step("drop", "outputs")
        yield Step("drop", "sums")


@planned("_scaled_dot_product_flash_attention_backward")
def _flash_backward(call: Call) -> Iterator[Step]:
    query, key, value = call.args[1:4]
    batch, heads, queries, width = query.shape
    yield OUTPUTS
    rows = batch * heads * scratch.align(queries, 128) * 4
    yield Step("take", "row sums", rows)
    yield Step("take", "query gradient", rows * scratch.align(width, 32))
    grouped = heads != key.shape[1]
    times = heads // key.shape[1]
    if grouped:
        yield Step("take", "key gradient", bytes_of(key) * times)
        yield Step("take", "value gradient", bytes_of(value) * times)
        yield Step("drop", "value gradient")
        yield Step("drop", "key gradient")
    yield Step("drop", "query gradient")
    yield Step("drop", "row sums")


# --- memory-efficient ----------------------------------------------------------------------------


@planned("_scaled_dot_product_efficient_attention")
def _efficient_forward(call: Call) -> Iterator[Step]:
    query, value = call.args[0], call.args[2]
    yield Step("output", index=0)
    yield Step("output", index=1)
    for index in (2, 3):  # seed and offset lie on the host
        yield Step("skip", index=index)
    if query.element_size() == 2 and value.shape[3] > 128:
        yield from once("accumulator", math.prod(query.shape[:3]) * value.shape[3] * 4)
    yield OUTPUTS


@planned("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: Call) -> Iterator[Step]:
    query = call.args[1]
    batch, heads, queries, width = query.shape
    yield OUTPUTS
    yield Step("take", "delta", batch * heads * scratch.align(queries, 32) * 4)
    if query.element_size() == 2:
        rows = batch * heads * scratch.align(queries, 64)
        yield from once("query gradient", rows * scratch.align(width, 64) * 4)
    yield Step("drop", "delta")
