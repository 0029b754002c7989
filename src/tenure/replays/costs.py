"""What calls to the driver cost, to charge a replay in time.

Measured on one H200 with driver 580 and CUDA 13 (shared with the recordings); another card has
other costs, so every figure can be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure.settings import AllocatorSettings

MICROSECOND = 1e-6
MIB = 1 << 20


@dataclass(frozen=True)
class DriverCosts:
    """Microseconds per call, and per MiB where the size matters.

    Attributes:
        malloc: One cudaMalloc.
        free: One cudaFree on an idle device; behind running work it waits for all of it.
        free_mib: More per MiB of it.
        create: One physical chunk (cuMemCreate).
        map: Mapping it (cuMemMap).
        access: Making it readable and writable (cuMemSetAccess).
        unmap: Unmapping it.
        release: Giving it back (cuMemRelease).
        release_mib: More per MiB of it.
    """

    malloc: float = 90.0
    free: float = 47.0
    free_mib: float = 0.75
    create: float = 14.0
    map: float = 1.0
    access: float = 30.0
    unmap: float = 20.0
    release: float = 15.0
    release_mib: float = 0.6


H200 = DriverCosts()


def torch_stall(
    statistics: Mapping[str, int], settings: AllocatorSettings, costs: DriverCosts = H200
) -> float:
    """Seconds of driver calls beyond those that a job needs to reach its peak once.

    Charged are all returns, and the requests that ask again for what was returned. Not charged is
    the wait of a cudaFree, or of a retry, for the work on the device: a recording does not say how
    long that is (up to a whole step).

    Args:
        statistics: Counters of a replay under torch rules.
        settings: Its settings: they decide the size of a chunk.
        costs: What calls cost.
    """
    asked = statistics["reserved_bytes.all.allocated"]
    returned = statistics["reserved_bytes.all.freed"]
    again = max(asked - statistics["reserved_bytes.all.peak"], 0) / max(asked, 1)
    if not settings.expandable_segments:
        asking = statistics["num_device_alloc"] * costs.malloc
        returning = statistics["num_device_free"] * costs.free + returned / MIB * costs.free_mib
        return (again * asking + returning) * MICROSECOND
    asking = _chunks(statistics, "allocated", settings) * (costs.create + costs.map + costs.access)
    chunks = _chunks(statistics, "freed", settings)
    returning = chunks * (costs.unmap + costs.release) + returned / MIB * costs.release_mib
    return (again * asking + returning) * MICROSECOND


def _chunks(statistics: Mapping[str, int], what: str, settings: AllocatorSettings) -> float:
    small = statistics[f"reserved_bytes.small_pool.{what}"] / (2 * MIB)
    return small + statistics[f"reserved_bytes.large_pool.{what}"] / settings.large_segment_size
