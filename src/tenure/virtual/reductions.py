"""Sums, means, norms and their like: partial results of several blocks, staged in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenure.virtual import scratch
from tenure.virtual.steps import OUTPUTS, Call, Step, bytes_of, on_card, planned

_PAIR = 16  # a value of 32 or 64 bits with an index; likewise a running mean with its spread


def _accumulator(tensor: Any) -> int:
    """Bytes of a partial sum: 16-bit floats add up in 32 bits, integers in 64."""
    size = int(tensor.element_size())
    if tensor.dtype.is_complex:
        return max(size, 8)
    return max(size, 4) if tensor.dtype.is_floating_point else 8


def staging_of(
    source: Any, dims: Any, call: Call, accumulator: int | None = None
) -> Iterator[Step]:
    """Staging and semaphores of a reduction.

    Args:
        source: The tensor.
        dims: Over which; None is all.
        call: For the card.
        accumulator: Bytes of a partial result; of a sum's if not given.
    """
    if not on_card(source):
        return
    dims = range(source.dim()) if not dims and dims != 0 else dims
    dims = (dims,) if isinstance(dims, int) else dims
    staging, semaphores = scratch.reduction(
        source.shape, source.stride(), dims, accumulator or _accumulator(source), call.kernels
    )
    if staging:
        yield Step("take", "staging", staging)
        yield Step("take", "semaphores", semaphores)
        yield Step("drop", "semaphores")
        yield Step("drop", "staging")


def _dims(call: Call, position: int = 1) -> Any:
    dims = call.args[position] if len(call.args) > position else call.kwargs.get("dim")
    return dims if isinstance(dims, (int, list, tuple)) and not isinstance(dims, bool) else None


def _results(call: Call) -> list[Any]:
    return list(call.result) if isinstance(call.result, (list, tuple)) else [call.result]


@planned("sum", "mean", "prod", "nansum", confirmed=True)
def _sum(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, result = call.args[0], call.result
    if not on_card(source):
        return
    widened = result.dtype.is_floating_point and source.element_size() == 2
    cast = source.dtype != result.dtype and not (widened and result.element_size() == 4)
    if cast:
        yield Step("take", "cast", source.numel() * result.element_size())
    yield from staging_of(source, _dims(call), call, _accumulator(result) if cast else None)
    if cast:
        yield Step("drop", "cast")


@planned("amax", "amin", "aminmax", "max", "min", confirmed=True)
def _extremes(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    if len(call.args) > 1 and hasattr(call.args[1], "dtype"):
        return  # the larger of two tensors, element by element
    with_index = len(_results(call)) > 1 and "aminmax" not in str(call.func)
    yield from staging_of(source, _dims(call), call, _PAIR if with_index else source.element_size())


@planned("any", "all", confirmed=True)
def _truth(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    yield from staging_of(call.args[0], _dims(call), call, 1)


@planned("argmax", "argmin", "var", "std", "var_mean", "std_mean")
def _paired(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    size = 2 * _PAIR if source.element_size() == 8 and "arg" not in str(call.func) else _PAIR
    yield from staging_of(source, _dims(call), call, size)


@planned("logsumexp")
def _log_sum_exp(call: Call) -> Iterator[Step]:
    source = call.args[0]
    if not on_card(source):
        return
    yield Step("take", "largest", bytes_of(call.result))
    yield from staging_of(source, _dims(call), call, source.element_size())
    yield Step("take", "differences", bytes_of(source))
    yield OUTPUTS
    yield from staging_of(source, _dims(call), call)
    yield Step("drop", "differences")
    yield Step("drop", "largest")


@planned("linalg_vector_norm", "norm", confirmed=True)
def _norm(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    yield from staging_of(call.args[0], _dims(call, 2), call)


@planned("_foreach_norm", "_foreach_max")
def _norms(call: Call) -> Iterator[Step]:
    """Partial results for chunks of 65,536 elements, as many for each tensor as the largest has."""
    tensors = [t for t in call.args[0] if on_card(t)]
    if not tensors:
        return
    chunks = max(scratch.up(t.numel(), 65_536) for t in tensors)
    yield Step("take", "partials", len(tensors) * chunks * max(tensors[0].element_size(), 4))
    yield OUTPUTS
    yield Step("drop", "partials")


# --- normalisation of groups ---------------------------------------------------------------------


@planned("native_group_norm")
def _group_norm(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, weight, bias, batch, channels, pixels = call.args[:6]
    if on_card(source) and pixels > 1 and (weight is not None or bias is not None):
        size = batch * channels * max(source.element_size(), 4)
        yield Step("take", "scale", size)
        yield Step("take", "shift", size)
        yield Step("drop", "shift")
        yield Step("drop", "scale")


@planned("native_group_norm_backward")
def _group_norm_backward(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, weight, batch, channels, groups = (
        call.args[1],
        call.args[4],
        *call.args[5:7],
        (call.args[8]),
    )
    if not on_card(source):
        return
    each = max(source.element_size(), 4)
    wide, narrow = batch * channels * each, batch * groups * each
    sizes = [wide, wide, *((wide,) if weight is not None else ()), narrow, narrow]
    for number, size in enumerate(sizes):
        yield Step("take", f"sums{number}", size)
    for number in reversed(range(len(sizes))):
        yield Step("drop", f"sums{number}")


@planned("repeat_interleave")
def _repeats(call: Call) -> Iterator[Step]:
    if on_card(call.args[0]):
        yield Step("take", "ends", call.args[0].numel() * 8)
        yield OUTPUTS
        yield Step("drop", "ends")
