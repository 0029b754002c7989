"""Sums, means, norms and their like: partial results of several blocks, staged in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenure.virtual import scratch
from tenure.virtual.steps import OUTPUTS, Call, Step, on_card, planned


def _accumulator(tensor: Any) -> int:
    """Bytes of a partial result: 16-bit floats add up in 32 bits, integers in 64."""
    size = int(tensor.element_size())
    if tensor.dtype.is_complex:
        return max(size, 8)
    return max(size, 4) if tensor.dtype.is_floating_point else 8


def staging_of(source: Any, dims: Any, call: Call) -> Iterator[Step]:
    """Staging and semaphores of a reduction of `source` over `dims`; all of them for None."""
    if not on_card(source):
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


@planned("sum", "mean", "amax", "amin", "any", "all", "prod", "logsumexp")
def _reduction(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if isinstance(dims, (int, list, tuple)) or dims is None:
        yield from staging_of(call.args[0], dims, call)


@planned("linalg_vector_norm")
def _norm(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    dims = call.args[2] if len(call.args) > 2 else call.kwargs.get("dim")
    yield from staging_of(call.args[0], dims, call)
