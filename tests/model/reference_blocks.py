"""The nouns of the reference model: settings, blocks, pools, and a device of addresses only."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
MIN_BLOCK = 512  # bytes; every block is a multiple of it
SMALL = 1 * MIB  # a rounded size up to this goes to a small pool
SMALL_SEGMENT = 2 * MIB
MIN_LARGE = 10 * MIB  # a rounded size from this up gets a segment of its own size
ROUND_LARGE = 2 * MIB  # ... rounded up to this
UNLIMITED = (1 << 64) - 1
SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = 3, 4, 5, 6
PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class ModelOutOfMemoryError(Exception):
    """The request failed after every way to find memory was tried."""


class ModelUsageError(Exception):
    """The caller named an address or a pool that does not exist."""


class PyTorchAbortsError(Exception):
    """PyTorch itself would stop here, by an internal assertion of its own."""


@dataclass(frozen=True)
class Settings:
    """What decides where a request goes; sizes in bytes."""

    torch_version: tuple[int, int] = (2, 11)
    expandable_segments: bool = False
    max_split_size: int = -1  # -1: unlimited
    max_non_split_rounding: int = 20 * MIB
    large_segment_size: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * 16
    garbage_collection_threshold: float = 0.0  # 0: off
    limit: int = -1  # what the memory fraction allows; -1: no limit
    device_memory: int = 150_109_880_320  # sizes the reservation of an arena


def up(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


def round_size(settings: Settings, size: int) -> int:
    """[rounding, with a number or a list of divisions]."""
    if size < MIN_BLOCK:
        return MIN_BLOCK
    power = size.bit_length() - 1
    divisions = settings.roundup_power2_divisions[min(max(power - 20, 0), 15)]
    if divisions > 1 and size > MIN_BLOCK * divisions:
        step = (1 << power) >> (divisions.bit_length() - 1)
        return up(size, step)
    return up(size, MIN_BLOCK)


def segment_size_of(settings: Settings, size: int) -> int:
    """[segment sizes]: what is asked of the device for a rounded size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return settings.large_segment_size
    return up(size, ROUND_LARGE)


class ReferenceDevice:
    """A device of addresses only: no two ranges it gives ever overlap, none is given twice."""

    def __init__(self, capacity: int = -1, placement: str = "descending") -> None:
        self.capacity = capacity  # bytes of segments and mapped granules; -1: no end
        self.used = 0
        self.descending = placement == "descending"
        self.segment = 0x7F00_0000_0000 if self.descending else 0x7000_0000_0000
        self.reservation = 0x3_0200_0000

    def create(self, size: int) -> int | None:
        """The address of a new segment, None when the device is full."""
        if not self.take(size):
            return None
        if self.descending:
            self.segment = (self.segment - size) // (2 * MIB) * (2 * MIB)
            return self.segment
        self.segment += size
        return self.segment - size

    def reserve(self, size: int) -> int:
        """The address of a new arena; takes no memory."""
        address = self.reservation
        self.reservation += up(size, 2 * MIB) + 2 * MIB
        return address

    def take(self, size: int) -> bool:
        """Takes `size` bytes of memory, all of them or none."""
        if 0 <= self.capacity < self.used + size:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Returns the memory of a segment, or of unmapped granules."""
        self.used -= size


@dataclass(eq=False)
class Arena:
    address: int
    size: int
    granule: int


@dataclass(eq=False)
class Block:
    """A range of addresses; one object lives on through splits and merges, as PyTorch's does."""

    address: int
    size: int
    stream: int
    pool: Pool
    counter: int  # breaks ties between equal sizes from torch 2.12 on
    arena: Arena | None = None
    mapped: bool = True
    requested: int = 0  # bytes; keeps its last value when free
    allocated: bool = False
    uses: set[int] = field(default_factory=set)  # streams other than its own
    capture_uses: set[int] = field(default_factory=set)  # those recorded during a capture
    events: int = 0
    searches: int = 0  # of its pool, when it was last put there
    prev: Block | None = None  # address neighbours in the same segment or arena
    next: Block | None = None

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def free(self) -> bool:
        return not self.allocated and self.events == 0 and not self.uses

    @property
    def age(self) -> int:
        return self.pool.searches - self.searches

    def link(self, before: Block | None, after: Block | None) -> None:
        self.prev, self.next = before, after
        if before:
            before.next = self
        if after:
            after.prev = self

    def split_front(self, size: int) -> Block:
        """[split]: a new object takes the front; this one keeps the tail."""
        front = self.pool.part_of(self, self.address, size)
        front.link(self.prev, self)
        self.address += size
        self.size -= size
        return front

    def merge(self, other: Block | None) -> int:
        """[merge]: takes over the neighbour `other` if that is free; the bytes gained."""
        if other is None or not other.free or other.mapped != self.mapped:
            return 0
        other.pool.remove(other)
        if self.prev is other:
            self.address = other.address
            self.link(other.prev, self.next)
        else:
            self.link(self.prev, other.next)
        self.size += other.size
        return other.size


class Pool:
    """Free blocks that may serve each other, in the order in which they are looked through."""

    def __init__(self, owner: PoolPair, *, small: bool) -> None:
        self.owner, self.small = owner, small
        self.free: list[Block] = []
        self.unmapped: list[Block] = []  # parts of arenas without memory
        self.searches = 0  # counted only while garbage collection is on

    def order(self, block: Block) -> tuple[int, ...]:
        """[order of the free set]: one rule up to torch 2.11, one for 2.12, one from 2.13 on."""
        if self.owner.version <= (2, 11):
            return (block.stream, block.size, block.address)
        if self.owner.version == (2, 12):
            return (block.stream, block.size, block.counter)
        return (block.stream, block.size, block.counter, block.address)

    def new_block(self, address: int, size: int, stream: int, arena: Arena | None = None) -> Block:
        """The first block of a segment or of an arena."""
        return Block(address, size, stream, self, next(self.owner.counter), arena)

    def part_of(self, block: Block, address: int, size: int) -> Block:
        """[counters]: in torch 2.12 each new object takes one, from 2.13 on a part inherits it."""
        counter = next(self.owner.counter) if self.owner.version == (2, 12) else block.counter
        return Block(address, size, block.stream, self, counter, block.arena, mapped=block.mapped)

    def add(self, block: Block) -> None:
        if block.mapped:
            block.searches = self.searches
            bisect.insort(self.free, block, key=self.order)
        else:
            bisect.insort(self.unmapped, block, key=lambda other: (other.stream, other.address))

    def remove(self, block: Block) -> None:
        (self.free if block.mapped else self.unmapped).remove(block)

    def first(self, stream: int, size: int) -> int:
        """Index of the first free block not before (stream, size)."""
        key: tuple[int, ...] = (stream, size)
        return bisect.bisect_left(self.free, key, key=self.order)

    def has(self, at: int, stream: int) -> bool:
        return at < len(self.free) and self.free[at].stream == stream


class PoolPair:
    """The default pools, or one private pool."""

    def __init__(self, pool_id: PoolId, version: tuple[int, int], counter: Iterator[int]) -> None:
        self.id, self.version, self.counter = pool_id, version, counter
        self.small, self.large = Pool(self, small=True), Pool(self, small=False)
        self.use_count = 1
        self.device_allocs = 0  # PyTorch's cudaMalloc_count; kept for private pools only

    @property
    def private(self) -> bool:
        return self.id != DEFAULT_POOL


@dataclass
class Request:
    requested: int
    size: int  # rounded
    stream: int
    pool: Pool
    segment_size: int
    expandable: bool
