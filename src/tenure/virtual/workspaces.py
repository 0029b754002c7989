"""How much cuDNN takes to work in, as far as its choices follow from sizes.

cuDNN decides on the card, by heuristics that nobody publishes. What it takes follows from how its
kernels work, once one is chosen: those for tensor cores want channels_last and copy what is not;
a sum over images and pixels is split among the multiprocessors that the tiles of the result leave
idle, and each part is kept in 32 bits until all are added. Recordings of torch 2.11 on an H200 gave
the numbers here: which kernel is chosen at which size. For other cards and sizes they are a guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.virtual.card import Kernels

_SMALL_WINDOW = 9  # elements of a filter that has kernels of its own
_FEW_CHANNELS = 4
_NARROW = 16  # channels below which a product of matrices has kernels of its own
_TILE = 128  # of a matrix product's result
_TILE_BYTES = _TILE * _TILE * 4
_ALIGNMENT, _PARTS_ALIGNMENT = 16, 144
_DEEP = 2_048  # channels of a 1x1 convolution from which copies are worth their while, in 32 bits
_DEEP_16_BITS = 384  # in 16 bits, where pixels are not aligned
_LARGE_WEIGHT = 1 << 17  # elements
_MANY_PIXELS = 10_000
_MANY_RESULTS = 32_768  # pixels of all images' results
_FEW_RESULTS = 25_000
_FEW_PIXELS = 2_048  # of all images
_WINOGRAD_TILE, _WINOGRAD_PRODUCTS = 4, 36  # 4x4 pixels of a 3x3 convolution by 6x6 products


@dataclass(frozen=True)
class Shape:
    """A convolution by its sizes.

    Attributes:
        inputs: Bytes of the input, as all sizes here without its batch's padding.
        weights: Bytes of the weight.
        outputs: Bytes of the output.
        batch: How many images.
        channels: Of the input.
        filters: Channels of the output.
        groups: Of channels.
        window: Elements of a filter, of one channel.
        size: Of one image of the input, in pixels: its height and width.
        strided: Whether it skips pixels.
        patches: Whether its stride is its window.
        element: Bytes of an element.
        channels_last: Its layout.
        bfloat16: Whether its elements are.
        tf32: Whether 32 bits may be multiplied as TF32, as PyTorch allows cuDNN by default.
    """

    inputs: int
    weights: int
    outputs: int
    batch: int
    channels: int
    filters: int
    groups: int
    window: int
    size: tuple[int, ...]
    strided: bool
    patches: bool
    element: int
    channels_last: bool
    bfloat16: bool = False
    tf32: bool = True

    @property
    def empty(self) -> bool:
        """Whether it has no image, no channel or no pixel."""
        return not (self.inputs and self.outputs and self.weights)

    @property
    def small_window(self) -> bool:
        """Whether its window is 3x3."""
        return self.window == _SMALL_WINDOW and len(self.size) == 2

    @property
    def pixels(self) -> int:
        """Of one image of the input."""
        return math.prod(self.size)

    @property
    def plain(self) -> bool:
        """Whether it is a product of matrices, without a window."""
        return self.window == 1 and not self.strided

    @property
    def aligned(self) -> bool:
        """Whether 16 bytes hold whole pixels, so that NCHW needs no copy."""
        return self.pixels == 1 or self.pixels * self.element % _ALIGNMENT == 0

    @property
    def results(self) -> int:
        """Pixels of all images of the output."""
        return self.outputs // (self.filters * self.element)

    @property
    def copies(self) -> int:
        """Bytes of the input and the output in channels_last, and what aligns them."""
        return self.inputs + self.outputs + _ALIGNMENT

    @property
    def partial(self) -> int:
        """Bytes of a part of the weight's gradient, in 32 bits."""
        return self.weights // self.element * 4

    @property
    def padded(self) -> int:
        """To how many channels few of them are padded."""
        return 8 if self.bfloat16 or (self.patches and self.element == 2) else 4

    def widened(self, size: int, to: int) -> int:
        """Bytes of an input or a weight with its channels padded."""
        return size // self.channels * (-(-self.channels // to) * to)


def workspace(shape: Shape, kernels: Kernels, *, backward: bool = False) -> int:
    """Bytes of the workspace of a convolution, or of its gradient by the input."""
    if shape.empty or shape.pixels == 1 or not _on_tensor_cores(shape, kernels):
        return 0
    if shape.channels < _FEW_CHANNELS:
        return _image_gradient_workspace(shape) if backward else _image_workspace(shape)
    if shape.channels_last:
        return 0
    if shape.plain:
        return shape.copies if _is_copied(shape, backward=backward) else 0
    if backward or shape.element == 2:
        return shape.copies + (shape.weights if shape.window > 1 else 0)
    if _is_written_in_place(shape):
        return shape.inputs + shape.weights + _ALIGNMENT
    if shape.window > 1:
        return shape.copies + shape.weights + _last_wave(shape, kernels)
    return shape.copies if shape.filters >= 2 * _TILE else 0


def _is_written_in_place(shape: Shape) -> bool:
    """Whether only the input is copied, in 32 bits, and the result is written as it has to be."""
    if shape.window == 1:
        return shape.filters >= 2 * _TILE and shape.results >= _MANY_RESULTS
    many = shape.filters * 2 >= shape.channels * 5
    return many and shape.small_window and shape.results <= _FEW_RESULTS


def weight_workspace(shape: Shape, kernels: Kernels) -> int:
    """Bytes of the workspace of a convolution's gradient by the weight."""
    if shape.empty or shape.pixels == 1 or not _on_tensor_cores(shape, kernels):
        return 0
    if shape.channels < _FEW_CHANNELS:
        return _image_weight_workspace(shape, kernels)
    if shape.channels_last:
        grouped = shape.groups > 1 and shape.element == 4
        return _sums(shape, kernels) + (shape.copies if grouped else 0)
    if shape.plain:
        return _plain_weight_workspace(shape, kernels)
    if _is_winograd(shape):
        return _winograd(shape)
    return shape.copies + _sums(shape, kernels) + (shape.weights if shape.window > 1 else 0)


# --- first layers, which read the colours of images -----------------------------------------------


def _image_workspace(shape: Shape) -> int:
    """Small windows and most patches have kernels of their own, which copy nothing."""
    if shape.window <= _SMALL_WINDOW:
        return 0
    if shape.patches and (shape.window % 64 or (shape.element == 4 and shape.window > 256)):
        return 0
    copied = shape.widened(shape.inputs, shape.padded) + shape.widened(shape.weights, shape.padded)
    if shape.element == 4:
        copied = shape.inputs + shape.weights
    return copied + _ALIGNMENT + (0 if shape.channels_last else shape.outputs)


def _image_gradient_workspace(shape: Shape) -> int:
    """Seldom asked for: where an image is what is learnt."""
    if shape.element == 4 and not shape.channels_last:
        return 0
    if shape.patches and (shape.channels_last or shape.window % 64 == 0):
        return shape.copies + shape.weights
    if shape.patches:
        return 0
    if shape.element == 4 and shape.strided:
        return shape.copies + shape.weights
    to = 8 if shape.element == 2 else 4
    copied = shape.widened(shape.inputs, to) + shape.widened(shape.weights, to) + _ALIGNMENT
    return copied if shape.channels_last else copied + shape.outputs


def _image_weight_workspace(shape: Shape, kernels: Kernels) -> int:
    small = shape.window <= _SMALL_WINDOW
    if shape.element == 4 and small and (shape.batch >= 8 or not shape.strided):
        return 0
    if shape.element == 2 and shape.window >= 1024:
        return shape.partial
    parts = _parts(_tiles(shape), kernels)
    if shape.patches:
        parts = min(parts, 7) if shape.results > _FEW_PIXELS else 1
    elif shape.window > _SMALL_WINDOW:
        parts = -(-parts * 2 // 5)
    wide = shape.widened(shape.inputs, shape.padded) + parts * shape.widened(
        shape.weights, shape.padded
    )
    copied = 0 if shape.channels_last and shape.element == 2 else shape.outputs
    return wide + copied + _PARTS_ALIGNMENT


# --- products of matrices ---------------------------------------------------------------------


def _is_copied(shape: Shape, *, backward: bool) -> bool:
    """Whether a product of matrices is done in channels_last, though its tensors are not."""
    few, many = sorted((shape.filters, shape.channels))
    if few < _NARROW:
        return False
    if shape.element == 4:
        deep = many >= _DEEP and few >= _DEEP // 4
        return deep or (shape.channels >= _DEEP and not backward)
    if backward:
        return shape.pixels % 2 == 1 and few * many >= _LARGE_WEIGHT
    enough = shape.channels >= _DEEP_16_BITS and shape.results < _MANY_PIXELS
    return enough and not shape.aligned


def _plain_weight_workspace(shape: Shape, kernels: Kernels) -> int:
    """A product for each image, each into a part of its own; else one product of copies.

    The latter in 32 bits where the former are too few to keep the card busy, or more than it takes
    at once; in 16 bits where the parts would take as much as half of the copies.
    """
    split = shape.batch * shape.partial
    if shape.element == 2:
        return split if shape.aligned or split < shape.copies // 2 else shape.copies
    blocks = shape.batch * _tiles(shape)
    narrow = shape.filters < _NARROW and shape.pixels > _MANY_PIXELS
    if narrow or blocks < 8:
        return shape.copies + _sums(shape, kernels)
    return shape.copies if blocks > 2 * kernels.multiprocessors else split


# --- windows --------------------------------------------------------------------------------------


def _last_wave(shape: Shape, kernels: Kernels) -> int:
    """Bytes of partial sums of those tiles of the result that are left for the last.

    They are split among all multiprocessors, where these are twice as many or more. Where they are
    not, and much of the card would idle, tiles half as wide are taken.
    """
    if shape.element == 2 or not shape.small_window or shape.filters < 2 * _TILE:
        return 0
    processors = kernels.multiprocessors
    rows = -(-shape.results // _TILE)
    if shape.results // shape.batch % 8:
        return 0
    for width in (2 * _TILE, _TILE):
        tiles = rows * -(-shape.filters // width)
        left = tiles % processors
        if tiles <= 2 * processors:
            return 0
        if left and left <= processors // 2:
            parts = min(processors // left, shape.window * shape.channels // _TILE)
            return left * parts * _TILE * width * 4
        if left > processors * 3 // 4 or tiles > 10 * processors:
            return 0
    return 0


def _is_winograd(shape: Shape) -> bool:
    few = shape.batch * shape.pixels <= _FEW_PIXELS
    return shape.small_window and not shape.strided and shape.element == 4 and few


def _winograd(shape: Shape) -> int:
    """Input, output and weight, each transformed: 36 numbers for 16 pixels, or for 9 weights."""
    tiles = shape.batch * math.prod(-(-n // _WINOGRAD_TILE) for n in shape.size)
    channels, filters = shape.channels, shape.filters
    products = channels * tiles + filters * tiles + channels * filters
    return _WINOGRAD_PRODUCTS * products * shape.element


# --- sums over images and pixels ------------------------------------------------------------------


def _tiles(shape: Shape) -> int:
    """Into how many tiles the weight's gradient falls: each of one place of the window.

    Kernels for 16 bits take two places and fewer channels.
    """
    across = shape.channels // shape.groups
    filters = -(-shape.filters // _TILE)
    if across < _FEW_CHANNELS:
        return filters
    if shape.channels_last and shape.element == 2 and shape.window > 1:
        return -(-shape.window // 2) * filters * -(-across // (_TILE // 4))
    return shape.window * filters * -(-across // _TILE)


def _sums(shape: Shape, kernels: Kernels) -> int:
    """Bytes of the parts in which a weight's gradient is summed up."""
    tiles = _tiles(shape)
    if tiles > kernels.multiprocessors:  # tiles begin and end within a multiprocessor's share
        return kernels.multiprocessors * _TILE_BYTES if shape.element == 4 else 0
    parts = _parts(tiles, kernels)
    if shape.channels_last and shape.element == 4:
        parts = 0 if shape.window > 1 else 2 * kernels.multiprocessors // tiles
    return parts * shape.partial if parts > 1 else 0


def _parts(tiles: int, kernels: Kernels) -> int:
    return max(kernels.multiprocessors // tiles, 1)


def _on_tensor_cores(shape: Shape, kernels: Kernels) -> bool:
    """Others work in NCHW as it is: no copies."""
    if shape.groups > 1 and shape.groups == shape.channels:
        return False
    if shape.element == 2:
        return kernels.capability >= (7, 0)
    return shape.element == 4 and shape.tf32 and kernels.capability >= (8, 0)
