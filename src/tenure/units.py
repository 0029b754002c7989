"""Bytes and counts as people write and read them."""

from __future__ import annotations

import re

from tenure.errors import UsageError

KIB = 1 << 10  # bytes
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_UNITS = {
    "": 1,
    "B": 1,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": TIB,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes meant by a size such as `14GiB`, `5.5GiB`, `20MB` or `1048576`.

    `KiB MiB GiB TiB` are powers of 1024, `kB MB GB TB` powers of 1000; case does not matter.
    A fraction of a byte is dropped.

    Args:
        text: A number with a unit, or plain bytes.

    Returns:
        The size in bytes, 0 or more.

    Raises:
        UsageError: The text is not a size, or its unit is not one of the above.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size; write 14GiB, 5.5GiB or plain bytes")
    number, unit = match["number"], match["unit"]
    factor = _UNITS.get(unit.upper())
    if factor is None:
        raise UsageError(f"{text!r}: unknown unit {unit!r}; write B, KiB, MiB, GiB or TiB")
    whole, _, fraction = number.partition(".")
    if fraction and factor == 1:
        raise UsageError(f"{text!r}: bytes come whole; write KiB, MiB, GiB or TiB for a fraction")
    scale: int = 10 ** len(fraction)
    # In integers throughout: a float would lose bytes above 2**53.
    return int(whole + fraction) * factor // scale


def format_bytes(size: float) -> str:
    """A size in the largest binary unit that leaves at least one whole: `20.54 GiB`, `512 B`.

    Args:
        size: Bytes; may be negative, for a difference.
    """
    magnitude = abs(size)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # Rounded first, so that 1023.999 MiB reads 1.00 GiB and not 1024.00 MiB.
        if round(magnitude * 1024 / factor, 2) >= 1024:
            return f"{size / factor:.2f} {unit}"
    return f"{size:.0f} B"


def format_count(count: int) -> str:
    """A count with a comma between thousands: `525,000`."""
    return f"{count:,}"
