"""Fourier transforms and linear algebra: copies and workspaces.

Orders and copies are those of PyTorch's SpectralOps and BatchLinearAlgebra; sizes of workspaces are
those that cuFFT and cuSOLVER asked for on an H200, of square matrices and usual lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenure.units import MIB
from tenure.virtual.steps import OUTPUTS, Call, Step, bytes_of, on_card, once, planned

_LONGEST_IN_PLACE = 65_536  # numbers of a transform that needs no workspace
_MOST_DIMENSIONS = 3  # that one transform of cuFFT has
_SMALL_MATRIX = 512  # rows to which eigenvalues are found by rotations
_TINY_MATRIX, _TINY_WORKSPACE = 32, 287_488  # rows of those that are done all at once; bytes each


# --- Fourier transforms ---------------------------------------------------------------------------


@planned("_fft_c2c")
def _complex_to_complex(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, dims = call.args[0], _positive(call.args[1], call.args[0].dim())
    if not on_card(source):
        return
    trailing = set(dims) == set(range(source.dim() - len(dims), source.dim()))
    if not trailing or len(dims) > _MOST_DIMENSIONS or not source.is_contiguous():
        yield Step("take", "other order", bytes_of(call.result))
    yield from _workspace(source, dims, bytes_of(call.result))


@planned("_fft_r2c")
def _real_to_complex(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source, dims = call.args[0], _positive(call.args[1], call.args[0].dim())
    if not on_card(source):
        return
    half = source.numel() // source.shape[dims[-1]] * (source.shape[dims[-1]] // 2 + 1)
    size = half * 2 * source.element_size()
    if not _in_one_go(dims):
        yield Step("take", "last dimension", size)
    yield from _workspace(source, dims, size)


@planned("_fft_c2r")
def _complex_to_real(call: Call) -> Iterator[Step]:
    """Such a transform overwrites what it reads, so it reads a copy."""
    yield OUTPUTS
    source, dims = call.args[0], _positive(call.args[1], call.args[0].dim())
    if not on_card(source):
        return
    yield Step("take", "input", bytes_of(source))
    yield from _workspace(call.result, dims, bytes_of(source))


def _positive(dims: Any, most: int) -> list[int]:
    return [dim % most for dim in dims]


def _in_one_go(dims: list[int]) -> bool:
    return len(dims) <= _MOST_DIMENSIONS and dims[:2] != [0, 1]


def _workspace(source: Any, dims: list[int], size: int) -> Iterator[Step]:
    if any(source.shape[dim] > _LONGEST_IN_PLACE for dim in dims):
        yield from once("workspace", size)


# --- linear algebra -------------------------------------------------------------------------------


@planned("linalg_lu_factor_ex", "linalg_cholesky_ex", "_linalg_det", "_linalg_slogdet")
def _in_place(_call: Call) -> Iterator[Step]:
    yield OUTPUTS


@planned("linalg_inv_ex")
def _inverse(call: Call) -> Iterator[Step]:
    """A factorisation, and the unit matrix solved by it."""
    yield OUTPUTS
    if on_card(call.args[0]):
        yield Step("take", "factors", bytes_of(call.args[0]))
        yield Step("take", "solution", bytes_of(call.args[0]))


@planned("_linalg_solve_ex")
def _solve(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    if on_card(call.args[1]):
        yield from once("right side", bytes_of(call.args[1]))


@planned("cholesky_solve", "cholesky_inverse")
def _solve_with_factors(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    factors = call.args[1] if "solve" in str(call.func) else call.args[0]
    if on_card(factors):
        yield from once("factors", bytes_of(factors))


@planned("linalg_qr")
def _orthogonal(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    if on_card(source):
        words = source.element_size() // 4
        yield from once("workspace", max(3 * MIB, 2 * MIB + 4096 * source.shape[-1]) * words + 128)


@planned("_linalg_eigh")
def _eigenvalues(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    if on_card(source):
        rows = source.shape[-1]
        matrix = rows * rows * source.element_size()
        work = matrix + 160 * rows if rows <= _SMALL_MATRIX else matrix * 25 // 6
        if rows <= _TINY_MATRIX:
            work = _TINY_WORKSPACE * (source.numel() // max(rows * rows, 1))
        yield from once("workspace", work)


@planned("_linalg_svd")
def _singular_values(call: Call) -> Iterator[Step]:
    yield OUTPUTS
    source = call.args[0]
    if on_card(source):
        yield Step("take", "input", bytes_of(source))
        yield from once("workspace", _decomposition(source))


@planned("linalg_pinv")
def _pseudo_inverse(call: Call) -> Iterator[Step]:
    """By singular vectors; the result follows when the copy of the input is gone."""
    yield OUTPUTS
    source = call.args[0]
    if on_card(source):
        yield Step("take", "vectors", 2 * bytes_of(source))
        yield from once("workspace", _decomposition(source))


def _decomposition(source: Any) -> int:
    """Bytes of the workspace for singular values, of one matrix at a time."""
    rows, columns = map(int, source.shape[-2:])
    return 2 * rows * columns * int(source.element_size()) + 280 * max(rows, columns)


@planned("linalg_matrix_exp")
def _exponential(call: Call) -> Iterator[Step]:
    """Powers of the matrix, and those of which the polynomial is made."""
    yield OUTPUTS
    source = call.args[0]
    if on_card(source):
        yield Step("take", "powers", 4 * bytes_of(source))
        yield Step("take", "scaled", bytes_of(source))
        yield Step("take", "terms", 4 * bytes_of(source))
