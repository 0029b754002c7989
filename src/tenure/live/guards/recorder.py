"""What a guard does at each operator, wait and free: it checks, reports, raises or adds a wait."""

# ruff: noqa: SLF001  identities of storages, stacks of modes: PyTorch has no public names for them

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tenure.diagnoses.racing import race_finding
from tenure.errors import RaceError
from tenure.live.guards.device import Device
from tenure.live.guards.operators import Plan, extent_of, storage_of
from tenure.live.guards.sites import name_of_stream, user_site
from tenure.streams import Checker, PendingFrees, Site, StreamId, Use, dense

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenure.streams import Access, Block, Conflict, Race, Stamp

_BEFORE = Site("", 0, "before the guard")


class Mode(StrEnum):
    """What a guard does about a race."""

    REPORT = "report"
    RAISE = "raise"
    SYNC = "sync"


@dataclass
class Inserted:
    """A wait that the guard added, as often as it did.

    Attributes:
        why: "use", "free" or "host".
        site: The line before which it waits; for a free, the line that frees.
        earlier: The line of the work that is waited for.
        waiting: The stream that waits; None for the host.
        stream: The stream that is waited for.
        bytes: Of the storage, the largest.
        count: How often.
    """

    why: str
    site: Site
    earlier: Site
    waiting: StreamId | None
    stream: StreamId
    bytes: int
    count: int = 1


@dataclass(slots=True)
class _AfterUse:
    """An event behind a use, what it comes after, and the number of that use."""

    event: Any
    stamp: Stamp
    number: int


@dataclass
class Recorder:
    """The state of one guard.

    Attributes:
        mode: What it does about a race.
        checker: What is ordered, and what is not.
        pending: Frees that wait because of record_stream.
        inserted: Waits that were added.
        self_records: Bytes for which record_stream named the owner's own stream, by line.
        self_waits: How often a stream waited for itself, by line.
        names: What the program calls its streams.
        faults: Errors of the guard's own, which never reach the program.
        operators: How many were looked at.
        hears_all: Whether PyTorch's C++ code tells of its events.
    """

    mode: Mode
    device: Device = field(init=False)
    checker: Checker = field(default_factory=Checker)
    pending: PendingFrees = field(default_factory=PendingFrees)
    inserted: dict[object, Inserted] = field(default_factory=dict)
    self_records: dict[Site, int] = field(default_factory=dict)
    self_waits: dict[Site, int] = field(default_factory=dict)
    names: dict[StreamId, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    operators: int = 0
    hears_all: bool = False

    def __post_init__(self) -> None:
        self.device = Device(self._new_stream)
        self.on = True
        self.pinned: set[int] = set()  # storages known to be pinned without asking
        self.registered: set[int] = set()  # addresses pinned by cudaHostRegister
        self.host_keys: set[int] = set()  # storages of the host that copies may still touch
        self._after_use: dict[int, dict[StreamId, _AfterUse]] = {}
        self._references: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._late: deque[tuple[int, Site]] = deque()  # deaths within our own locked code
        self._captures = 0
        self._passed_backward = False

    # --- what orders -----------------------------------------------------------------------------

    def event_recorded(self, stream: StreamId) -> Stamp:
        """An event was recorded; what it comes after."""
        with self._lock:
            return self.checker.clocks.record(stream)

    def stream_waited(self, stream: StreamId, stamp: Stamp | None) -> None:
        """A stream waits for an event; one that was never recorded orders nothing."""
        if stamp is not None:
            with self._lock:
                self.checker.clocks.wait(stream, stamp)

    def stream_waited_for(self, stream: StreamId, other: StreamId) -> None:
        """A stream waits for all that another has been given."""
        if stream == other:
            site = user_site()
            self.self_waits[site] = self.self_waits.get(site, 0) + 1
            self._name(stream)
            return
        with self._lock:
            self.checker.clocks.wait(stream, self.checker.clocks.record(other))

    def host_waited(self, stamp: Stamp | None) -> None:
        """The host waited for an event."""
        if stamp is not None:
            with self._lock:
                self.checker.clocks.host_waits(stamp)

    def host_waited_for(self, stream: StreamId) -> None:
        """The host waited for all work of a stream."""
        with self._lock:
            self.checker.clocks.host_waits_for_stream(stream)

    def host_waited_for_device(self, device: int) -> None:
        """The host waited for all work of a device."""
        with self._lock:
            self.checker.clocks.host_waits_for_device(device)

    def cache_emptied(self) -> None:
        """Cached memory went back to the driver, which waits for the work on it."""
        with self._lock:
            self.checker.cache_emptied()

    def capture(self, change: int) -> None:
        """A graph's capture begins (1) or ends (-1)."""
        self._captures += change

    @property
    def capturing(self) -> bool:
        """Whether what is launched goes into a graph: it does not run now, and is not watched."""
        return self._captures > 0 and self.device.capturing()

    # --- work ------------------------------------------------------------------------------------

    def use(self, tensor: Any, *, writes: bool) -> Use | None:
        """What touching a tensor's data means; None if it has none."""
        storage = storage_of(tensor)
        extent = extent_of(tensor) if storage is not None else None
        if extent is None:
            return None
        key = storage._cdata
        if key not in self.checker.blocks:
            self._meet(storage, key, None, _BEFORE, "")
            if self.registered and not tensor.is_cuda:
                self.checker.blocks[key].address = storage.data_ptr()
            if self.mode is Mode.SYNC and tensor.is_cuda:
                self._assume_written(key, StreamId(tensor.device.index or 0, 0))
        return Use(key, extent, writes)

    def _assume_written(self, key: int, default: StreamId) -> None:
        """Under "sync", what was there before the guard may still be written by the default stream.

        Nothing is reported on such a guess; a wait too many does no harm.
        """
        with self._lock:
            number = self.checker.clocks.launched(default) or self.checker.clocks.launch(default)
            every = dense(0, self.checker.blocks[key].bytes)
            use = Use(key, every, writes=True)
            self.checker.touch(default, number, use, "work before the guard", _BEFORE)

    def check(self, stream: StreamId, uses: Sequence[Use], what: str, site: Site) -> None:
        """Looks for races of work that is about to be launched, and acts by the mode."""
        if self._late:
            self._bury_late()
        with self._lock:
            conflicts = self.checker.conflicts(stream, uses)
        if conflicts:
            self._act(conflicts, stream, what, site)

    def launch(self, stream: StreamId, uses: Sequence[Use], what: str, site: Site) -> int:
        """Notes work; its number on its stream."""
        with self._lock:
            return self.checker.launch(stream, uses, what, site, by_autograd=self._passed_backward)

    def made(
        self, tensor: Any, stream: StreamId, number: int, plan: Plan, site: Site, *, filled: bool
    ) -> None:
        """Notes a tensor that work returned; it is new if its storage is."""
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        block = self.checker.blocks.get(key)
        races: list[Race] = []
        if block is None:
            races = self._meet(storage, key, stream, site, plan.name)
        elif block.bytes or not storage.nbytes():
            return
        else:  # `out=` of a tensor that was empty
            block.bytes, block.owner, block.born = storage.nbytes(), stream, site
            block.address = self.device.address(storage)
        extent = extent_of(tensor)
        if filled and extent is not None:
            with self._lock:
                use = Use(key, extent, writes=True)
                self.checker.touch(stream, number, use, plan.name, site)
        if races:
            self._told(races)

    def after(self, stream: StreamId, number: int, uses: Sequence[Use]) -> None:
        """Under "sync", records an event behind the use of another stream's storages."""
        if self.mode is not Mode.SYNC:
            return
        foreign = [use.key for use in uses if self._is_foreign(use.key, stream)]
        if not foreign:
            return
        event = self.device.event(stream)
        with self._lock:
            entry = _AfterUse(event, self.checker.clocks.record(stream), number)
        for key in foreign:
            self._after_use.setdefault(key, {})[stream] = entry

    def _is_foreign(self, key: int, stream: StreamId) -> bool:
        block = self.checker.blocks.get(key)
        if block is None:
            return False
        if key in self.host_keys:
            return True
        return stream.handle != 0 if block.owner is None else block.owner != stream

    def in_backward(self, node: Any, stream: StreamId) -> None:
        """Notes whether work belongs to a backward pass.

        Where PyTorch's own waits are not heard, a backward pass is taken to order everything, as
        autograd promises.
        """
        inside = node is not None
        if not self.hears_all and (inside or self._passed_backward):
            with self._lock:
                clocks = self.checker.clocks
                for other in clocks.streams:
                    clocks.wait(stream, clocks.record(other))
        self._passed_backward = inside

    # --- memory of the host ----------------------------------------------------------------------

    def pin(self, tensor: Any) -> None:
        """Notes that a tensor's memory is pinned."""
        storage = storage_of(tensor)
        if storage is not None:
            self.pinned.add(storage._cdata)

    def is_pinned(self, tensor: Any) -> bool:
        """Whether copies from and to a tensor of the host run while the host goes on."""
        storage = storage_of(tensor)
        if storage is None:
            return False
        return storage._cdata in self.pinned or (self.device.real and tensor.is_pinned())

    def host_access(self, uses: Sequence[Use], what: str, site: Site) -> None:
        """Looks for races of what the host is about to do itself, and acts by the mode."""
        with self._lock:
            conflicts = self.checker.host_conflicts(uses)
            for use in uses:
                block = self.checker.blocks.get(use.key)
                known = self.checker.clocks.known_done
                if block is None or all(a.number <= known(a.stream) for a in block.accesses):
                    self.host_keys.discard(use.key)
        if not conflicts:
            return
        if self.mode is not Mode.SYNC:
            self._act(conflicts, None, what, site)
            return
        for conflict, use in ((c, u) for c in conflicts for u in uses):
            entry = self._after_use.get(use.key, {}).get(conflict.earlier.stream)
            if self.checker.blocks.get(use.key) is conflict.block:
                self._host_waits(conflict, entry, site)

    def _host_waits(self, conflict: Conflict, entry: _AfterUse | None, site: Site) -> None:
        earlier = conflict.earlier
        if entry is None or entry.number < earlier.number:
            entry = self._now(earlier.stream)
        self.device.host_wait(entry.event)
        self.host_waited(entry.stamp)
        self._insert("host", site, earlier, None, conflict.block.bytes)

    def host_reads(self, tensor: Any) -> None:
        """The host reads a tensor without an operator (`tolist`)."""
        if self.host_keys and not tensor.is_cuda:
            use = self.use(tensor, writes=False)
            if use is not None and use.key in self.host_keys:
                self.host_access([use], "tolist", user_site())

    def unregistered(self, address: int, *_: Any) -> None:
        """The program is about to give up pinned memory that PyTorch does not look after."""
        self.registered.discard(address)
        for key in list(self.host_keys):
            block = self.checker.blocks.get(key)
            if block is not None and block.address == address:
                self._host_loses(key, block, "cudaHostUnregister", user_site())

    def _host_loses(self, key: int, block: Block, what: str, site: Site) -> None:
        self.host_access([Use(key, dense(0, block.bytes), writes=True)], what, site)

    # --- births and deaths -----------------------------------------------------------------------

    def recorded(self, tensor: Any, stream: Any) -> bool:
        """The program calls record_stream; whether PyTorch should still be told.

        Under "sync" it should not: at the free, the owner's stream waits instead.
        """
        storage = storage_of(tensor)
        block = None
        if storage is not None:
            block = self.checker.blocks.get(storage._cdata)
        if block is None or self.capturing:
            return True
        which = self.device.id_of(stream)
        site = user_site()
        self._name(which)
        with self._lock:
            effective = self.checker.record_stream(storage._cdata, which, site)
        if not effective:
            self.self_records[site] = max(self.self_records.get(site, 0), block.bytes)
        return self.mode is not Mode.SYNC or block.owner is None

    def resizes(self, storage: Any, *_size: int) -> None:
        """A storage gives its memory back and gets other memory."""
        key = storage._cdata
        block = self.checker.blocks.get(key)
        if block is not None and block.owner is not None:
            self._bury(key, user_site())

    def resized(self, storage: Any) -> None:
        """A storage got other memory, or none."""
        key = storage._cdata
        if key in self._references and key not in self.checker.blocks and storage.nbytes():
            stream = self.device.current(storage.device.index or 0)
            with self._lock:
                address = self.device.address(storage)
                self.checker.born(key, storage.nbytes(), stream, user_site(), address=address)

    def _meet(
        self, storage: Any, key: int, owner: StreamId | None, site: Site, what: str
    ) -> list[Race]:
        """Notes a storage that is new to us, and its death to come."""
        if self._late:
            self._bury_late()
        size, address = storage.nbytes(), self.device.address(storage) if owner else 0
        self._references[key] = weakref.ref(storage, lambda _: self._gone(key))
        with self._lock:
            self.pending.settle(self.checker.clocks)
            return self.checker.born(key, size, owner, site, address=address, what=what)

    def _gone(self, key: int) -> None:
        """A storage dies, on any thread and at any time: its memory is freed right after this."""
        if not self.on or sys.is_finalizing():
            return
        self._references.pop(key, None)
        block = self.checker.blocks.get(key)
        if block is None:
            return
        # With one stream nobody else can be using it.
        alone = len(self.checker.clocks.streams) < 2 and key not in self.host_keys
        site = Site("", 0, "") if alone else user_site()
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self.quietly(self._bury, key, site)
        else:  # a collection within our own locked code
            self._late.append((key, site))

    def _bury_late(self) -> None:
        while self._late:
            self._bury(*self._late.popleft())

    def _bury(self, key: int, site: Site) -> None:
        block = self.checker.blocks.get(key)
        if block is None:
            return
        if key in self.host_keys and block.address in self.registered:
            with contextlib.suppress(RaceError):  # nothing can be raised where memory is freed
                self._host_loses(key, block, "free", site)
        self.host_keys.discard(key)
        self.pinned.discard(key)
        if not self.capturing and block.owner is not None:
            if self.mode is Mode.SYNC:
                self._owner_waits(key, block, block.owner, site)
            elif block.recorded:
                self._pending(block, site)
        self._after_use.pop(key, None)
        with self._lock:
            freed = self.checker.died(key, site)
        if freed is not None and freed.foreign:
            for access in freed.foreign:
                self._name(access.stream)

    def _owner_waits(self, key: int, block: Block, owner: StreamId, site: Site) -> None:
        """Lets the owner wait for the last use of each other stream, so that it may reuse."""
        with self._lock:
            unfinished = self.checker.unfinished(key)
        entries = self._after_use.get(key, {})
        for access in unfinished:
            entry = entries.get(access.stream)
            behind = access.stream in block.recorded and _unseen_kernels()
            if entry is None or entry.number < access.number or behind:
                entry = self._now(access.stream)
            self._wait(owner, entry)
            self._insert("free", site, access, owner, block.bytes)
        seen = {access.stream for access in block.accesses}
        for stream in block.recorded.keys() - seen:  # by kernels that no operator shows
            self._wait(owner, self._now(stream))

    def _pending(self, block: Block, site: Site) -> None:
        done: Callable[[], bool] | None = None
        if self.device.real:
            events = [self.device.event(stream) for stream in block.recorded]

            def done() -> bool:
                return all(self.device.done(event) for event in events)

        with self._lock:
            self.pending.add(block, site, self.checker.clocks, done)

    # --- acting ----------------------------------------------------------------------------------

    def _act(
        self, conflicts: Sequence[Conflict], stream: StreamId | None, what: str, site: Site
    ) -> None:
        if self.mode is Mode.SYNC and stream is not None:
            for earlier in {c.earlier.stream: c for c in conflicts}.values():
                self._wait(stream, self._now(earlier.earlier.stream))
                self._insert("use", site, earlier.earlier, stream, earlier.block.bytes)
            return
        with self._lock:
            races = self.checker.report(conflicts, stream, what, site)
        self._told(races)

    def _told(self, races: Sequence[Race]) -> None:
        for race in races:
            self._name(race.earlier.stream)
            if race.stream is not None:
                self._name(race.stream)
        if races and self.mode is Mode.RAISE:
            finding = race_finding(races[0], self.names)
            lines = [finding.title, *finding.evidence, *(a.text for a in finding.advice)]
            raise RaceError(f"{finding.code}: " + "; ".join(lines))

    def _now(self, stream: StreamId) -> _AfterUse:
        """An event behind all that a stream has been given."""
        event = self.device.event(stream)
        with self._lock:
            clocks = self.checker.clocks
            return _AfterUse(event, clocks.record(stream), clocks.launched(stream))

    def _wait(self, stream: StreamId, entry: _AfterUse) -> None:
        self.device.wait(stream, entry.event)
        self.stream_waited(stream, entry.stamp)

    def _insert(
        self, why: str, site: Site, earlier: Access, waiting: StreamId | None, size: int
    ) -> None:
        self._name(earlier.stream)
        if waiting is not None:
            self._name(waiting)
        key = (why, site, earlier.site)
        known = self.inserted.get(key)
        if known is None:
            self.inserted[key] = Inserted(why, site, earlier.site, waiting, earlier.stream, size)
        else:
            known.count += 1
            known.bytes = max(known.bytes, size)

    def _name(self, stream: StreamId) -> None:
        if not self.names.get(stream):
            self.names[stream] = name_of_stream(stream)

    def _new_stream(self, stream: StreamId, orders_itself: bool) -> None:
        if orders_itself:
            self.checker.clocks.blocking.add(stream)
        self._name(stream)

    def quietly(self, function: Callable[..., Any], *values: Any) -> Any:
        """Calls a function of ours; its faults are kept and never reach the program."""
        if not self.on:
            return None
        try:
            return function(*values)
        except RaceError:
            raise
        except Exception as fault:
            if os.environ.get("TENURE_DEBUG"):
                raise
            if len(self.faults) < 100:
                self.faults.append(f"{function.__name__}: {type(fault).__name__}: {fault}")
            return None


def _unseen_kernels() -> bool:
    """Whether kernels may be launched that no operator shows."""
    return any(name in sys.modules for name in ("triton.runtime", "cupy", "numba.cuda"))
