"""From every root outwards, nearest first: which storage is reached, and by which chain."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.lifetimes.edges import SKIPPED, Edge, Torch, edges_of
from tenure.lifetimes.roots import (
    frame_roots,
    global_roots,
    interpreter_roots,
    library_frame_roots,
    library_roots,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# Plain references first, then what only autograd, an exception, or a library keeps.
_PLAIN, _GRAPH, _EXCEPTION, _LIBRARY = range(4)
_PHASE = {"graph": _GRAPH, "exception": _EXCEPTION, "library": _LIBRARY}
# References that say what a tensor is; they replace a nearer chain that does not.
_OWNING = frozenset({"parameter", "buffer", "grad", "state"})
_LONGEST = 48  # links of a chain that are looked at


@dataclass
class Reached:
    """A storage that was found.

    Attributes:
        tensor: `id` of the tensor through which it was found first.
        bytes: Bytes of the whole storage.
        device: Such as "cuda:0".
        address: Where its bytes are; 0 if they are not on a GPU.
        visible: Bytes that the tensors found over it can reach, at most.
        tensors: How many tensors over it were found.
    """

    tensor: int
    bytes: int
    device: str
    address: int = 0
    visible: int = 0
    tensors: int = 0


@dataclass
class Walk:
    """What a walk found. Holds every object it met until `forget` is called.

    Attributes:
        came: `id` of an object -> `id` of what holds it (0: a root), kind, text.
        storages: Address of a storage -> what was found.
        complete: Whether every root was followed to its end.
    """

    torch: Torch
    deadline: float
    came: dict[int, Edge3] = field(default_factory=dict)
    storages: dict[int, Reached] = field(default_factory=dict)
    complete: bool = False
    kept: list[object] = field(default_factory=list)
    queues: tuple[deque[tuple[object, str]], ...] = field(
        default_factory=lambda: (deque(), deque(), deque(), deque())
    )

    def meet(self, parent: int, phase: int, edge: Edge) -> None:
        """Notes an object the first time it is met, for its own turn."""
        kind, text, child = edge
        if type(child) in SKIPPED or child is self or child is self.came:
            return
        key = id(child)
        known = self.came.get(key)
        if known is not None:
            if kind in _OWNING and known[1] not in _OWNING and phase == _PLAIN:
                self.came[key] = (parent, kind, text)
            return
        self.came[key] = (parent, kind, text)
        self.kept.append(child)
        self.queues[max(phase, _PHASE.get(kind, 0))].append((child, kind))

    def run(self) -> None:
        """Follows what is noted, plain references before all others."""
        count = 0
        while True:
            for phase, queue in enumerate(self.queues):  # noqa: B007  which is used below
                if queue:
                    break
            else:
                return
            child, _ = queue.popleft()
            count += 1
            if count % 512 == 0 and time.thread_time() > self.deadline:
                raise TimeoutError
            if self.torch.kind_of_type(type(child)) == "tensor":
                self.note(child)
            key = id(child)
            for edge in edges_of(child, self.torch):
                if type(edge[2]) not in SKIPPED:
                    self.meet(key, phase, edge)

    def note(self, tensor: Any) -> None:
        """Adds a tensor's storage."""
        found = storage_of(tensor)
        if found is None:
            return
        address, size = found
        reached = self.storages.get(address)
        if reached is None:
            place = str(tensor.device)
            reached = Reached(id(tensor), size, place, device_address(tensor, place))
            self.storages[address] = reached
        reached.tensors += 1
        reached.visible = min(size, reached.visible + tensor.numel() * tensor.element_size())

    def chain(self, key: int) -> list[tuple[str, str, int]]:
        """Links from a root to an object: kind, text, `id` of what the link leads to."""
        links: list[tuple[str, str, int]] = []
        while key and len(links) < _LONGEST and key in self.came:
            parent, kind, text = self.came[key]
            links.append((kind, text, key))
            key = parent
        return links[::-1]

    def forget(self) -> None:
        """Lets go of everything that was met."""
        self.kept.clear()
        self.came.clear()
        self.storages.clear()
        for queue in self.queues:
            queue.clear()


Edge3 = tuple[int, str, str]


def storage_of(tensor: Any) -> tuple[int, int] | None:
    """Address that identifies a tensor's storage, and its bytes; None if it has none."""
    if is_imagined(tensor):
        return None
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()  # noqa: SLF001  its identity (no public name)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def is_imagined(tensor: Any) -> bool:
    """Whether a tensor has a device and a size but no memory: those that torch.compile traces with.

    A virtual GPU's are of the same class; their mode says that they stand for memory.
    """
    if type(tensor).__module__ != "torch._subclasses.fake_tensor":
        return False
    return not getattr(tensor.fake_mode, "stands_for_memory", False)


def device_address(tensor: Any, place: str) -> int:
    """Where a tensor's storage begins on its GPU; 0 elsewhere, and where there are no bytes."""
    if not place.startswith("cuda"):
        return 0
    try:
        storage = tensor.untyped_storage()
        return int(storage.data_ptr()) if storage.device.type == "cuda" else 0
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0


def walk(torch: Torch, seconds: float, extra: Iterable[Edge], *, libraries: bool) -> Walk:
    """Follows every root.

    Args:
        torch: The classes of torch.
        seconds: How long to look at most.
        extra: More roots, before all others.
        libraries: Also the variables of installed packages.
    """
    found = Walk(torch, time.thread_time() + seconds)
    sources = [extra, frame_roots(), global_roots(), library_frame_roots(), interpreter_roots()]
    if libraries:
        sources.append(library_roots())
    try:
        for source in sources:
            for edge in source:
                found.meet(0, _PHASE.get(edge[0], 0), edge)
        found.run()
        found.complete = True
    except TimeoutError:
        pass
    return found
