"""Small programs on streams, and two references for them: reachability, and every interleaving.

A program is what a host does, in order. Device buffers have two cells; a kernel reads some and
writes some. The reference graph has a node for each kernel and each host access; an edge means
"done before".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tenure.streams import Checker, Race, Site, StreamId, Use, dense

if TYPE_CHECKING:
    from collections.abc import Iterator

CELL = 8  # bytes
SIZE = 2 * CELL
STREAMS = tuple(StreamId(0, handle) for handle in (0, 0x10, 0x20))
HOST_BUFFER = 99  # pinned; never freed


class Step(NamedTuple):
    """One action of the host.

    `what` is one of: launch, record, wait, host_wait, sync, sync_all, free, make, keep, host. The
    other fields mean what fits: a kernel's cells are pairs (buffer, cell).
    """

    what: str
    stream: int = 0
    event: int = 0
    buffer: int = 0
    reads: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int], ...] = ()


@dataclass
class Node:
    """A kernel, or an access of the host (`stream` None)."""

    index: int
    stream: int | None
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    after: set[int]
    step: int
    owned: dict[int, int] = field(default_factory=dict)  # buffer -> address


@dataclass
class Reference:
    """The graph of a program, and what its frees leave open."""

    nodes: list[Node] = field(default_factory=list)
    reusable: set[int] = field(default_factory=set)  # steps of frees that a later request may meet

    def ancestors(self, node: Node) -> set[int]:
        """Every node that is done before it."""
        found: set[int] = set()
        waiting = list(node.after)
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting += self.nodes[index].after
        return found

    def unordered(self, later: Node) -> list[Node]:
        """Earlier nodes that touch the same bytes, one of both writing, and are not done before."""
        before = self.ancestors(later)
        return [
            earlier
            for earlier in self.nodes[: later.index]
            if earlier.index not in before and earlier.stream is not None and _meet(earlier, later)
        ]


def _meet(one: Node, other: Node) -> bool:
    return bool(
        set(one.writes) & {*other.reads, *other.writes} or set(one.reads) & set(other.writes)
    )


@dataclass
class _Freed:
    owner: int
    uses: list[Node]
    step: int


def reference(program: list[Step]) -> Reference:
    """Builds the graph by the rules of CUDA, edge by edge."""
    graph = Reference()
    last: dict[int, int] = {}  # stream -> its last kernel
    extra: dict[int, set[int]] = {s: set() for s in range(len(STREAMS))}  # what it waits for
    events: dict[int, set[int]] = {}
    host: set[int] = set()
    owner = dict.fromkeys(range(3), 0)
    kept: dict[int, set[int]] = {}
    freed: list[_Freed] = []

    def tail(stream: int) -> set[int]:
        return ({last[stream]} if stream in last else set()) | extra[stream] | host

    def done_before_next(stream: int) -> set[int]:
        probe = Node(len(graph.nodes), stream, (), (), tail(stream), 0)
        return graph.ancestors(probe)

    for number, step in enumerate(program):
        if step.what == "launch":
            node = Node(
                len(graph.nodes), step.stream, step.reads, step.writes, tail(step.stream), number
            )
            graph.nodes.append(node)
            last[step.stream] = node.index
        elif step.what == "host":
            node = Node(len(graph.nodes), None, step.reads, step.writes, set(host), number)
            graph.nodes.append(node)
            host.add(node.index)
        elif step.what == "record":
            events[step.event] = tail(step.stream)
        elif step.what == "wait":
            extra[step.stream] |= events.get(step.event, set())
        elif step.what == "host_wait":
            host |= events.get(step.event, set())
        elif step.what == "sync":
            host |= tail(step.stream)
        elif step.what == "sync_all":
            for stream in range(len(STREAMS)):
                host |= tail(stream)
        elif step.what == "keep":
            kept.setdefault(step.buffer, set()).add(step.stream)
        elif step.what == "free":
            uses = [
                n
                for n in graph.nodes
                if n.stream not in {None, owner[step.buffer], *kept.get(step.buffer, ())}
                and any(b == step.buffer for b, _ in (*n.reads, *n.writes))
            ]
            freed.append(_Freed(owner.pop(step.buffer), uses, number))
        elif step.what == "make":
            owner[step.buffer] = step.stream
            before = done_before_next(step.stream)
            for one in freed:
                if one.owner == step.stream and any(u.index not in before for u in one.uses):
                    graph.reusable.add(one.step)
    return graph


def valid(steps: list[Step]) -> list[Step]:
    """Drops steps that no program could have: buffers that do not live, or are made anew."""
    alive = {0, 1, 2}
    next_buffer = 3
    names = {0: 0, 1: 1, 2: 2}
    program = []
    for step in steps:
        if step.what in {"free", "keep"} and names[step.buffer] not in alive:
            continue
        if step.what == "make":
            names[step.buffer], next_buffer = next_buffer, next_buffer + 1
            if names[step.buffer] - 3 > 1:
                continue
            alive.add(names[step.buffer])
        cells = {
            kind: tuple(
                (b if b == HOST_BUFFER else names[b], c)
                for b, c in getattr(step, kind)
                if b == HOST_BUFFER or names[b] in alive
            )
            for kind in ("reads", "writes")
        }
        if step.what in {"launch", "host"} and not (cells["reads"] or cells["writes"]):
            continue
        buffer = names.get(step.buffer, step.buffer)
        if step.what == "free":
            alive.discard(buffer)
        program.append(step._replace(buffer=buffer, reads=cells["reads"], writes=cells["writes"]))
    return program


@dataclass
class Checked:
    """What the checker said of a program.

    Attributes:
        steps: Steps at which it saw a conflict.
        freed: Steps of frees that it warned of.
        races: All it found.
    """

    steps: set[int]
    freed: set[int]
    races: tuple[Race, ...]


def site(number: int) -> Site:
    """The line of a step."""
    return Site("program.py", number, "main")


def _uses(step: Step) -> list[Use]:
    return [
        Use(buffer, dense(cell * CELL, CELL), writes)
        for writes, cells in ((False, step.reads), (True, step.writes))
        for buffer, cell in cells
    ]


def check(program: list[Step], addresses: dict[int, int] | None = None) -> Checked:
    """Feeds a program to the checker; `addresses` says where each buffer lies."""
    checker = Checker()
    clocks = checker.clocks
    stamps: dict[int, Any] = {}
    steps = set()
    where = addresses or {}
    for buffer in range(3):
        checker.born(buffer, SIZE, STREAMS[0], site(-1), address=where.get(buffer, 0))
    checker.born(HOST_BUFFER, SIZE, None, site(-1))
    for number, step in enumerate(program):
        stream = STREAMS[step.stream]
        if step.what == "launch":
            conflicts = checker.conflicts(stream, _uses(step))
            if conflicts:
                steps.add(number)
                checker.report(conflicts, stream, "kernel", site(number))
            checker.launch(stream, _uses(step), "kernel", site(number))
        elif step.what == "host":
            conflicts = checker.host_conflicts(_uses(step))
            if conflicts:
                steps.add(number)
                checker.report(conflicts, None, "host", site(number))
        elif step.what == "record":
            stamps[step.event] = clocks.record(stream)
        elif step.what == "wait":
            clocks.wait(stream, stamps.get(step.event, {}))
        elif step.what == "host_wait":
            clocks.host_waits(stamps.get(step.event, {}))
        elif step.what == "sync":
            clocks.host_waits_for_stream(stream)
        elif step.what == "sync_all":
            clocks.host_waits_for_device(0)
        elif step.what == "keep":
            checker.record_stream(step.buffer, stream, site(number))
        elif step.what == "free":
            checker.died(step.buffer, site(number))
        elif step.what == "make":
            checker.born(
                step.buffer,
                SIZE,
                stream,
                site(number),
                address=where.get(step.buffer, 0),
                what="make",
            )
    freed = {race.freed.line for race in checker.races if race.freed is not None}
    return Checked(steps, freed, checker.races)


def placed(program: list[Step]) -> dict[int, int]:
    """Where an allocator like PyTorch's puts each buffer: freed blocks at once, by stream.

    A block that record_stream kept is not handed out again.
    """
    where = {buffer: (buffer + 1) * SIZE for buffer in range(3)}
    owner = dict.fromkeys(range(3), 0)
    kept = set()
    free: dict[int, list[int]] = {}
    for step in program:
        if step.what == "keep" and step.stream != owner.get(step.buffer):
            kept.add(step.buffer)
        elif step.what == "free" and step.buffer not in kept:
            free.setdefault(owner[step.buffer], []).append(where[step.buffer])
        elif step.what == "make":
            owner[step.buffer] = step.stream
            mine = free.get(step.stream)
            where[step.buffer] = mine.pop() if mine else (len(where) + 1) * SIZE
    return where


def outcomes(graph: Reference, where: dict[int, int]) -> set[object]:
    """What every interleaving that keeps the order computes: all values read, and the memory."""
    where = {**where, HOST_BUFFER: 0}
    found: set[object] = set()
    for order in _linear_extensions(graph):
        memory: dict[int, object] = {}
        read = []
        for index in order:
            node = graph.nodes[index]
            seen = tuple(memory.get(where[b] + c * CELL) for b, c in node.reads)
            read.append((index, seen))
            for buffer, cell in node.writes:
                memory[where[buffer] + cell * CELL] = ("written by", index)
        found.add((tuple(sorted(read)), tuple(sorted(memory.items()))))
    return found


def _linear_extensions(graph: Reference) -> Iterator[list[int]]:
    # A kernel is launched after the host's accesses before it in the program.
    after = []
    host: set[int] = set()
    for node in graph.nodes:
        after.append(node.after | host)
        if node.stream is None:
            host.add(node.index)

    def extend(done: list[int]) -> Iterator[list[int]]:
        if len(done) == len(after):
            yield list(done)
            return
        for index, needs in enumerate(after):
            if index not in done and needs <= set(done):
                yield from extend([*done, index])

    yield from extend([])
