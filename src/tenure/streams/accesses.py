"""Accesses of work on streams to storages, and what a race between two of them is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tenure.streams.clocks import StreamId
from tenure.streams.extents import Extent


class Site(NamedTuple):
    """A line of the user's; `file` is empty where there is none, and `function` says what ran."""

    file: str
    line: int
    function: str


class Use(NamedTuple):
    """Bytes of a storage that work is about to touch.

    Attributes:
        key: The storage's.
        extent: Which of its bytes.
        writes: Whether it writes them; reading and writing counts as writing.
    """

    key: int
    extent: Extent
    writes: bool


class Former(NamedTuple):
    """The storage that had the memory before: bytes, where it was made, where it was freed."""

    bytes: int
    born: Site
    freed: Site


class Access(NamedTuple):
    """What work did to a storage.

    Attributes:
        stream: Where it ran.
        number: Of the work on that stream.
        extent: Bytes touched.
        writes: Whether they were written.
        what: The operator.
        site: The user's line that launched it.
        former: Set where it touched the memory's former storage, not this one.
    """

    stream: StreamId
    number: int
    extent: Extent
    writes: bool
    what: str
    site: Site
    former: Former | None = None


@dataclass(slots=True)
class Block:
    """A storage that lives.

    Attributes:
        bytes: Its size.
        owner: The stream it was allocated on, which may reuse it; None if that was not seen, and
            for memory of the host.
        born: The user's line that made it.
        address: Where it lies; 0 if unknown.
        accesses: Those that later ones may race with.
        recorded: Streams named by record_stream, and where.
        self_recorded: Where record_stream named the owner itself, which does nothing.
        by_autograd: Streams on which only a backward pass used it: PyTorch looks after these.
    """

    bytes: int
    owner: StreamId | None
    born: Site
    address: int = 0
    accesses: list[Access] = field(default_factory=list)
    recorded: dict[StreamId, Site] = field(default_factory=dict)
    self_recorded: Site | None = None
    by_autograd: set[StreamId] = field(default_factory=set)


class Kind(StrEnum):
    """What can go wrong."""

    READ = "read"  # of what may not be written yet
    WRITE = "write"  # over what may not be read or written yet
    REUSE = "reuse"  # of freed memory that may still be in use
    HOST = "host"  # the host writes, or frees, what a copy may still touch


class Conflict(NamedTuple):
    """An access that is not done before what is about to happen, and touches the same bytes.

    Attributes:
        block: The storage.
        earlier: The access.
        kind: What can go wrong.
        sure: Whether both touch a common byte; else only their bounds meet.
    """

    block: Block
    earlier: Access
    kind: Kind
    sure: bool


@dataclass
class Race:
    """Two accesses that nothing orders, however often they occurred.

    Attributes:
        kind: What can go wrong.
        bytes: Of the storage, the largest seen.
        earlier: The access that may not be done.
        what: The operator that comes too soon; for a reuse, what asked for memory.
        site: Its line.
        stream: Its stream; None for the host.
        born: Where the storage was made.
        freed: Where it was freed; None unless that matters.
        reused: For a reuse, whether the memory was in fact handed out again.
        self_recorded: Where record_stream named the owner's own stream.
        count: How often.
    """

    kind: Kind
    bytes: int
    earlier: Access
    what: str
    site: Site
    stream: StreamId | None
    born: Site
    freed: Site | None = None
    reused: bool = False
    self_recorded: Site | None = None
    count: int = 1
