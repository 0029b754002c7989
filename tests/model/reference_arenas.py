"""Expandable segments in the reference model: an arena of addresses, mapped granule by granule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.reference_blocks import (
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SMALL_SEGMENT,
    Arena,
    Block,
    Pool,
    Request,
    up,
)

if TYPE_CHECKING:
    from model.reference_allocator import ReferenceAllocator


def grow_last(pool: Pool, at: int) -> int:
    """[best fit, expandable]: a block counts with the unmapped range that it could grow by."""

    def could_be(block: Block) -> int:
        after = block.next
        return block.size + (after.size if after and not after.mapped else 0)

    stream = pool.free[at].stream
    while (
        pool.free[at].arena
        and pool.has(at + 1, stream)
        and could_be(pool.free[at + 1]) < could_be(pool.free[at])
    ):
        at += 1
    return at


def skip_arenas(pool: Pool, at: int) -> int:
    """[best fit, expandable off but the hit is expandable]: the next block that is not."""
    stream = pool.free[at].stream
    at += 1
    while pool.has(at, stream) and pool.free[at].arena:
        at += 1
    return at


def grow_arena(allocator: ReferenceAllocator, request: Request) -> Block | None:
    """[mapping]: maps as much as the rounded size needs, from the lowest place where it fits."""
    block = find_place(allocator, request)
    if not block.mapped and not map_front(allocator, block, min(block.size, request.size)):
        return None
    while block.size < request.size:
        after = block.next
        assert after is not None
        assert not after.mapped
        if not map_front(allocator, after, min(request.size - block.size, after.size)):
            return None  # what was mapped before stays, in the free set
        block = after
    request.pool.remove(block)
    return block


def find_place(allocator: ReferenceAllocator, request: Request) -> Block:
    """The first run of free blocks, mapped or not, that is long enough, or a new arena."""
    for block in request.pool.unmapped:
        if block.stream != request.stream:
            continue
        start = block.prev if block.prev and block.prev.free else block
        room = 0
        at: Block | None = start
        while room < request.size and at and at.free:
            room += at.size
            at = at.next
        if room >= request.size:
            return start
    return new_arena(allocator, request)


def new_arena(allocator: ReferenceAllocator, request: Request) -> Block:
    """[arena]: 9/8 of the device's memory in addresses, no memory yet."""
    settings, pool = allocator.settings, request.pool
    granule = SMALL_SEGMENT if pool.small else settings.large_segment_size
    size = up(settings.device_memory + settings.device_memory // 8, granule)
    arena = Arena(allocator.device.reserve(size), size, granule)
    root = pool.new_block(arena.address, size, request.stream, arena)
    root.mapped = False
    pool.add(root)
    return root


def map_front(allocator: ReferenceAllocator, block: Block, size: int) -> bool:
    """[map_block]: whole granules from the start of an unmapped block; then merges."""
    assert block.arena is not None
    size = up(size, block.arena.granule)
    address, pool = block.address, block.pool
    if not allocator.device.take(size):
        return False
    pool.remove(block)
    if size < block.size:
        rest = pool.part_of(block, address + size, block.size - size)
        rest.link(block, block.next)
        pool.add(rest)
    block.mapped, block.size = True, size
    block.merge(block.prev)
    block.merge(block.next)
    pool.add(block)
    allocator.took_memory(pool, SEGMENT_MAP, address, size)
    return True


def unmap(allocator: ReferenceAllocator, block: Block) -> None:
    """[unmapping]: the whole granules inside; what is left at the ends stays free.

    Waits for the stream first.
    """
    assert block.arena is not None
    base, granule = block.arena.address, block.arena.granule
    begin = base + up(block.address - base, granule)
    end = base + (block.end - base) // granule * granule
    if begin >= end:
        return
    allocator.finish(block.stream)
    pool = block.pool
    pool.remove(block)
    if block.address < begin:
        before = pool.part_of(block, block.address, begin - block.address)
        before.link(block.prev, block)
        pool.add(before)
    if end < block.end:
        after = pool.part_of(block, end, block.end - end)
        after.link(block, block.next)
        pool.add(after)
    block.address, block.size, block.mapped = begin, end - begin, False
    block.merge(block.prev)
    block.merge(block.next)
    pool.add(block)
    allocator.gave_memory(pool, SEGMENT_UNMAP, begin, end - begin)
    if not block.split:  # all of the arena: it goes too
        pool.remove(block)
