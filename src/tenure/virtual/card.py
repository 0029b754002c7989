"""What a card has to do with how much memory a kernel asks for."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.cards import Card
from tenure.units import KIB, MIB

_OLDER_WORKSPACE = 8320 * KIB  # 4096 KiB * 2 + 16 KiB * 8, torch 2.0 and later


@dataclass(frozen=True)
class Kernels:
    """A card as its kernels see it; everything that depends on the card reads this.

    Attributes:
        multiprocessors: How many it has.
        threads: Resident threads of one multiprocessor.
        capability: Compute capability.
        matmul_workspace: Bytes of cuBLAS's workspace, one for each thread that multiplies.
        fused_workspace: Bytes of cuBLASLt's, likewise.
        attention: The fused attention that torch takes first for 16-bit inputs without a mask.
        measured: Whether a recording on such a card confirmed these.
    """

    multiprocessors: int
    threads: int
    capability: tuple[int, int]
    matmul_workspace: int = _OLDER_WORKSPACE
    fused_workspace: int = MIB
    attention: str = "flash"
    measured: bool = False


_HOPPER = Kernels(132, 2048, (9, 0), 32 * MIB, attention="cudnn")
_BY_CARD = {
    "rtx3080": Kernels(68, 1536, (8, 6)),
    "rtx3060": Kernels(28, 1536, (8, 6)),
    "t4": Kernels(40, 1024, (7, 5), attention="efficient"),
    "v100-16": Kernels(80, 2048, (7, 0), attention="efficient"),
    "v100-32": Kernels(80, 2048, (7, 0), attention="efficient"),
    "a10g": Kernels(80, 1536, (8, 6)),
    "l4": Kernels(58, 1536, (8, 9)),
    "rtx4090": Kernels(128, 1536, (8, 9)),
    "rtx3090": Kernels(82, 1536, (8, 6)),
    "rtx5090": Kernels(170, 1536, (12, 0), 32 * MIB),
    "a100-40": Kernels(108, 2048, (8, 0)),
    "a100-80": Kernels(108, 2048, (8, 0)),
    "l40s": Kernels(142, 1536, (8, 9)),
    "a6000": Kernels(84, 1536, (8, 6)),
    "h100": _HOPPER,
    "h20": Kernels(78, 2048, (9, 0), 32 * MIB, attention="cudnn"),
    "h200": Kernels(132, 2048, (9, 0), 32 * MIB, attention="cudnn", measured=True),
    "b200": Kernels(148, 2048, (10, 0), 32 * MIB, attention="cudnn"),
}


def kernels_of(card: Card) -> Kernels:
    """How a card's kernels ask for memory; a card known by its size alone is taken for an H100."""
    return _BY_CARD.get(card.name, _HOPPER)
