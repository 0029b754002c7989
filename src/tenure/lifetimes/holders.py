"""Who holds each live byte of a running process: one heading and one chain for every storage."""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.errors import UsageError
from tenure.lifetimes.chains import (
    Heading,
    chain_key,
    chain_text,
    container_of,
    heading_of,
    hook_containers,
)
from tenure.lifetimes.cycles import Cycle, find_cycles, gradient_cycle
from tenure.lifetimes.edges import Edge, Torch
from tenure.lifetimes.walking import Reached, Walk, device_address, storage_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_CYCLES = 6  # gradients whose cycle is told


@dataclass(frozen=True)
class Holder:
    """One live storage and what keeps it.

    Attributes:
        storage: Address that identifies the storage.
        bytes: Bytes of the storage.
        device: Such as "cuda:0".
        heading: Why it is live.
        chain: From a root to a tensor over it, in the program's names.
        key: The chain with indices made alike; holders of one kind share it.
        container: `id` of the container it lies in; 0 if none.
        visible: Bytes that the tensors over it can reach.
        hook: The hook that fills its container, if one does.
        kinds: Kinds of the chain's links.
        cycle: The cycle that keeps it; None if none does.
        address: Where its bytes are on the GPU; 0 elsewhere.
    """

    storage: int
    bytes: int
    device: str
    heading: Heading
    chain: str
    key: str = ""
    container: int = 0
    visible: int = 0
    hook: str = ""
    kinds: tuple[str, ...] = ()
    cycle: Cycle | None = None
    address: int = 0


@dataclass(frozen=True)
class Row:
    """Live bytes under one heading."""

    heading: str
    bytes: int
    storages: int
    chain: str


@dataclass(frozen=True)
class Holders:
    """Every live storage under exactly one heading.

    Attributes:
        device: Which devices were looked at; "" for all.
        live: Bytes of all live storages; the rows add up to it.
        holders: One for each storage, largest first.
        complete: Whether every root was followed to its end in the time given.
        seconds: How long it took.
        dead_cycles: Bytes that only the garbage collector can free.
        live_cycles: Cycles of gradients that are still reachable, with the bytes in them.
    """

    device: str
    live: int
    holders: tuple[Holder, ...]
    complete: bool
    seconds: float
    live_cycles: tuple[tuple[str, int, Cycle], ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The table: bytes by heading, most first, each with its largest holder's chain."""
        table: dict[str, list[Holder]] = {}
        for holder in self.holders:
            table.setdefault(holder.heading.value, []).append(holder)
        rows = [
            Row(name, sum(h.bytes for h in mine), len(mine), mine[0].chain)
            for name, mine in table.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.bytes))

    def __str__(self) -> str:
        from tenure.units import format_bytes

        lines = [f"{format_bytes(self.live)} live in {len(self.holders):,} storages"]
        lines += [
            f"  {format_bytes(row.bytes):>10}  {row.heading:<21} {row.storages:>6,}  {row.chain}"
            for row in self.rows
        ]
        if not self.complete:
            lines.append("  (time ran out before every reference was followed)")
        return "\n".join(lines)


@dataclass
class _Heap:
    """One pass over what Python's collector knows."""

    tensors: list[Any] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)


def holders(
    x: object = None,
    *,
    device: str | None = None,
    seconds: float = 5.0,
    known: Mapping[int, tuple[int, str]] | None = None,
    running: Iterable[object] = (),
    frames_of: BaseException | None = None,
) -> Holders:
    """Says what holds a tensor, a storage, or every live byte of a device.

    Nothing is kept alive, collected or changed, and no code of the program is run: no property,
    no `__getattr__`, no hook.

    Args:
        x: A tensor, a storage, or an address on a GPU; None for everything.
        device: "cuda", "cuda:1" or "cpu"; default: CUDA if it is in use, else the CPU.
        seconds: How long to look at most.
        known: Live storages that were counted otherwise (address -> bytes, device); those that
            no reference leads to are reported as unknown.
        running: Tensors of an operation under way.
        frames_of: An exception that has not been dealt with: its frames count as running.

    Raises:
        UsageError: torch is not in use, or `x` is none of these.
    """
    begun = time.thread_time()
    if "torch" not in sys.modules:
        raise UsageError("no tensors here: torch has not been imported in this process")
    torch = Torch()
    wanted = None if x is None else _which(x, torch)
    place = device if device is not None or x is not None else _default_device(torch.torch)
    with torch.torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  no public name
        return _look(
            torch,
            wanted,
            place or "",
            begun=begun,
            seconds=seconds,
            known=known or {},
            running=running,
            frames_of=frames_of,
        )


def _look(
    torch: Torch,
    wanted: Callable[[Holder], bool] | None,
    device: str,
    *,
    begun: float,
    seconds: float,
    known: Mapping[int, tuple[int, str]],
    running: Iterable[object],
    frames_of: BaseException | None,
) -> Holders:
    heap = _heap(torch)
    fillers = hook_containers(heap.modules, torch)
    roots: list[Edge] = []
    if frames_of is not None and frames_of.__traceback__ is not None:
        roots = list(_traceback_frames(frames_of))
    found = walk(torch, seconds, roots, libraries=False)
    for tensor in running:
        found.meet(0, 1, ("operation", "the running operation", tensor))
    if found.complete:
        found.deadline = begun + seconds
        _finish(found)
    lost = [t for t in heap.tensors if id(t) not in found.came]
    heap.tensors.clear()
    addresses = {a: h for a, h in found.storages.items() if _matches(h.device, device)}
    result = [_holder(found, a, h, fillers) for a, h in addresses.items()]
    result += _unreached(found, lost, device, begun + seconds)
    have = {h.storage for h in result}
    result += [
        Holder(a, size, where, Heading.UNKNOWN, "nothing in Python leads to it")
        for a, (size, where) in known.items()
        if a not in have and a not in found.storages and _matches(where, device)
    ]
    cycles = _live_cycles(found, torch, device) if wanted is None else ()
    if wanted is not None:
        result = [h for h in result if wanted(h)]
    complete = found.complete
    lost.clear()
    found.forget()
    result.sort(key=lambda h: -h.bytes)
    live = sum(h.bytes for h in result)
    return Holders(device, live, tuple(result), complete, time.thread_time() - begun, cycles)


def _heap(torch: Torch) -> _Heap:
    heap = _Heap()
    objects = gc.get_objects()
    types = dict.fromkeys(map(type, objects))  # few, where objects are many
    wanted = {cls: torch.kind_of_type(cls) for cls in types}
    tensors = frozenset(cls for cls, kind in wanted.items() if kind == "tensor")
    modules = frozenset(cls for cls, kind in wanted.items() if kind == "module")
    either = tensors | modules
    if either:
        for one in [o for o in objects if type(o) in either]:
            (heap.tensors if type(one) in tensors else heap.modules).append(one)
    objects.clear()
    return heap


def _finish(found: Walk) -> None:
    try:
        found.run()
    except TimeoutError:
        found.complete = False


def _traceback_frames(error: BaseException) -> Iterable[Edge]:
    from tenure.lifetimes.edges import frame_edges
    from tenure.lifetimes.sources import is_own

    frames = []
    step = error.__traceback__
    while step is not None:
        if not is_own(step.tb_frame.f_code.co_filename):
            frames.append(step.tb_frame)
        step = step.tb_next
    for frame in reversed(frames):
        yield from frame_edges(frame)


def _holder(found: Walk, address: int, reached: Reached, fillers: dict[int, str]) -> Holder:
    links = found.chain(reached.tensor)
    container = container_of(links)
    heading = heading_of(links, frozenset(fillers))
    hook = next((fillers[key] for _, _, key in links if key in fillers), "")
    if not hook:
        hook = next((text.strip() for kind, text, _ in links if kind == "hook"), "")
    return Holder(
        address,
        reached.bytes,
        reached.device,
        heading,
        chain_text(links),
        chain_key(links),
        container,
        reached.visible,
        hook if heading is Heading.HOOK else "",
        tuple(kind for kind, _, _ in links),
        address=reached.address,
    )


def _unreached(found: Walk, lost: list[Any], device: str, deadline: float) -> list[Holder]:
    """Tensors that no root reaches: in a dead cycle, held by a library, or by C++."""
    storages: dict[int, tuple[int, Any]] = {}
    for tensor in lost:
        where = storage_of(tensor)
        if where and where[0] not in found.storages and _matches(str(tensor.device), device):
            storages.setdefault(where[0], (where[1], tensor))
    largest = sorted(storages.items(), key=lambda one: -one[1][0])
    if not largest:
        return []
    cycles: dict[int, Cycle] = {}
    filling: dict[int, str] = {}
    if found.complete:
        tensors = [tensor for _, (_, tensor) in largest]
        cycles = find_cycles(tensors, found.came, found.torch, deadline)
        tensors[:] = [tensor for tensor in tensors if id(tensor) not in cycles]
        if tensors and time.thread_time() < deadline:
            filling = _being_filled(tensors, found.came, {id(tensors), id(lost)})
        tensors.clear()
    result = []
    for address, (size, tensor) in largest:
        cycle = cycles.get(id(tensor))
        heading, chain = Heading.UNKNOWN, "no variable leads to it; held from C++ or a library"
        if cycle:
            heading, chain = Heading.CYCLE, cycle.text
        elif id(tensor) in filling:
            heading, chain = Heading.OPERATION, filling[id(tensor)]
        place = str(tensor.device)
        result.append(
            Holder(
                address,
                size,
                place,
                heading,
                chain,
                chain,
                visible=size,
                cycle=cycle,
                address=device_address(tensor, place),
            )
        )
    storages.clear()
    largest.clear()
    return result


def _being_filled(tensors: list[Any], reached: Mapping[int, Any], own: set[int]) -> dict[int, str]:
    """Tensors in a container that only Python's evaluation holds, such as a list comprehension's.

    Returns:
        `id` of a tensor -> what it lies in.
    """
    wanted = {id(tensor) for tensor in tensors}
    found = {}
    for one in gc.get_referrers(*tensors):
        kind = type(one)
        if kind not in {list, dict, set} or id(one) in reached or id(one) in own:
            continue
        text = f"a {kind.__name__} that is being filled: no variable leads to it yet"
        for item in list(one.values() if kind is dict else one):
            if id(item) in wanted:
                found[id(item)] = text
    return found


def _live_cycles(found: Walk, torch: Torch, device: str) -> tuple[tuple[str, int, Cycle], ...]:
    result = []
    tensors: list[Any] = [one for one in found.kept if torch.kind(one) == "tensor"]
    for tensor in tensors:
        if not tensor.is_leaf or tensor.grad is None:
            continue
        if tensor.grad.grad_fn is None or not _matches(str(tensor.device), device):
            continue
        cycle = gradient_cycle(tensor, torch)
        size = storage_of(tensor.grad)
        if cycle is not None:
            text = chain_text(found.chain(id(tensor)))
            result.append((text, 2 * size[1] if size else 0, cycle))
        if len(result) >= _CYCLES:
            break
    tensors.clear()
    return tuple(result)


def _matches(place: str, device: str) -> bool:
    return not device or place == device or place.split(":", maxsplit=1)[0] == device


def _default_device(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu"


def _which(x: Any, torch: Torch) -> Callable[[Holder], bool]:
    """Tells the holders that were asked for."""
    if type(x) is int:
        return lambda holder: holder.address <= x < holder.address + holder.bytes
    storage = getattr(torch.torch, "UntypedStorage", None)
    if torch.kind(x) == "tensor" and (found := storage_of(x)) is not None:
        address = found[0]
    elif storage is not None and isinstance(x, storage):
        address = x._cdata  # noqa: SLF001  its identity has no public name
    else:
        raise UsageError(f"{type(x).__name__} is neither a tensor, a storage nor an address")
    return lambda holder: holder.storage == address
