"""Device memory that other processes got from this one, through CUDA's handles between processes.

A block that was sent stays allocated here until every receiver has let go and `ipc_collect()` has
seen it, whatever this process does with its own tensor.
"""

from __future__ import annotations

import multiprocessing
import time
import weakref
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SELDOM = 50  # times as long as a look took, until the next


@dataclass
class Shared:
    """A storage that was sent to another process.

    Attributes:
        address: Where it is on the device.
        bytes: Its size.
        device: Such as "cuda:0".
        held: The most bytes of it seen live after this process had dropped it.
        receivers: Child processes alive at that moment, as "1234 (SpawnProcess-1)".
        seen: Unix time of that moment.
        reference: To its storage, weak.
    """

    address: int
    bytes: int
    device: str
    held: int = 0
    receivers: tuple[str, ...] = ()
    seen: float = 0.0
    reference: Any = None


@dataclass
class Sharing:
    """Notes what is sent, and later what of it only others hold."""

    sent: list[Shared] = field(default_factory=list)
    _before: tuple[Any, Any] | None = None
    _not_before: float = 0.0

    def arm(self, torch: Any) -> None:
        """From now on notes every storage that is sent."""
        storage = torch.UntypedStorage
        before = getattr(storage, "_share_cuda_", None)
        if before is None:
            return
        sent = self.sent

        @wraps(before)
        def share(one: Any, *args: Any, **kwargs: Any) -> Any:
            result = before(one, *args, **kwargs)
            try:
                shared = Shared(int(one.data_ptr()), int(one.nbytes()), str(one.device))
                shared.reference = weakref.ref(one)
                sent.append(shared)
            except (RuntimeError, TypeError):
                pass
            return result

        self._before = (storage, before)
        storage._share_cuda_ = share

    def disarm(self) -> None:
        """Gives PyTorch's method back."""
        if self._before is not None:
            storage, before = self._before
            storage._share_cuda_ = before
            self._before = None

    def look(self, live: Callable[[], dict[int, int]]) -> None:
        """Notes what is still live though this process has no tensor over it any more.

        Args:
            live: Gives address -> bytes of the live blocks; asked only if it matters.
        """
        dropped = [one for one in self.sent if one.reference is None or one.reference() is None]
        if not dropped:
            return
        now = time.time()
        if now < self._not_before:
            return
        try:
            blocks = live()
        except Exception:  # noqa: BLE001  an allocator without snapshots: nothing can be said
            return
        self._not_before = now + SELDOM * (time.time() - now)
        receivers = tuple(f"{p.pid} ({p.name})" for p in multiprocessing.active_children())
        for one in dropped:
            if blocks.get(one.address, 0) > one.held:
                one.held = blocks[one.address]
                one.receivers, one.seen = receivers, now
        gone = {id(one) for one in dropped if one.address not in blocks and not one.held}
        self.sent[:] = [one for one in self.sent if id(one) not in gone]

    def held(self) -> tuple[Shared, ...]:
        """What was seen to be held by others alone."""
        return tuple(one for one in self.sent if one.held)
