"""The order in which an operator takes its outputs and what dispatch does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tenure.virtual import scratch
from tenure.virtual.card import Kernels


@dataclass(frozen=True)
class Step:
    """One thing that an operator does with memory.

    Attributes:
        kind: "output" (a new storage by its index; -1 is all that are left), "skip" of one that the
            card does not make, "take" or "drop" of a temporary, "keep" of one that stays for ever.
        name: Of the temporary.
        size: Its bytes.
        index: Of the output's storage among the new ones.
    """

    kind: str
    name: str = ""
    size: int = 0
    index: int = -1


@dataclass(frozen=True)
class Call:
    """An operator with what it was given and what it returned.

    Attributes:
        func: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: What it returned.
        kernels: The card's.
        first_use: Whether this thread uses the workspace of that name for the first time.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    kernels: Kernels
    first_use: Callable[[str], bool]


Plan = Callable[[Call], Iterator[Step]]
OUTPUTS = Step("output")
_PLANS: dict[str, Plan] = {}
_BY_OPERATOR: dict[Any, Plan | None] = {}


def plan_of(func: Any) -> Plan | None:
    """The plan of an operator; None where all it takes are its outputs, in order."""
    try:
        return _BY_OPERATOR[func]
    except KeyError:
        name = str(func)
        plan = _PLANS.get(name) or _PLANS.get(name.rsplit(".", 1)[0])
        _BY_OPERATOR[func] = plan
        return plan


def modelled() -> list[str]:
    """Names of the operators with a plan."""
    return sorted(_PLANS)


def _plan(*names: str) -> Callable[[Plan], Plan]:
    def add(plan: Plan) -> Plan:
        _PLANS.update(dict.fromkeys((f"aten.{name}" for name in names), plan))
        return plan

    return add


def _once(name: str, size: int) -> Iterator[Step]:
    yield Step("take", name, size)
    yield Step("drop", name)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _on_card(tensor: Any) -> bool:
    return bool(tensor.device.type == "cuda")


# --- matrix products -----------------------------------------------------------------------------


@_plan("mm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot")
def _product(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if _on_card(call.result) and call.first_use("matmul"):
        yield Step("keep", size=call.kernels.matmul_workspace)


@_plan("addmm")
def _product_with_bias(call: Call) -> Iterator[Step]:
    yield from _product(call)
    fused = call.args[0].dim() == 1 and call.args[0].is_contiguous()
    if fused and _on_card(call.result) and call.first_use("fused"):
        yield Step("keep", size=call.kernels.fused_workspace)


@_plan("_grouped_mm")
def _grouped_product(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    groups = max(call.args[0].shape[0], call.args[1].shape[0]) if call.args[1].dim() == 3 else 1
    yield Step("take", "groups", 60 * groups)
    yield Step("take", "tiles", 512 * call.kernels.multiprocessors)
    yield Step("drop", "tiles")
    yield Step("drop", "groups")


# --- reductions ----------------------------------------------------------------------------------


def _accumulator(tensor: Any) -> int:
    """Bytes of a partial result: 16-bit floats add up in 32 bits, integers in 64."""
    size = int(tensor.element_size())
    if tensor.dtype.is_complex:
        return max(size, 8)
    return max(size, 4) if tensor.dtype.is_floating_point else 8


def _reduce(source: Any, dims: Any, call: Call) -> Iterator[Step]:
    if not _on_card(source):
        return
    dims = range(source.dim()) if not dims and dims != 0 else dims
    dims = (dims,) if isinstance(dims, int) else dims
    staging, semaphores = scratch.reduction(
        source.shape, source.stride(), dims, _accumulator(source), call.kernels
    )
    if staging:
        yield Step("take", "staging", staging)
        yield Step("take", "semaphores", semaphores)
        yield Step("drop", "semaphores")
        yield Step("drop", "staging")


@_plan("sum", "mean", "amax", "amin", "any", "all", "prod", "logsumexp")
def _reduction(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if isinstance(dims, (int, list, tuple)) or dims is None:
        yield from _reduce(call.args[0], dims, call)


@_plan("linalg_vector_norm")
def _norm(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    dims = call.args[2] if len(call.args) > 2 else call.kwargs.get("dim")
    yield from _reduce(call.args[0], dims, call)


# --- attention, normalisation, dropout -----------------------------------------------------------


@_plan("_scaled_dot_product_cudnn_attention")
def _attention(call: Call) -> Iterator[Step]:
    # The fake kernel returns output, log-sum-exp, seed and offset, in this order.
    yield Step("output", index=2)
    yield Step("output", index=3)
    yield Step("output", index=0)
    if not call.args[4]:
        yield Step("skip", index=1)
    yield OUTPUTS
    yield from _once("workspace", 256)


@_plan("_scaled_dot_product_cudnn_attention_backward")
def _attention_backward(call: Call) -> Iterator[Step]:
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
    yield from _once("workspace", size)


@_plan("native_dropout")
def _dropout(_call: Call) -> Iterator[Step]:
    yield Step("output", index=1)
    yield OUTPUTS


@_plan("_softmax_backward_data")
def _softmax_backward(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if _on_card(call.args[0]):
        yield from _once("product", _bytes(call.args[1]))


@_plan("native_layer_norm")
def _layer_norm(call: Call) -> Iterator[Step]:
    copied = not call.args[0].is_contiguous()
    if copied:
        yield Step("take", "input", _bytes(call.args[0]))
    yield OUTPUTS
    if copied:
        yield Step("drop", "input")


@_plan("native_layer_norm_backward")
def _layer_norm_backward(call: Call) -> Iterator[Step]:
    copies = [t for t in call.args[:2] if not t.is_contiguous()]
    for number, tensor in enumerate(copies):
        yield Step("take", f"copy{number}", _bytes(tensor))
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


@_plan("embedding_dense_backward")
def _embedding_backward(call: Call) -> Iterator[Step]:
    grad, indices, rows = call.args[0], call.args[1], call.args[2]
    count, each = indices.numel(), indices.element_size()
    copied = not grad.is_contiguous()
    if copied:
        yield Step("take", "grad", _bytes(grad))
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
    yield from _once("sort", scratch.radix_sort(count))
    yield Step("drop", "range")
    yield OUTPUTS
    scan = scratch.scan(count, 8)
    yield Step("take", "offsets", size)
    yield Step("take", "count", 8)
    yield Step("take", "unique", size)
    yield from _once("scan", scan)
    yield Step("drop", "unique")
    yield Step("take", "partials", size)
    yield Step("take", "partial-offsets", size)
    yield from _once("scan", scan)
    yield Step("take", "partial-count", 8)
    parts = count // 10 + min(count, rows)
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


@_plan("sort")
def _sort(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    if source.dim() == 1 and _on_card(source):
        count = source.numel()
        yield Step("take", "range", count * 8)
        if count > 4096:
            yield from _once("sort", scratch.radix_sort(count))
        yield Step("drop", "range")


@_plan("cumsum", "cumprod")
def _scan(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, result = call.args[0], call.result
    if not _on_card(source):
        return
    cast = source.dtype != result.dtype
    if cast:
        yield Step("take", "cast", _bytes(result))
    if source.dim() == 1:
        yield from _once("scan", scratch.scan(source.numel(), result.element_size()))
    if cast:
        yield Step("drop", "cast")


# --- convolution ---------------------------------------------------------------------------------


def _is_patches(weight: Any, stride: Any) -> bool:
    return weight.element_size() == 2 and tuple(weight.shape[2:]) == tuple(stride)


@_plan("convolution")
def _convolution(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, weight, stride = call.args[0], call.args[1], call.args[3]
    if _on_card(source) and _is_patches(weight, stride) and weight.shape[-1] > 1:
        size = scratch.patch_embedding(
            _bytes(source), _bytes(weight), _bytes(call.result), source.shape[1], backward=False
        )
        yield from _once("workspace", size)


@_plan("convolution_backward")
def _convolution_backward(call: Call) -> Iterator[Step]:
    grad, source, weight, stride, mask = (
        *call.args[:3],
        call.args[4],
        call.args[10],
    )
    copied = not grad.is_contiguous()
    if copied:
        yield Step("take", "grad", _bytes(grad))
    outputs = sum(map(bool, mask[:2]))
    for index in range(outputs):
        yield Step("output", index=index)
    if mask[1] and _is_patches(weight, stride) and weight.shape[-1] > 1:
        size = scratch.patch_embedding(
            _bytes(source), _bytes(weight), _bytes(grad), source.shape[1], backward=True
        )
        yield from _once("workspace", size)
    if copied:
        yield Step("drop", "grad")
    yield OUTPUTS
    if mask[2]:
        yield from _reduce(grad, [d for d in range(grad.dim()) if d != 1], call)
