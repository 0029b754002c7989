"""Operators whose kernels take temporaries that no rule describes, and how much that may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_flatten

from tenure.virtual import hidden
from tenure.virtual.tracker import tensors_in

if TYPE_CHECKING:
    from tenure.virtual.memory import Memory

_TEXT = """
    topk kthvalue median unique2 _unique2 unique_consecutive unique_dim nonzero masked_select
    multinomial bincount histc randperm argsort index_put index_put_ _index_put_impl_
    _cudnn_rnn _cudnn_rnn_backward _thnn_fused_lstm_cell _ctc_loss _cudnn_ctc_loss linalg_svd
    linalg_eigh linalg_qr linalg_inv_ex linalg_solve_ex linalg_cholesky_ex _fft_c2c _fft_r2c
    _fft_c2r grid_sampler_2d var var_mean std std_mean argmax argmin max min
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention_backward _int_mm _scaled_mm
    _linalg_svd _linalg_eigh _linalg_eigvals _linalg_det _linalg_slogdet _linalg_solve_ex
    linalg_lu linalg_lu_factor_ex linalg_lstsq linalg_householder_product linalg_solve_triangular
    linalg_matrix_exp ormqr geqrf cholesky_inverse cholesky_solve triangular_solve lu_unpack
    _cdist_forward _cdist_backward _pdist_forward renorm mode _embedding_bag
    _embedding_bag_backward _embedding_bag_dense_backward max_unpool2d
    upsample_bicubic2d_backward upsample_bilinear2d_backward segment_reduce
    segment_reduce_backward _sparse_mm_reduce_impl _spdiags
"""
_NAMES = frozenset(f"aten.{name}" for name in _TEXT.split())
_TIMES = 4  # what it reads and writes: a sort of pairs keeps both twice, and counts


class Unmodelled:
    """Watches for operators that take an unknown amount of memory.

    Attributes:
        counts: How often each ran.
        reach: Most bytes allocated, had each taken four times what it reads and writes.
    """

    def __init__(self, memory: Memory) -> None:
        self.counts: dict[str, int] = {}
        self.reach = 0
        self._memory = memory
        self._planned = set(hidden.modelled())
        self._names = set(_NAMES)

    def add(self, func: Any) -> None:
        """An operator of which nothing is known but what it returns."""
        self._names.add(str(func).rsplit(".", 1)[0])

    def watch(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Sees an operator that has just run."""
        name = str(func).rsplit(".", 1)[0]
        if name not in self._names or name in self._planned:
            return
        tensors = [t for v in tree_flatten((args, kwargs, result))[0] for t in tensors_in(v)]
        touched = sum(t.numel() * t.element_size() for t in tensors if t.device.type == "cuda")
        if touched:
            self.counts[name] = self.counts.get(name, 0) + 1
            self.reach = max(self.reach, self._memory.allocated() + _TIMES * touched)
