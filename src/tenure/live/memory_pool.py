"""torch.cuda.MemPool on the engine: PyTorch's own asks the allocator for what plug-ins lack."""

from __future__ import annotations

from typing import Any

from tenure import _engine


class MemPool:
    """A pool of its own for what is allocated under torch.cuda.use_mem_pool.

    Args:
        allocator: Must be None: the memory comes from the engine.
        use_on_oom: Requests of the default pool may take its free blocks before they fail.
        no_split: Blocks are handed out whole.
    """

    def __init__(
        self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
    ) -> None:
        import torch

        if allocator is not None:
            raise RuntimeError(
                "tenure: a MemPool with an allocator of its own cannot be made, because PyTorch's "
                "interface for allocators lacks createOrIncrefPool"
            )
        self.allocator = None
        self.device: int = torch.cuda.current_device()
        capture, user = torch.cuda.graph_pool_handle()  # unique among graphs' pools too
        self._id = (int(capture), int(user))
        _engine.Live.create_memory_pool(
            self.device, self._id, use_on_oom=use_on_oom, no_split=no_split
        )

    @property
    def id(self) -> tuple[int, int]:
        """The two numbers that name the pool."""
        return self._id

    def use_count(self) -> int:
        """How many hold the pool: this object, and whoever allocates to it now."""
        return _engine.Live.pool_use_count(self.device, self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Its segments, as torch.cuda.memory_snapshot() lists them."""
        from tenure.live.snapshot import snapshot

        segments: list[dict[str, Any]] = snapshot(self._id, traces=False)["segments"]
        return segments

    def __del__(self) -> None:
        if hasattr(self, "_id"):
            _engine.Live.release_pool(self.device, self._id)
