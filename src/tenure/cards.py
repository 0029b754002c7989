"""Graphics cards by name, and how many bytes of each a process can use."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tenure.errors import UsageError
from tenure.units import GIB, MIB, parse_size

# What a process takes before its first tensor: CUDA context and loaded kernels. It grows with the
# libraries loaded; 500 MiB is what plain PyTorch training takes on recent cards.
CONTEXT = 500 * MIB


@dataclass(frozen=True)
class Card:
    """A card.

    Attributes:
        name: As on the command line.
        title: As people say it.
        total: Bytes that the driver reports in all (less than the label says: part is reserved
            for error correction and the driver). From the H200 measured here; for the others from
            PyTorch's own messages in public reports, the lowest figure seen, since drivers differ
            by some ten MiB.
        context: Bytes of it that the CUDA context and loaded kernels take.
    """

    name: str
    title: str
    total: int
    context: int = CONTEXT

    @property
    def usable(self) -> int:
        """Bytes left for tensors once the context is there."""
        return self.total - self.context


def _card(name: str, title: str, gib: float) -> Card:
    return Card(name, title, int(gib * GIB))


CARDS = (
    _card("rtx3080", "RTX 3080 10 GB", 9.63),
    _card("rtx3060", "RTX 3060 12 GB", 11.63),
    _card("t4", "T4 16 GB", 14.56),
    _card("v100-16", "V100 16 GB", 15.77),
    _card("a10g", "A10G 24 GB", 22.03),
    _card("l4", "L4 24 GB", 22.03),
    _card("rtx4090", "RTX 4090 24 GB", 23.52),
    _card("rtx3090", "RTX 3090 24 GB", 23.56),
    _card("rtx5090", "RTX 5090 32 GB", 31.36),
    _card("v100-32", "V100 32 GB", 31.73),
    _card("a100-40", "A100 40 GB", 39.38),
    _card("l40s", "L40S 48 GB", 44.39),
    _card("a6000", "RTX A6000 48 GB", 47.40),
    _card("h100", "H100 80 GB", 79.10),
    _card("a100-80", "A100 80 GB", 79.14),
    _card("h20", "H20 96 GB", 95.00),
    Card("h200", "H200 141 GB", 150_109_880_320),
    _card("b200", "B200 192 GB", 178.35),
)
_BY_NAME = {card.name: card for card in CARDS}
_ALIASES = {"a100": "a100-80", "v100": "v100-16", "4090": "rtx4090", "3090": "rtx3090"}


def card_named(name: str) -> Card:
    """The card of a name, or a nameless card of a size such as `24GiB`.

    A size is what PyTorch may take: nothing is subtracted from it for the CUDA context.

    Args:
        name: `h100`, `RTX 4090`, or a size.

    Raises:
        UsageError: Neither a card here nor a size; names the nearest.
    """
    key = name.lower().replace(" ", "").replace("_", "-")
    key = _ALIASES.get(key, key)
    if key in _BY_NAME:
        return _BY_NAME[key]
    if key[:1].isdigit():
        return Card(name, name, parse_size(name), context=0)
    near = difflib.get_close_matches(key, _BY_NAME, n=1, cutoff=0.3)
    hint = f"; the nearest is {near[0]}" if near else ""
    raise UsageError(
        f"no card is called {name!r}{hint}; known are {', '.join(_BY_NAME)}, or give a size"
    )


def smallest_fitting(needed: int) -> Card | None:
    """The smallest card here whose usable bytes hold that many; None if none does."""
    fitting = [card for card in CARDS if card.usable >= needed]
    return min(fitting, key=lambda card: card.usable, default=None)
