"""Convolutions and batch norm: their layout, which kernel takes them, the order of copies."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tenure.virtual import reductions
from tenure.virtual.steps import OUTPUTS, Call, Step, bytes_of, on_card, once, planned
from tenure.virtual.workspaces import Shape, weight_workspace, workspace

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether c10 takes strides for channels_last; ties, as of 1x1 maps, go to contiguous."""
    if len(shape) not in {4, 5} or strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if not shape[dim] or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(shape[dim], 1)
    return True


def prefers_channels_last(first: Any, second: Any) -> bool:
    """The layout that cuDNN is asked for: channels_last if either tensor has it."""
    if first.element_size() > 4:
        return False
    return any(is_channels_last(t.shape, t.stride()) for t in (first, second))


def is_native_depthwise(source: Any, weight: Any, groups: int, *, transposed: bool) -> bool:
    """Whether PyTorch's own depthwise kernel runs; cuDNN's takes channels_last and most of fp16."""
    depthwise = not transposed and groups > 1 and source.shape[1] == groups
    return depthwise and not prefers_channels_last(source, weight)


def _shape(source: Any, weight: Any, result: Any, *, stride: Any, groups: int) -> Shape:
    return Shape(
        inputs=bytes_of(source),
        weights=bytes_of(weight),
        outputs=bytes_of(result),
        batch=source.shape[0],
        channels=source.shape[1],
        filters=result.shape[1],
        groups=groups,
        window=math.prod(weight.shape[2:]),
        size=tuple(source.shape[2:]),
        strided=any(step != 1 for step in stride),
        patches=tuple(weight.shape[2:]) == tuple(stride),
        element=source.element_size(),
        channels_last=prefers_channels_last(source, weight),
        bfloat16=str(source.dtype) == "torch.bfloat16",
        tf32=bool(sys.modules["torch"]._C._get_cudnn_allow_tf32()),  # noqa: SLF001
    )


def _copy(name: str, tensor: Any, last: bool) -> Iterator[Step]:
    """A copy of a tensor that does not lie as the kernel wants it."""
    if not _lies(tensor, last):
        yield Step("take", name, bytes_of(tensor))


def _lies(tensor: Any, last: bool) -> bool:
    if not last or tensor.dim() not in {4, 5}:
        return bool(tensor.is_contiguous())
    expected, dims = 1, (1, *range(tensor.dim() - 1, 1, -1), 0)
    for dim in dims:
        if tensor.shape[dim] != 1:
            if tensor.stride(dim) != expected:
                return False
            expected *= tensor.shape[dim]
    return True


@planned("convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose")
def _convolution(call: Call) -> Iterator[Step]:
    source, weight = call.args[0], call.args[1]
    if not on_card(source):
        return
    stride, transposed, groups = call.args[3], call.args[6], call.args[8]
    last = prefers_channels_last(source, weight)
    yield from _copy("input", source, last)
    yield OUTPUTS
    if not is_native_depthwise(source, weight, groups, transposed=transposed):
        yield from _copy("weight", weight, last)
        shape = _shape(source, weight, call.result, stride=stride, groups=groups)
        yield from once("workspace", workspace(shape, call.kernels))
    if not _lies(weight, last):
        yield Step("drop", "weight")
    if not _lies(source, last):
        yield Step("drop", "input")


@planned("convolution_backward")
def _convolution_backward(call: Call) -> Iterator[Step]:
    grad, source, weight, stride = *call.args[:3], call.args[4]
    transposed, groups, mask = call.args[7], call.args[9], call.args[10]
    if not on_card(grad):
        return
    last = prefers_channels_last(source, weight)
    if is_native_depthwise(source, weight, groups, transposed=transposed):
        yield from _depthwise_backward(call, grad, mask)
        return
    shape = _shape(source, weight, grad, stride=stride, groups=groups)
    copies = [("grad", grad), ("weight", weight), ("input", source)]
    copies = [(name, tensor) for name, tensor in copies if not _lies(tensor, last)]
    for name, tensor in copies:
        if name == "grad" or (name == "input" and mask[1]):
            yield Step("take", name, bytes_of(tensor))
    if mask[0]:
        yield Step("output", index=0)
        if not _lies(weight, last):
            yield Step("take", "weight", bytes_of(weight))
        yield from once("workspace", workspace(shape, call.kernels, backward=True))
        if not _lies(weight, last):
            yield Step("drop", "weight")
    if mask[1]:
        yield Step("output", index=int(mask[0]))
        yield from once("workspace", weight_workspace(shape, call.kernels))
    for name, _ in copies:
        if name == "grad" or (name == "input" and mask[1]):
            yield Step("drop", name)
    yield from _bias_gradient(call, grad, mask)


def _depthwise_backward(call: Call, grad: Any, mask: Any) -> Iterator[Step]:
    """PyTorch's own kernel: the weight's gradient first."""
    if not grad.is_contiguous():
        yield Step("take", "grad", bytes_of(grad))
    if mask[1]:
        yield Step("output", index=int(mask[0]))
    if mask[0]:
        yield Step("output", index=0)
    if not grad.is_contiguous():
        yield Step("drop", "grad")
    yield from _bias_gradient(call, grad, mask)


def _bias_gradient(call: Call, grad: Any, mask: Any) -> Iterator[Step]:
    yield OUTPUTS
    if mask[2]:
        dims = [d for d in range(grad.dim()) if d != 1]
        yield from reductions.staging_of(grad, dims, call)


# --- batch norm ----------------------------------------------------------------------------------


def _by_cudnn(source: Any, weight: Any) -> bool:
    """Whether cuDNN normalises batches in a way that takes a workspace."""
    usual = str(source.dtype) in {"torch.float32", "torch.float16"}
    return usual and weight is not None and is_channels_last(source.shape, source.stride())


@planned(*("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), confirmed=True)
def _batch_norm(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, training = call.args[0], call.args[5]
    if training and on_card(source) and _by_cudnn(source, call.args[1]):
        # Of three recorded shapes within 0.5 %.
        size = int(0.0504 * source.numel()) + 4 * source.shape[1]
        yield from once("workspace", size)


@planned("native_batch_norm_backward", "cudnn_batch_norm_backward", confirmed=True)
def _batch_norm_backward(call: Call) -> Iterator[Step]:
    grad, source, weight = call.args[0], call.args[1], call.args[2]
    by_cudnn = on_card(source) and _by_cudnn(source, weight)
    copied = by_cudnn and not _lies(grad, True)
    if copied:
        yield Step("take", "grad", bytes_of(grad))
    yield OUTPUTS
    if by_cudnn:
        yield from once("workspace", int(0.0836 * source.numel()) + 4 * source.shape[1])
    if copied:
        yield Step("drop", "grad")
