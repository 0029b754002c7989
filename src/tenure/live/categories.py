"""What live blocks are for, as far as the Python objects of this moment say."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tenure import _engine

OTHERS = "others"
_LIVE = 1


def bytes_by_category(device: int) -> dict[str, int]:
    """Allocated bytes of parameters, gradients, optimizer state and buffers, and of all others.

    Looks through Python's objects: 0.3 s for each million of them.

    Args:
        device: Which GPU.

    Returns:
        Only what there is; empty where no PyTorch is loaded.
    """
    torch = sys.modules.get("torch")
    if not hasattr(torch, "nn"):
        return {}
    named: dict[int, str] = {}
    for name, tensor in _tensors():
        named.setdefault(_address(tensor), name)
    sizes: Counter[str] = Counter()
    for block in _engine.Live.blocks(device):
        if block[4] == _LIVE:
            sizes[named.get(block[1], OTHERS)] += block[2]
    order = (*dict.fromkeys(named.values()), OTHERS)
    return {name: sizes[name] for name in order if sizes[name]}


def _tensors() -> Iterator[tuple[str, Any]]:
    """Those whose purpose is known; parameters first, which buffers or states may share."""
    from tenure.lifetimes.edges import Torch, edges_of

    torch = Torch()
    parameters: list[Any] = []
    keepers: list[Any] = []
    for each in gc.get_objects():
        kind = torch.kind(each)
        if kind == "tensor" and torch.parameter in type(each).__mro__:
            parameters.append(each)
        elif kind in {"module", "optimizer"}:
            keepers.append(each)
    yield from (("parameters", each) for each in parameters)
    leaves = [each for each in parameters if each.is_leaf]  # others warn when asked
    yield from (("gradients", each.grad) for each in leaves if each.grad is not None)
    for wanted, name in (("state", "optimizer state"), ("buffer", "buffers")):
        for keeper in keepers:
            for edge, _, item in edges_of(keeper, torch):
                if edge == wanted and torch.kind(item) == "tensor":
                    yield name, item


def _address(tensor: Any) -> int:
    """Of its storage; 0 where it has none of its own."""
    whole = getattr(tensor, "_local_tensor", tensor)  # this process's part of a distributed one
    try:
        address: int = whole.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0
    return address
