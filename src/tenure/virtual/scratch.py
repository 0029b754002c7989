"""Bytes of the temporaries that CUDA kernels take for themselves: pure functions of shapes.

Each formula reproduced every occurrence in recordings of torch 2.11 on an H200 unless its comment
says otherwise; docs/virtual.md says which operators and how sure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.virtual.card import Kernels

_WARP = 32
_BLOCK_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256  # a thread reduces


def align(size: int, to: int = 256) -> int:
    """`size` rounded up to a multiple of `to`."""
    return -(-size // to) * to


def up(size: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-size // by)


def _last_power(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


@dataclass(frozen=True)
class _Axis:
    size: int
    stride: int  # of the input, elements
    out_stride: int  # of the output, elements; 0 where reduced


def _axes(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> list[_Axis]:
    """The iterator's dimensions: reduced first, then by stride, neighbours merged."""
    reduced = {d % len(shape) for d in dims} if shape else set()
    axes, running = [], 1
    for d in reversed(range(len(shape))):
        axes.append(_Axis(shape[d], strides[d], 0 if d in reduced else running))
        if d not in reduced:
            running *= shape[d]
    axes = [a for a in axes if a.size != 1]
    axes.sort(key=lambda a: (a.out_stride != 0, a.stride))
    merged: list[_Axis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.out_stride == 0) == (axis.out_stride == 0)
            and axis.stride == last.stride * last.size
            and axis.out_stride == last.out_stride * last.size
        ):
            merged[-1] = _Axis(last.size * axis.size, last.stride, last.out_stride)
        else:
            merged.append(axis)
    return merged


def reduction(
    shape: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
    accumulator: int,
    kernels: Kernels,
) -> tuple[int, int]:
    """Staging and semaphore bytes of a reduction (Reduce.cuh's setReduceConfig); (0, 0) for none.

    Args:
        shape: Of the input.
        strides: Of the input, in elements.
        dims: Reduced dimensions; may be negative.
        accumulator: Bytes of one partial result.
        kernels: The card's.
    """
    numel = 1
    for size in shape:
        numel *= size
    axes = _axes(shape, strides, dims)
    if not numel or not axes:
        return 0, 0
    inner = [a for a in axes if a.out_stride == 0]
    outer = [a for a in axes if a.out_stride]
    inputs = 1
    for axis in inner:
        inputs *= axis.size
    outputs = numel // inputs
    if not inner:
        return 0, 0
    fastest = not outer or inner[0].stride < outer[0].stride
    width_of, height_of = (inputs, outputs) if fastest else (outputs, inputs)
    vector = 1
    if fastest and inner[0].stride == 1 and width_of > 128 and len(axes) == 1:
        width_of //= 4
    elif not fastest and outer[0].stride == 1:
        vector = _output_vector(axes, outer[0])
        width_of //= vector
    work = _Work(inputs, outputs, width_of, height_of, vector, fastest)
    return _split(work, accumulator, kernels)


def _output_vector(axes: list[_Axis], along: _Axis) -> int:
    vector = 4
    for number in (along.size, *(a.stride for a in axes if a is not along)):
        while number % vector:
            vector //= 2
    return vector


@dataclass(frozen=True)
class _Work:
    inputs: int  # of each output
    outputs: int
    width_of: int  # what a block's x axis runs over
    height_of: int
    vector: int  # outputs that a thread takes at once
    fastest: bool  # whether it reduces along the fastest dimension


def _split(work: _Work, accumulator: int, kernels: Kernels) -> tuple[int, int]:
    """How the work is split over threads, and what several blocks an output then need."""
    most = _BLOCK_THREADS // work.vector
    wide = _last_power(work.width_of) if work.width_of < most else most
    high = _last_power(work.height_of) if work.height_of < most else most
    width = min(wide, _WARP)
    height = min(high, most // width)
    width = min(wide, most // height)
    step_input, step_output = (width, 1) if work.fastest else (1, width)
    values = up(work.inputs, step_input)
    if values < min(height * 16, _MOST_VALUES):
        return 0, 0  # a block's rows go over outputs, so blocks never share one
    step_input *= height
    values = up(work.inputs, step_input)
    grid = up(work.outputs // work.vector, step_output)
    target = kernels.multiprocessors * (kernels.threads // (width * height))
    if values < _MOST_VALUES or grid > target:
        return 0, 0
    blocks = max(
        min(up(target, grid), up(values, _LEAST_VALUES)),
        up(values, _MOST_VALUES),
    )
    if blocks <= 1:
        return 0, 0
    staging = accumulator * work.outputs * blocks * (1 if work.fastest else width * work.vector)
    return staging, 4 * grid


def attention_backward(
    *, batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int
) -> int:
    """Workspace of cuDNN's attention backward: a 32-bit gradient of q, row sums, grouped heads."""
    size = batch * heads * queries * width * 4 + batch * heads * queries * 4 + 256
    if kv_heads != heads:
        size += 2 * batch * heads * keys * width * 2
    return size


def flash_splits(
    tiles: int, kernels: Kernels, *, queries: int, keys: int, width: int, most: int = 128
) -> int:
    """Among how many blocks flash attention splits the keys where queries alone don't fill a card.

    As its num_splits_heuristic does, from PyTorch's sources; no recording confirmed it.

    Args:
        tiles: Batch times heads.
        kernels: The card's.
        queries: Of a sequence.
        keys: Likewise.
        width: Of a head.
        most: Splits at most.
    """
    across = 256 if width <= 64 else 128 if width <= 128 else 64
    processors, blocks = kernels.multiprocessors * 2, up(keys, across)
    tiles *= up(queries, 64)
    if tiles >= 0.8 * processors:
        return 1
    found = {}
    for splits in range(1, min(most, processors, blocks) + 1):
        if splits == 1 or up(blocks, splits) != up(blocks, splits - 1):
            waves = tiles * splits / processors
            found[splits] = waves / -(-waves // 1)
    best = max(found.values())
    return next(splits for splits, share in found.items() if share >= 0.85 * best)


def radix_sort(count: int, bits: int | None = None, *, key: int = 8, value: int = 8) -> int:
    """Temporary of cub's sort of pairs; confirmed for keys of 4 and 8 bytes, values of 8.

    The recordings fix the first threshold only to 1,260..2,401 and the tile to 4,485..6,726.

    Args:
        count: How many pairs.
        bits: That keys differ in; all of them if not given.
        key: Bytes of a key.
        value: Bytes of a value; 0 for none.
    """
    if count <= 2304:
        return 1
    passes = up(key * 8 if bits is None else bits, 8)
    buffers = align(count * key) + align(count * value) if passes > 1 else 0
    return buffers + 2048 * passes + 1024 * up(count, 4608) + 511


def count_sum(count: int) -> int:
    """Temporary of the sum that counts what is not zero; one size in every recording, >= 8 k."""
    return 21_503 if count > 4096 else 1


def selection(count: int) -> int:
    """Temporary of cub's selection; matched for 8 k to 4.4 million elements."""
    return align((up(count, 4224) + 32) * 8) + 511


def shares_rows(rows: int, length: int) -> bool:
    """Whether several blocks choose the largest of one row (topk's should_use_multiblock)."""
    least = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
    return length >= next((enough for most, enough in least if rows <= most), 400)


def blocks_of_row(rows: int, length: int, kernels: Kernels) -> int:
    """How many blocks choose from one row: of 256 threads with 4 to 64 values each."""
    resident = kernels.multiprocessors * 6 * 256  # 40 registers a thread leave room for six
    values = min(max(up(rows * length, resident), 4), 64)
    return up(length, values * 256)


def scan(count: int, size: int) -> int:
    """Temporary of cub's scan; confirmed up to 8 k elements, the tile beyond is a guess."""
    return align((up(count, 8192) + 32) * 2 * size) + 511


def layer_norm_partials(rows: int, width: int, kernels: Kernels) -> int:
    """Rows of the partial tables that layer norm's backward sums up; 0 for none."""
    if rows <= 65_536 or width // 32 >= kernels.multiprocessors // 2:
        return 0
    return min(32_768 // up(width, 32), up(rows, 32))
