"""PyTorch's caching allocator in plain Python: slow, and written to be read.

This is what "PyTorch-exact" means in this project. The engine must agree with it in every address,
every segment, every counter (`test_engine_equals_model.py`), and it agrees with recorded runs of
PyTorch (`test_reference_on_recordings.py`). Nothing here was taken from the engine. The words in
brackets name the rule that a function follows.

Words: a *segment* is what the device gave (one cudaMalloc), an *arena* is a reserved range of
addresses that is mapped piece by piece (one expandable segment), a *granule* is the piece. A block
is *live* (a tensor has it), *pending* (freed, but other streams may still use it) or *free*.

Ambiguities, where PyTorch's text does not decide, and the reading taken here:
  * PyTorch walks hash maps where order can matter: streams with events, private pools that may be
    returned, pools opted in for use on out-of-memory. Here: ascending stream, ascending pool.
    Blocks freed during a capture get their events in the order of their frees.
  * A use recorded during a capture is dropped when the block is also freed during a capture. The
    note of such uses ends with the block's life (PyTorch keys it by the address of its Block object
    and may find a stale one).
  * A pool appears among reserved_bytes_by_private_pools when it first gets memory, and stays.
  * PyTorch stops with an error of its own at `empty_cache_pool` during a capture, at the use of a
    pool that was released, where its count of a private pool's segments fails under expandable
    segments, and where it returns a part of a segment (which takes a max_split_size below the large
    segment size). All of them raise `PyTorchAbortsError`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from model.reference_arenas import grow_arena, grow_last, skip_arenas, unmap
from model.reference_blocks import (
    DEFAULT_POOL,
    MIN_BLOCK,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SMALL,
    UNLIMITED,
    Block,
    ModelOutOfMemoryError,
    ModelUsageError,
    Pool,
    PoolId,
    PoolPair,
    PyTorchAbortsError,
    ReferenceDevice,
    Request,
    Settings,
    round_size,
    segment_size_of,
)
from model.reference_statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReferenceAllocator:
    """The allocator of one device. The methods are those of `tenure._engine.Allocator`."""

    def __init__(self, settings: Settings, device: ReferenceDevice) -> None:
        self.settings, self.device = settings, device
        self.version = settings.torch_version
        self.max_split = UNLIMITED if settings.max_split_size < 0 else settings.max_split_size
        self.limit = settings.limit
        self.counter = itertools.count()
        self.pools = {DEFAULT_POOL: PoolPair(DEFAULT_POOL, self.version, self.counter)}
        self.freeable: set[PoolId] = set()  # private pools that nobody uses any more
        self.use_on_oom: set[PoolId] = set()
        self.no_split: set[PoolId] = set()
        self.live: dict[int, Block] = {}
        self.pending: dict[int, Block] = {}
        self.deferred: list[Block] = []  # freed during a capture with uses
        self.events: dict[int, list[tuple[Block, bool]]] = {}  # stream: (block, done), in order
        self.captures = 0
        self.reserved = 0  # bytes; PyTorch's total_allocated_memory
        self.stats = Statistics(self.version)
        self.trace: list[tuple[int, int, int]] = []

    # ---- Requests ------------------------------------------------------------------------------

    def allocate(self, requested: int, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> int:
        """The address of a block for `requested` bytes [malloc: the order of attempts]."""
        if requested == 0:
            return 0
        if requested >= 1 << 60:
            raise ModelOutOfMemoryError("more than 1EB")
        if not self.captures:
            self.process_events()
        request = self.make_request(requested, stream, pool)
        block = self.find_free(request)
        if block is None:
            if self.collects_garbage:
                self.collect_garbage()
            block = self.new_block(request)
        if block is None:
            block = self.find_free_in_other_pools(request)
        if block is None and self.release_available(request):
            block = self.new_block(request)
        if block is None and not self.captures:
            self.release_cached()
            block = self.new_block(request, retry=True)  # the pool is not searched again
        if block is None:
            self.stats.counts["num_ooms"] += 1
            raise ModelOutOfMemoryError(f"{request.segment_size} bytes")
        return self.hand_out(request, block).address

    def make_request(self, requested: int, stream: int, pool: PoolId) -> Request:
        size = round_size(self.settings, requested)
        pair = self.pool_pair(pool)
        return Request(
            requested,
            size,
            stream,
            pair.small if size <= SMALL else pair.large,
            segment_size_of(self.settings, size),
            self.settings.expandable_segments,
        )

    # ---- Free blocks ---------------------------------------------------------------------------

    def find_free(self, request: Request) -> Block | None:
        """Takes the best fit out of its pool [get_free_block]."""
        pool = request.pool
        if self.collects_garbage:
            pool.searches += 1
        at = pool.first(request.stream, request.size)
        if not pool.has(at, request.stream):
            return None
        if pool.free[at].arena:
            at = (grow_last if request.expandable else skip_arenas)(pool, at)
            if not pool.has(at, request.stream):
                return None
        block = pool.free[at]
        if request.size < self.max_split <= block.size:
            return None  # an oversize block is not for a small request; no other one is tried
        if (
            request.size >= self.max_split
            and block.size >= request.size + self.settings.max_non_split_rounding
        ):
            return None
        pool.remove(block)
        return block

    def find_free_in_other_pools(self, request: Request) -> Block | None:
        """[use_on_oom]: free blocks of pools that opted in serve requests of the default pool."""
        if request.pool.owner.private:
            return None
        for pool_id in sorted(self.use_on_oom):
            pair = self.pools.get(pool_id)
            if pair is None:
                continue
            if pair.use_count == 0:
                raise PyTorchAbortsError("use_on_oom of a released pool")
            pool = pair.small if request.pool.small else pair.large
            there = replace(request, pool=pool, expandable=False)
            block = self.find_free(there)
            if block is not None:
                vars(request).update(vars(there))
                return block
        return None

    def should_split(self, request: Request, block: Block) -> bool:
        """[should_split]: the setting decides, not whether the block lies in an arena."""
        if block.pool.owner.id in self.no_split:
            return False
        remaining = block.size - request.size
        if block.pool.small or request.expandable:
            return remaining >= MIN_BLOCK
        return request.size < self.max_split and remaining > SMALL

    def hand_out(self, request: Request, block: Block) -> Block:
        """Splits what was found if it should be, and makes it live [alloc_found_block]."""
        pool = request.pool
        was_split, in_arena = block.split, block.arena is not None
        if self.should_split(request, block):
            rest, block = block, block.split_front(request.size)
            pool.add(rest)
            if not in_arena and was_split:
                self.stats.change_pool(pool, inactive_split_bytes=-block.size)
            elif not in_arena:
                self.stats.change_pool(pool, inactive_split=1, inactive_split_bytes=rest.size)
        elif was_split and not in_arena:
            self.stats.change_pool(pool, inactive_split=-1, inactive_split_bytes=-block.size)
        block.allocated = True
        block.requested = request.requested
        self.live[block.address] = block
        self.stats.change_pool(
            pool,
            allocation=1,
            allocated_bytes=block.size,
            active=1,
            active_bytes=block.size,
            requested_bytes=block.requested,
        )
        if block.size >= self.max_split:
            self.stats.change("oversize_allocations", 1)
        return block

    # ---- Frees, uses, events -------------------------------------------------------------------

    def record_stream(self, address: int, stream: int) -> None:
        """Notes a use; nothing is recorded or waited for now."""
        block = self.live_block(address)
        if stream == block.stream:
            return
        block.uses.add(stream)
        if self.captures:
            block.capture_uses.add(stream)

    def free(self, address: int) -> None:
        """[free]: at once, or after the events of its uses, or after the capture."""
        if address == 0:
            return
        block = self.live_block(address)
        del self.live[address]
        block.allocated = False
        self.stats.change_pool(block.pool, allocation=-1, allocated_bytes=-block.size)
        if block.size >= self.max_split:
            self.stats.change("oversize_allocations", -1)
        if not block.uses:
            self.complete_free(block)
            return
        self.pending[address] = block
        if self.captures:
            self.deferred.append(block)
        else:
            self.insert_events(block)

    def insert_events(self, block: Block) -> None:
        for stream in sorted(block.uses):
            block.events += 1
            self.events.setdefault(stream, []).append((block, False))
        block.uses.clear()

    def insert_deferred_events(self) -> None:
        """[after a capture]: uses recorded during it are over; events for the others."""
        blocks, self.deferred = self.deferred, []
        for block in blocks:
            block.uses -= block.capture_uses
            self.insert_events(block)
            if block.events == 0:
                self.complete_free(block)

    def process_events(self) -> None:
        """[process_events]: each stream's events in order, up to the first that is not done."""
        self.insert_deferred_events()
        for stream in sorted(self.events):
            queue = self.events[stream]
            while queue and queue[0][1]:
                self.event_done(queue.pop(0)[0])

    def event_done(self, block: Block) -> None:
        block.events -= 1
        if block.events == 0:
            self.complete_free(block)

    def finish(self, stream: int) -> None:
        """All work queued on `stream` so far is done; noticed at the next request."""
        self.events[stream] = [(block, True) for block, _ in self.events.get(stream, [])]

    def synchronize(self, pair: PoolPair | None = None) -> None:
        """Waits for every event, or those of one private pool [synchronize_and_free_events]."""
        if self.captures:
            raise PyTorchAbortsError("synchronize during a capture")
        self.stats.counts["num_sync_all_streams"] += 1
        self.insert_deferred_events()
        for stream in sorted(self.events):
            queue = self.events.pop(stream)
            of_pool = [pair is None or block.pool.owner is pair for block, _ in queue]
            for at, (block, done) in enumerate(queue):
                if of_pool[at]:
                    self.event_done(block)
                else:  # done too if a later one of the stream was waited for
                    entry = (block, done or any(of_pool[at:]))
                    self.events.setdefault(stream, []).append(entry)

    def complete(self, address: int) -> None:
        """Completes one pending free now: for a recording that says when this happened."""
        block = self.pending[address]
        block.uses.clear()
        block.events = 0
        self.deferred = [other for other in self.deferred if other is not block]
        for stream, queue in self.events.items():
            self.events[stream] = [entry for entry in queue if entry[0] is not block]
        self.complete_free(block)

    def complete_free(self, block: Block) -> None:
        """Back to the pool, merged with free neighbours [free_block]."""
        self.pending.pop(block.address, None)
        block.capture_uses.clear()
        size, pool = block.size, block.pool
        merged = [block.merge(other) for other in (block.prev, block.next)]
        pool.add(block)
        self.stats.change_pool(
            pool, active=-1, active_bytes=-size, requested_bytes=-block.requested
        )
        if block.arena is None:  # one net change per counter
            count = int(block.split) - sum(1 for gained in merged if gained)
            gained = (block.size if block.split else 0) - sum(merged)
            self.stats.change_pool(pool, inactive_split=count, inactive_split_bytes=gained)

    # ---- Memory from the device ----------------------------------------------------------------

    def new_block(self, request: Request, retry: bool = False) -> Block | None:
        """A block of new memory, in no free set [alloc_block]."""
        if retry:
            self.stats.counts["num_alloc_retries"] += 1
        if 0 <= self.limit < self.reserved + request.segment_size:
            return None  # the segment's size counts, for arenas too
        if request.expandable:
            block = grow_arena(self, request)
        else:
            block = self.new_segment(request)
        if block is not None and request.pool.owner.private:
            request.pool.owner.device_allocs += 1
        return block

    def new_segment(self, request: Request) -> Block | None:
        size, pool = request.segment_size, request.pool
        address = self.device.create(size)
        if address is None:
            return None
        self.took_memory(pool, SEGMENT_ALLOC, address, size)
        self.stats.change_pool(pool, segment=1)
        if size >= self.max_split:
            self.stats.change("oversize_segments", 1)
        return pool.new_block(address, size, request.stream)

    def took_memory(self, pool: Pool, action: int, address: int, size: int) -> None:
        self.reserved += size
        self.stats.change_reserved(pool, size)
        self.stats.counts["num_device_alloc"] += 1
        self.trace.append((action, address, size))

    def gave_memory(self, pool: Pool, action: int, address: int, size: int) -> None:
        self.device.give_back(size)
        self.reserved -= size
        self.stats.change_reserved(pool, -size)
        self.stats.counts["num_device_free"] += 1
        self.trace.append((action, address, size))
        if pool.owner.private:
            if pool.owner.device_allocs <= 0:
                raise PyTorchAbortsError("a private pool gave back more often than it took")
            pool.owner.device_allocs -= 1

    # ---- Memory back to the device -------------------------------------------------------------

    @property
    def collects_garbage(self) -> bool:
        return self.limit >= 0 and self.settings.garbage_collection_threshold > 0

    def collect_garbage(self) -> None:
        """[garbage collection]: whole segments of the default large pool, by age."""
        threshold = int(self.settings.garbage_collection_threshold * self.limit)
        target, reclaimed = self.reserved - threshold, 0
        pool = self.pools[DEFAULT_POOL].large
        unsplit = [block for block in pool.free if not block.split]
        total_age, count = sum(block.age for block in unsplit), len(unsplit)
        while reclaimed < target and count > 0:
            mean_age = total_age / count  # fixed for the round
            old = [b for b in pool.free if not b.split and not b.arena and b.age >= mean_age]
            if not old:
                return
            for block in old:
                reclaimed += block.size
                total_age -= block.age
                count -= 1
                self.release(block)

    def release_available(self, request: Request) -> bool:
        """[release_available_cached_blocks]: oversize blocks, just enough of them."""
        if self.max_split == UNLIMITED:
            return False
        pool, needed = request.pool, max(request.size, self.max_split)
        at = pool.first(request.stream, needed)
        if pool.has(at, request.stream) and not pool.free[at].arena:
            self.release(pool.free[at])
            return True
        released = 0
        for block in reversed(pool.free[:at]):
            if released >= needed or block.size < self.max_split or block.stream != request.stream:
                break
            if not block.arena:
                released += block.size
                self.release(block)
        return released >= needed

    def release_cached(self, only: PoolId | None = None) -> None:
        """[release_cached_blocks]: everything that can go, or one private pool's."""
        if only is None and not self.captures:
            self.synchronize()
            self.release_pool_blocks(self.pools[DEFAULT_POOL].large)
            self.release_pool_blocks(self.pools[DEFAULT_POOL].small)
        for pool_id in sorted(self.freeable):
            if only not in (None, pool_id):
                continue
            pair = self.pools[pool_id]
            if only is not None:
                self.synchronize(pair)
            self.release_pool_blocks(pair.small)
            self.release_pool_blocks(pair.large)
            if pair.device_allocs == 0:
                self.drop_pool(pair)

    def release_pool_blocks(self, pool: Pool) -> None:
        """[release_blocks]: segments in the order of the set, then the granules of arenas."""
        blocks = list(pool.free)
        for block in blocks:
            if not block.arena and not block.split:
                self.release(block)
        for block in blocks:
            if block.arena:
                unmap(self, block)

    def release(self, block: Block) -> None:
        """One cudaFree [release_block], which waits for all streams."""
        if block.split:
            raise PyTorchAbortsError("a part of a segment is returned: the driver refuses that")
        block.pool.remove(block)
        for stream in self.events:
            self.finish(stream)
        self.gave_memory(block.pool, SEGMENT_FREE, block.address, block.size)
        self.stats.change_pool(block.pool, segment=-1)
        if block.size >= self.max_split:
            self.stats.change("oversize_segments", -1)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache()."""
        self.release_cached()

    def set_limit(self, limit: int) -> None:
        """Bytes that may be reserved, -1 for no limit."""
        self.limit = limit

    # ---- Private pools and captures ------------------------------------------------------------

    def create_pool(self, pool_id: PoolId) -> None:
        """A new private pool, or one more user of it."""
        pair = self.pools.get(pool_id)
        if pair is None:
            self.pools[pool_id] = PoolPair(pool_id, self.version, self.counter)
        elif pair.use_count == 0:
            raise PyTorchAbortsError("a released pool is used again")
        else:
            pair.use_count += 1

    def release_pool(self, pool_id: PoolId) -> None:
        """One user less; without users its memory may be returned, but is not yet."""
        pair = self.pool_pair(pool_id)
        if pair.use_count == 0:
            raise PyTorchAbortsError("a pool is released too often")
        pair.use_count -= 1
        if pair.use_count == 0:
            self.freeable.add(pool_id)

    def empty_cache_pool(self, pool_id: PoolId) -> None:
        """Returns the memory of one private pool, if nobody uses it."""
        self.release_cached(only=pool_id)

    def drop_pool(self, pair: PoolPair) -> None:
        blocks = (*self.live.values(), *self.pending.values())
        if pair.small.free or pair.large.free or any(b.pool.owner is pair for b in blocks):
            raise PyTorchAbortsError("a private pool that still has memory is dropped")
        self.freeable.remove(pair.id)
        del self.pools[pair.id]

    def set_no_split(self, pool_id: PoolId) -> None:
        """Blocks of this pool are handed out whole."""
        self.no_split.add(pool_id)

    def set_use_on_oom(self, pool_id: PoolId, on: bool) -> None:
        """Free blocks of this pool may serve requests that would fail."""
        (self.use_on_oom.add if on else self.use_on_oom.discard)(pool_id)

    def begin_capture(self) -> None:
        """From here on: no polling, no waiting, frees with uses are put off."""
        self.captures += 1

    def end_capture(self) -> None:
        """The end of one capture; put-off frees go on at the next request after the last."""
        self.captures -= 1

    def pool_pair(self, pool_id: PoolId) -> PoolPair:
        if pool_id not in self.pools:
            raise ModelUsageError(f"no pool {pool_id}")
        return self.pools[pool_id]

    def live_block(self, address: int) -> Block:
        if address not in self.live:
            raise ModelUsageError(f"no live block at {address:#x}")
        return self.live[address]

    # ---- What can be seen ----------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """The flat dict of torch.cuda.memory_stats()."""
        return {"max_split_size": self.settings.max_split_size, **self.stats.flat()}

    def reset_peak(self) -> None:
        """torch.cuda.reset_peak_memory_stats()."""
        self.stats.reset_peak()

    def reset_accumulated(self) -> None:
        """torch.cuda.reset_accumulated_memory_stats()."""
        self.stats.reset_accumulated()

    def segment_events(self) -> list[tuple[int, int, int]]:
        """(action, address, size) of what was taken and given back since the last call."""
        trace, self.trace = self.trace, []
        return trace

    def all_blocks(self) -> Iterator[Block]:
        yield from self.live.values()
        yield from self.pending.values()
        for pair in self.pools.values():
            yield from pair.small.free
            yield from pair.large.free

    def blocks(self) -> list[tuple[int, int, int, int, int, int, PoolId]]:
        """(segment, address, size, requested, state, stream, pool); the mapped ones, by address."""
        result, segment = [], 0
        for block in sorted(self.all_blocks(), key=lambda block: block.address):
            if block.prev is None or not block.prev.mapped:
                segment = block.address
            state = 1 if block.allocated else 0 if block.free else 2
            result.append(
                (
                    segment,
                    block.address,
                    block.size,
                    block.requested,
                    state,
                    block.stream,
                    block.pool.owner.id,
                )
            )
        return result

    def check(self) -> None:
        """Raises AssertionError when a rule that must always hold does not."""
        blocks = list(self.all_blocks())
        assert sum(block.size for block in blocks) == self.reserved == self.device.used
        for block in blocks:
            assert block.size > 0 and block.size % MIN_BLOCK == 0
            assert block.mapped
            if block.next:
                assert block.next.prev is block
                assert block.address + block.size == block.next.address
                assert not (block.free and block.next.free and block.next.mapped)
        for pair in self.pools.values():
            for pool in (pair.small, pair.large):
                assert pool.free == sorted(pool.free, key=pool.order)
                assert all(block.free and block.mapped for block in pool.free)
                assert all(block.free and not block.mapped for block in pool.unmapped)
