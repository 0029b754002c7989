"""The counters of torch.cuda.memory_stats, as the reference model keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.reference_blocks import Pool

BY_POOL = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
OVERSIZE = ("oversize_allocations", "oversize_segments")
COUNTS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)


class Statistics:
    """Each quantity has a current value, its peak, and the sums of what came and what went."""

    def __init__(self, version: tuple[int, int]) -> None:
        self.version = version
        self.counts = dict.fromkeys(COUNTS, 0)
        if version >= (2, 12):
            self.counts["num_oom_rejections"] = 0
        self.values: dict[str, dict[str, int]] = {}
        for name in BY_POOL:
            self.add(name)
        for name in OVERSIZE:
            self.values[name] = self.zero()

    @staticmethod
    def zero() -> dict[str, int]:
        return dict.fromkeys(("current", "peak", "allocated", "freed"), 0)

    def add(self, name: str) -> None:
        for part in ("all", "small_pool", "large_pool"):
            self.values.setdefault(f"{name}.{part}", self.zero())

    def change(self, name: str, amount: int) -> None:
        value = self.values[name]
        value["current"] += amount
        value["peak"] = max(value["peak"], value["current"])
        value["allocated" if amount > 0 else "freed"] += abs(amount)

    def change_pool(self, pool: Pool, **amounts: int) -> None:
        for name, amount in amounts.items():
            self.change(f"{name}.all", amount)
            self.change(f"{name}.{'small_pool' if pool.small else 'large_pool'}", amount)

    def change_reserved(self, pool: Pool, amount: int) -> None:
        """[private pools]: from torch 2.13 on each has a count of its own as well."""
        self.change_pool(pool, reserved_bytes=amount)
        if pool.owner.private and self.version >= (2, 13):
            name = "reserved_bytes_by_private_pools.{}_{}".format(*pool.owner.id)
            self.add(name)
            self.change_pool(pool, **{name: amount})

    def reset_peak(self) -> None:
        for value in self.values.values():
            value["peak"] = value["current"]

    def reset_accumulated(self) -> None:
        self.counts = dict.fromkeys(self.counts, 0)
        for value in self.values.values():
            value["allocated"] = value["freed"] = 0

    def flat(self) -> dict[str, int]:
        result = dict(self.counts)
        for name, value in self.values.items():
            result.update({f"{name}.{key}": number for key, number in value.items()})
        return result
