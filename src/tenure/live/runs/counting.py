"""The allocator's counters of each device: bytes now and at their highest, and sums so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counters:
    """A device's byte counts by its allocator, now and at their highest since the last reset.

    Attributes:
        device: Its index.
        requested: Bytes live, as asked for.
        allocated: Bytes live, in blocks.
        active: Those, and blocks that wait for another stream.
        reserved: Bytes of segments.
        peak_requested: The highest of each, likewise.
        peak_allocated: Likewise.
        peak_active: Likewise.
        peak_reserved: Likewise.
        allocations: Made so far.
        asked: Bytes of those, as asked for.
        frees: Made so far.
        failures: Out-of-memories, and requests that were tried again after emptying the cache.
    """

    device: int
    requested: int
    allocated: int
    active: int
    reserved: int
    peak_requested: int
    peak_allocated: int
    peak_active: int
    peak_reserved: int
    allocations: int
    asked: int = 0
    frees: int = 0
    failures: int = 0


def counters_of(torch: Any, device: int) -> Counters:
    """A device's counters.

    Raises:
        RuntimeError: The allocator keeps none.
    """
    read = getattr(torch._C, "_cuda_memoryStats", None)  # noqa: SLF001  10 times faster
    if read is None:  # a virtual GPU answers one floor higher
        flat = torch.cuda.memory.memory_stats(device)

        def value(name: str, which: str) -> int:
            return int(flat.get(f"{name}.all.{which}", 0))

        failures = int(flat.get("num_ooms", 0)) + int(flat.get("num_alloc_retries", 0))
    else:
        nested = read(device)

        def value(name: str, which: str) -> int:
            return int(nested.get(name, {}).get("all", {}).get(which, 0))

        failures = int(nested.get("num_ooms", 0)) + int(nested.get("num_alloc_retries", 0))

    # Before torch 2.1 requests are not counted, only the blocks that served them.
    asked = "requested_bytes" if value("requested_bytes", "allocated") else "allocated_bytes"
    return Counters(
        device,
        value("requested_bytes", "current"),
        value("allocated_bytes", "current"),
        value("active_bytes", "current"),
        value("reserved_bytes", "current"),
        value("requested_bytes", "peak"),
        value("allocated_bytes", "peak"),
        value("active_bytes", "peak"),
        value("reserved_bytes", "peak"),
        value("allocation", "allocated"),
        value(asked, "allocated"),
        value("allocation", "freed"),
        failures,
    )


def host_counters(torch: Any) -> dict[str, int]:
    """Pinned host memory by PyTorch's allocator: name -> bytes or blocks now."""
    read = getattr(torch.cuda.memory, "host_memory_stats", None)
    if read is None:
        return {}
    ending = ".current"
    return {
        key.removesuffix(ending): int(value)
        for key, value in read().items()
        if key.endswith(ending)
    }


def segments_of(torch: Any) -> list[dict[str, Any]]:
    """Segments and their blocks, without the events."""
    found: list[dict[str, Any]] = torch.cuda.memory.memory_snapshot()
    return found
