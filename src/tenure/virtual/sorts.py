"""Sorting, choosing, counting and selecting: what cub and its callers take in between.

Sizes of sorts, scans and selections matched recordings of torch 2.11 on an H200 for the element
counts seen there; everything else follows from PyTorch's sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tenure.virtual import reductions, scratch
from tenure.virtual.steps import OUTPUTS, Call, Step, bytes_of, on_card, once, planned

_SMALL = 4096  # elements that are sorted within one block
_LONG = 8  # bytes of an index
_BLOCK = 256  # threads


def _argument(call: Call, position: int, name: str, default: Any) -> Any:
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def _length(source: Any, dim: int) -> int:
    return int(source.shape[dim]) if source.dim() else 1


def _is_dense_along(source: Any, dim: int) -> bool:
    return not source.dim() or (source.is_contiguous() and dim % source.dim() == source.dim() - 1)


# --- sorting -------------------------------------------------------------------------------------


@planned("sort", "msort", "argsort", confirmed=True)
def _sort(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    stable = str(call.func).endswith("stable")
    dim = _argument(call, 2 if stable else 1, "dim", -1)
    if on_card(source) and source.numel():
        yield from sorting(source, dim)


def sorting(source: Any, dim: int) -> Iterator[Step]:
    """Temporaries of a sort whose values and indices are there."""
    length, element = _length(source, dim), source.element_size()
    count = source.numel()
    if length <= _SMALL:
        yield from once("range", length * _LONG)
        return
    copied = not _is_dense_along(source, dim)
    if copied:  # and both results are made in that order, then copied
        yield Step("take", "input", bytes_of(source))
        yield Step("take", "values", bytes_of(source))
        yield Step("take", "indices", count * _LONG)
    segments = count // length
    if segments == 1 or length >= 1_000_000:
        yield Step("take", "range", length * _LONG)
        yield from once("sort", scratch.radix_sort(length, key=element))
        yield Step("drop", "range")
    elif segments < 128:
        yield Step("take", "pairs", count * _LONG)
        yield Step("take", "sorted pairs", count * _LONG)
        yield Step("take", "keys", bytes_of(source))
        yield from once("sort", scratch.radix_sort(count, key=element))
        yield Step("drop", "keys")
        bits = max(math.ceil(math.log2(segments)), 1)
        yield from once("sort", scratch.radix_sort(count, bits, value=0))
        yield Step("drop", "sorted pairs")
        yield Step("drop", "pairs")
    else:
        yield Step("take", "range", count * _LONG)
        yield from once("sort", count * (element + _LONG))
        yield Step("drop", "range")
    if copied:
        for name in ("indices", "values", "input"):
            yield Step("drop", name)


@planned("topk")
def _topk(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, count = call.args[0], call.args[1]
    dim = _argument(call, 2, "dim", -1)
    if not on_card(source) or not source.numel() or not count:
        return
    length = _length(source, dim)
    rows = source.numel() // length
    copied = not source.is_contiguous()
    if copied:
        yield Step("take", "input", bytes_of(source))
    if scratch.shares_rows(rows, length):
        yield from _shared_rows(rows, length, call)
    if copied:
        yield Step("drop", "input")
    if count > _SMALL:
        chosen = rows * count
        yield Step("take", "indices", chosen * _LONG)
        yield Step("take", "values", chosen * source.element_size())
        yield Step("take", "range", chosen * _LONG)
        yield from once("sort", scratch.radix_sort(chosen, key=source.element_size()))
        for name in ("range", "values", "indices"):
            yield Step("drop", name)


def _shared_rows(rows: int, length: int, call: Call) -> Iterator[Step]:
    """Buffers of the topk in which several blocks work at one row."""
    blocks = rows * scratch.blocks_of_row(rows, length, call.kernels)
    sizes = (4 * rows, 8 * rows, 8 * rows, 2 * _BLOCK * blocks, 4 * _BLOCK * rows)
    names = [f"buffer{number}" for number in range(len(sizes) + 2)]
    for name, size in zip(names, (*sizes, 4 * blocks, 4 * blocks), strict=True):
        yield Step("take", name, size)
    for name in reversed(names):
        yield Step("drop", name)


@planned("median", "nanmedian")
def _median(call: Call) -> Iterator[Step]:
    source = call.args[0]
    if len(call.args) > 1 or call.kwargs or not on_card(source):
        yield OUTPUTS
        return
    yield Step("take", "values", bytes_of(source))
    yield Step("take", "numbers", source.numel() * _LONG)
    yield from sorting(source.reshape(-1), 0) if source.is_contiguous() else ()
    yield Step("drop", "numbers")
    yield OUTPUTS
    yield Step("drop", "values")


@planned("kthvalue")
def _kth(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if on_card(call.args[0]) and not call.args[0].is_contiguous():
        yield from once("input", bytes_of(call.args[0]))


@planned("randperm")
def _permutation(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    count = call.args[0]
    if not on_card(call.result) or not count:
        return
    # Enough random bits that duplicates are rare: log2(n - (6 n^2 + 1) / (12 ln 0.9)).
    bits = min(64, math.ceil(math.log2(count - (6 * count**2 + 1) / (12 * math.log(0.9)))))
    key = 4 if bits <= 32 else 8
    yield Step("take", "mask", 8)
    yield Step("take", "range", bytes_of(call.result))
    yield Step("take", "keys", count * key)
    yield Step("take", "sorted keys", count * key)
    value = call.result.element_size()
    yield from once("sort", scratch.radix_sort(count, bits, key=key, value=value))
    for name in ("sorted keys", "keys", "range", "mask"):
        yield Step("drop", name)


# --- selecting -----------------------------------------------------------------------------------


def _counting(mask: Any) -> Iterator[Step]:
    """The first half of nonzero: how many there are."""
    yield Step("take", "count", 4)
    yield Step("take", "sum", scratch.count_sum(mask.numel()))


def _placing(mask: Any) -> Iterator[Step]:
    yield from once("select", scratch.selection(mask.numel()))
    yield Step("drop", "sum")
    yield Step("drop", "count")


@planned("nonzero", confirmed=True)
def _nonzero(call: Call) -> Iterator[Step]:
    source = call.args[0]
    if not on_card(source) or not source.numel():
        return
    yield from _counting(source)
    yield OUTPUTS
    yield from _placing(source)


def _masks(indices: Any) -> list[Any]:
    return [
        index
        for index in indices
        if index is not None and index.numel() and str(index.dtype) in {"torch.bool", "torch.uint8"}
    ]


def _places(mask: Any, found: int, number: int) -> Iterator[Step]:
    yield from _counting(mask)
    yield Step("take", f"places{number}", found * mask.dim() * _LONG)
    yield from _placing(mask)


def _uneven(indices: Any) -> list[int]:
    """Bytes of the indices that are copied: all of several are given the same strides."""
    numbers = [i for i in indices if i is not None]
    if len(numbers) < 2 or _masks(indices):
        return []
    width = max(i.dim() for i in numbers)
    shapes = [(1,) * (width - i.dim()) + tuple(i.shape) for i in numbers]
    shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
    alike = all(list(s) == shape for s in shapes) and len({i.stride() for i in numbers}) == 1
    if alike:
        return []
    size = math.prod(shape) * _LONG
    return [size for i, s in zip(numbers, shapes, strict=True)
            if list(s) != shape or not i.is_contiguous()]  # fmt: skip


@planned("index", confirmed=True)
def _index(call: Call) -> Iterator[Step]:
    source, indices = call.args[0], call.args[1]
    if not on_card(source):
        return
    masks = _masks(indices)
    found = call.result.shape[0] if masks and call.result.dim() else 0
    for number, mask in enumerate(masks):
        yield from _places(mask, found, number)
    copies = _uneven(indices)
    for number, size in enumerate(copies):
        yield Step("take", f"copy{number}", size)
    yield OUTPUTS
    for number in reversed(range(len(copies))):
        yield Step("drop", f"copy{number}")
    for number in reversed(range(len(masks))):
        yield Step("drop", f"places{number}")


@planned("masked_select")
def _masked_select(call: Call) -> Iterator[Step]:
    source, mask = call.args[0], call.args[1]
    if not on_card(source) or not mask.numel():
        return
    yield from _places(mask, call.result.shape[0], 0)
    yield OUTPUTS
    yield Step("drop", "places0")


@planned("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", confirmed=True)
def _index_put(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, indices, values = call.args[:3]
    accumulates = _argument(call, 3, "accumulate", default=False)
    if not on_card(source) or not any(i is not None for i in indices):
        return
    masks = _masks(indices)
    if masks and values.numel() == 1 and not on_card(values):
        return  # a masked_fill
    found = values.shape[0] if values.dim() else (masks[0].numel() + 1) // 2 if masks else 0
    for number, mask in enumerate(masks):
        yield from _places(mask, found, number)
    if accumulates:
        count = found if masks else max(i.numel() for i in indices if i is not None)
        dims = sum(i.dim() if any(i is m for m in masks) else 1 for i in indices if i is not None)
        yield from _accumulation(source, values, count, dims)
    for number in reversed(range(len(masks))):
        yield Step("drop", f"places{number}")
    if accumulates:
        return
    copies = _uneven(indices)
    for number, size in enumerate(copies):
        yield Step("take", f"copy{number}", size)
    for number in reversed(range(len(copies))):
        yield Step("drop", f"copy{number}")


def _accumulation(source: Any, values: Any, count: int, dims: int) -> Iterator[Step]:
    """Sorts the indices into `dims` dimensions, so that each place is added to by one thread."""
    size = count * _LONG
    yield Step("take", "wrapped", size)
    yield Step("take", "linear", size)
    yield Step("drop", "wrapped")
    for _ in range(dims - 1):
        yield Step("take", "wrapped", size)
        yield from once("product", size)
        yield Step("drop", "wrapped")
    copied = not values.is_contiguous()
    if copied:
        yield Step("take", "values", bytes_of(values))
    for name in ("sorted", "original", "range"):
        yield Step("take", name, size)
    rows = max(math.prod(source.shape[:dims]) - 1, 1)
    yield from once("sort", scratch.radix_sort(count, rows.bit_length()))
    for name in ("range", "original", "sorted"):
        yield Step("drop", name)
    if copied:
        yield Step("drop", "values")
    yield Step("drop", "linear")


# --- counting ------------------------------------------------------------------------------------


@planned("_unique2", "unique_consecutive")
def _unique(call: Call) -> Iterator[Step]:
    source = call.args[0]
    count, element = source.numel(), source.element_size()
    if not on_card(source) or not count:
        return
    numbered = bool(call.result[1].numel())
    consecutive = "consecutive" in str(call.func)
    if not consecutive:
        yield Step("take", "sorted", count * element)
        if numbered:
            yield Step("take", "range", count * _LONG)
            yield Step("take", "order", count * _LONG)
        value = _LONG if numbered else 0
        yield from once("sort", scratch.radix_sort(count, key=element, value=value))
        if numbered:
            yield Step("drop", "range")
    if numbered:
        yield Step("output", index=1)
        yield from once("scan", scratch.scan(count, _LONG))
    yield OUTPUTS
    yield Step("take", "length", _LONG)
    yield from once("select", scratch.selection(count))
    yield Step("drop", "length")
    if not consecutive:
        if numbered:
            yield Step("drop", "order")
        yield Step("drop", "sorted")


@planned("bincount", "histc")
def _bincount(call: Call) -> Iterator[Step]:
    source = call.args[0]
    if on_card(source) and source.numel():
        for name in ("least", "most"):
            yield Step("take", name, source.element_size())
            yield from reductions.staging_of(source, None, call, source.element_size())
            yield Step("drop", name)
    yield OUTPUTS


@planned("multinomial")
def _multinomial(call: Call) -> Iterator[Step]:
    source, count = call.args[0], call.args[1]
    replaces = _argument(call, 2, "replacement", default=False)
    if not on_card(source):
        return
    size = bytes_of(source)
    if replaces and count > 1:
        yield OUTPUTS
        yield Step("take", "normalised", size)
        yield from once("sums", size)
        yield Step("drop", "normalised")
        return
    yield Step("take", "weights", size)  # divided by exponential numbers; the largest wins
    yield OUTPUTS
    yield Step("drop", "weights")


@planned("nms", library="torchvision")
def _suppression(call: Call) -> Iterator[Step]:
    """Torchvision's non-maximum suppression: a bit for each pair of boxes."""
    boxes, scores = call.args[0], call.args[1]
    count = boxes.shape[0]
    if not on_card(boxes) or not count:
        return
    yield Step("take", "scores", bytes_of(scores))
    yield Step("take", "order", count * _LONG)
    yield from sorting(scores, 0)
    yield Step("drop", "scores")
    yield Step("take", "boxes", bytes_of(boxes))
    yield Step("take", "pairs", count * scratch.up(count, 64) * 8)
    yield OUTPUTS
    for name in ("pairs", "boxes", "order"):
        yield Step("drop", name)
