"""The order in which an operator takes its outputs and what dispatch does not show."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.virtual import attentions as _attentions
from tenure.virtual import convolutions as _convolutions
from tenure.virtual import reductions as _reductions
from tenure.virtual import scratch
from tenure.virtual import sorts as _sorts
from tenure.virtual import transforms as _transforms
from tenure.virtual.steps import (
    OUTPUTS,
    Call,
    Step,
    bytes_of,
    guessed,
    is_guess,
    modelled,
    on_card,
    once,
    plan_of,
    planned,
)

__all__ = ["RECURRENT", "Call", "Step", "guessed", "is_guess", "modelled", "plan_of"]
# Modules that are imported for the plans in them.
_OTHERS = (_attentions, _convolutions, _reductions, _sorts, _transforms)


RECURRENT = "aten._cudnn_rnn.default"  # runs in recurrent.py, as one operator
_MAXIMUM = 2  # mode of a bag of embeddings


@planned("_cudnn_rnn")
def _recurrent(_call: Call) -> Iterator[Step]:
    yield OUTPUTS


# --- matrix products -----------------------------------------------------------------------------


@planned("mm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", confirmed=True)
def _product(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if on_card(call.result) and call.first_use("matmul"):
        yield Step("keep", size=call.kernels.matmul_workspace)


@planned("addmm", confirmed=True)
def _product_with_bias(call: Call) -> Iterator[Step]:
    yield from _product(call)
    fused = call.args[0].dim() == 1 and call.args[0].is_contiguous()
    if fused and on_card(call.result) and call.first_use("fused"):
        yield Step("keep", size=call.kernels.fused_workspace)


@planned("_grouped_mm", confirmed=True)
def _grouped_product(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    groups = max(call.args[0].shape[0], call.args[1].shape[0]) if call.args[1].dim() == 3 else 1
    yield Step("take", "groups", 60 * groups)
    yield Step("take", "tiles", 512 * call.kernels.multiprocessors)
    yield Step("drop", "tiles")
    yield Step("drop", "groups")


# --- normalisation, dropout -----------------------------------------------------------


@planned("native_dropout", confirmed=True)
def _dropout(_call: Call) -> Iterator[Step]:
    yield Step("output", index=1)
    yield OUTPUTS


@planned("_softmax_backward_data", confirmed=True)
def _softmax_backward(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if on_card(call.args[0]):
        yield from once("product", bytes_of(call.args[1]))


@planned("native_layer_norm", confirmed=True)
def _layer_norm(call: Call) -> Iterator[Step]:
    copied = not call.args[0].is_contiguous()
    if copied:
        yield Step("take", "input", bytes_of(call.args[0]))
    yield OUTPUTS
    if copied:
        yield Step("drop", "input")


@planned("native_layer_norm_backward", confirmed=True)
def _layer_norm_backward(call: Call) -> Iterator[Step]:
    copies = [t for t in call.args[:2] if not t.is_contiguous()]
    for number, tensor in enumerate(copies):
        yield Step("take", f"copy{number}", bytes_of(tensor))
    yield OUTPUTS
    source, shape = call.args[1], call.args[2]
    width = 1
    for size in shape:
        width *= size
    rows = source.numel() // max(width, 1)
    partials = scratch.layer_norm_partials(rows, width, call.kernels)
    if partials:
        yield from _partial_sums(partials, width, call)
    for number in reversed(range(len(copies))):
        yield Step("drop", f"copy{number}")


def _partial_sums(partials: int, width: int, call: Call) -> Iterator[Step]:
    """Two tables of partial sums, each then reduced over its rows."""
    for name in ("scale", "shift"):
        yield Step("take", name, partials * width * 4)
    staging, semaphores = scratch.reduction((partials, width), (width, 1), (0,), 4, call.kernels)
    for name in ("scale", "shift"):
        yield Step("take", name + "-sum", width * 4)
        if staging:
            yield Step("take", "staging", staging)
            yield Step("take", "semaphores", semaphores)
            yield Step("drop", "semaphores")
            yield Step("drop", "staging")
        yield Step("drop", name)


# --- indices -------------------------------------------------------------------------------------


@planned("embedding_dense_backward", confirmed=True)
def _embedding_backward(call: Call) -> Iterator[Step]:
    grad, indices, rows = call.args[0], call.args[1], call.args[2]
    count, each = indices.numel(), indices.element_size()
    copied = not grad.is_contiguous()
    if copied:
        yield Step("take", "grad", bytes_of(grad))
    if count > 3072:
        yield from _sorted_embedding(count, each, rows, grad.shape[-1])
    else:
        yield OUTPUTS
    if copied:
        yield Step("drop", "grad")


def _sorted_embedding(count: int, each: int, rows: int, width: int) -> Iterator[Step]:
    size = count * each
    for name in ("sorted", "original", "range"):
        yield Step("take", name, size)
    yield from once("sort", scratch.radix_sort(count))
    yield Step("drop", "range")
    yield OUTPUTS
    scan = scratch.scan(count, 8)
    yield Step("take", "offsets", size)
    yield Step("take", "count", 8)
    yield Step("take", "unique", size)
    yield from once("scan", scan)
    yield Step("drop", "unique")
    segments = min(count, rows)
    yield Step("take", "partials", segments * each)
    yield Step("take", "partial-offsets", segments * each)
    yield from once("scan", scan)
    yield Step("take", "partial-count", 8)
    parts = count // 10 + segments
    yield Step("take", "part-offsets", parts * each)
    yield Step("take", "part-sums", parts * width * 4)
    for name in (
        "part-sums",
        "part-offsets",
        "partial-count",
        "partial-offsets",
        "partials",
        "count",
        "offsets",
        "original",
        "sorted",
    ):
        yield Step("drop", name)


@planned("_embedding_bag", "_embedding_bag_forward_only")
def _bags(_call: Call) -> Iterator[Step]:
    """The result last, but for the maxima."""
    for index in (2, 1, 0):
        yield Step("output", index=index)
    yield OUTPUTS


@planned("_embedding_bag_backward", "_embedding_bag_dense_backward")
def _bags_backward(call: Call) -> Iterator[Step]:
    grad, indices = call.args[:2]
    whole = "dense" not in str(call.func)  # takes the offsets too, and whether it is sparse
    rows, mode = call.args[5 + whole], call.args[7 + whole]
    if mode == _MAXIMUM or (whole and call.args[9]) or not on_card(grad):
        yield OUTPUTS
        return
    yield from _sorted_embedding(indices.numel(), indices.element_size(), rows, grad.shape[-1])


@planned(
    *("upsample_bilinear2d_backward", "upsample_nearest2d_backward", "grid_sampler_2d"),
    *("upsample_bicubic2d_backward", "grid_sampler_2d_backward", "grid_sampler_3d"),
)
def _interpolation(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    grad = call.args[0]
    if "backward" in str(call.func) and on_card(grad) and not grad.is_contiguous():
        yield from once("grad", bytes_of(grad))


@planned("_ctc_loss_backward")
def _ctc_backward(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if on_card(call.result):
        yield from once("backward sums", bytes_of(call.args[6]))


@planned("_ctc_loss")
def _ctc(_call: Call) -> Iterator[Step]:
    yield OUTPUTS


@planned("roll", confirmed=True)
def _roll(call: Call) -> Iterator[Step]:
    shifts = call.args[1]
    for _ in range(len(shifts) - 1 if on_card(call.args[0]) else 0):
        yield from once("rolled", bytes_of(call.args[0]))
    yield OUTPUTS


@planned("cumsum", "cumprod", confirmed=True)
def _scan(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, result = call.args[0], call.result
    if not on_card(source):
        return
    cast = source.dtype != result.dtype
    if cast:
        yield Step("take", "cast", bytes_of(result))
    if source.dim() == 1:
        yield from once("scan", scratch.scan(source.numel(), result.element_size()))
    if cast:
        yield Step("drop", "cast")
