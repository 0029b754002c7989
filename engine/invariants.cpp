#include "engine/invariants.hpp"

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace tenure {

namespace {

// What one walk over all segments adds up to, to be compared with counters and lists.
struct Sums {
    Bytes mapped = 0;  // and idle
    Bytes live = 0;
    Bytes active = 0;
    Bytes requested = 0;
    Bytes split = 0;  // cached bytes beside a neighbour, not in arenas
    std::int64_t live_blocks = 0;
    std::int64_t active_blocks = 0;
    std::int64_t split_blocks = 0;
    std::int64_t segments = 0;
    std::size_t cached_blocks = 0;
    std::size_t unmapped_blocks = 0;
};

void require(bool holds, const char* rule, const Block* block = nullptr) {
    if (holds) return;
    std::string where = block ? " (block at " + std::to_string(block->address) + ", " +
                                    std::to_string(block->size) + " bytes)"
                              : std::string();
    throw BrokenInvariant(rule + where);
}

void check_block(const Block& block, const Segment& segment) {
    require(block.segment == &segment, "a block knows its segment", &block);
    require(block.size > 0, "a block is not empty", &block);
    require(!block.next || block.next->previous == &block, "neighbours know each other", &block);
    require(!block.next || block.next->address == block.end(), "blocks tile their segment", &block);
    require(block.is_mapped() || segment.is_arena(), "only arenas have unmapped ranges", &block);
    require(!block.next || !block.is_free() || block.next->state != block.state,
            "free neighbours in the same mapped state are merged", &block);
    require((block.waiting_events > 0) <= (block.state == BlockState::pending),
            "only a pending block waits for events", &block);
    require(block.state != BlockState::live || block.requested <= block.size,
            "a live block holds its request", &block);
}

// What blocks wait for, from the allocator's queues.
struct Waits {
    std::unordered_map<const Block*, int> events;
    std::unordered_set<const Block*> deferred;  // until the capture ends
};

void check_waits(const Block& block, const Waits& waits) {
    const auto queued = waits.events.find(&block);
    require(block.waiting_events == (queued == waits.events.end() ? 0 : queued->second),
            "a block counts the events that it waits for", &block);
    if (block.state != BlockState::pending) return;
    require(block.waiting_events > 0 || waits.deferred.contains(&block),
            "a pending block waits for something", &block);
}

void check_chunks(const Segment& segment) {
    if (!segment.is_arena()) return;
    for (const Block* block = segment.first; block; block = block->next) {
        const Bytes begin = static_cast<Bytes>(block->address - segment.address);
        for (Bytes i = begin / segment.granule; i * segment.granule < begin + block->size; ++i) {
            const auto slot = static_cast<std::size_t>(i);
            const bool has_chunk = slot < segment.chunks.size() && segment.chunks[slot] != 0;
            require(has_chunk == block->is_mapped(), "mapped blocks lie on chunks, unmapped do not",
                    block);
            if (!block->is_mapped()) break;  // one slot tells: unmapped ranges are whole granules
        }
    }
}

bool is_old(ChunkIndex page) { return (page & old_mapping) != 0; }

void check_pages(const Segment& arena, const ChunkTable& chunks) {
    const auto pages = [&](std::size_t i) { return i < arena.pages.size() ? arena.pages[i] : 0; };
    for (const Block* block = arena.first; block; block = block->next) {
        const auto begin = static_cast<Bytes>(block->address - arena.address);
        const Bytes end = begin + block->size;
        for (Bytes i = begin / arena.granule; i * arena.granule < end; ++i) {
            const auto slot = static_cast<std::size_t>(i);
            if (!block->is_mapped() && slot >= arena.pages.size()) break;
            const ChunkIndex page = pages(slot);
            if (!block->is_mapped()) {
                require(page == 0 || is_old(page), "no chunk is mapped under an unmapped range",
                        block);
                continue;
            }
            require(page != 0 && !is_old(page), "every page of a mapped block has its chunk",
                    block);
            const Chunk& chunk = chunks[page];
            const Address address = arena.address + static_cast<Address>(i * arena.granule);
            require(chunk.arena == &arena && chunk.address <= address &&
                        address < chunk.address + static_cast<Address>(chunk.size),
                    "a chunk is where the page table says", block);
        }
    }
}

// Each page in the table belongs to exactly one mapping, current or old.
Bytes check_chunk_table(const ElasticState& state, const std::vector<const Segment*>& arenas) {
    const ChunkTable& chunks = state.chunks;
    std::unordered_map<ChunkIndex, Bytes> mapped, old;  // bytes by page table
    for (const Segment* arena : arenas)
        for (const ChunkIndex page : arena->pages)
            if (page != 0) (is_old(page) ? old : mapped)[page & ~old_mapping] += arena->granule;
    std::unordered_map<ChunkIndex, Bytes> waiting;
    std::unordered_map<ChunkIndex, int> times;
    for (const OldMapping& mapping : state.old_mappings) {
        waiting[mapping.chunk] += mapping.size;
        ++times[mapping.chunk];
        require(mapping.clock->is_marked(mapping.stamp), "an old mapping waits for an event");
    }
    require(old == waiting, "every old mapping is on the list, once");
    std::size_t idle = 0;
    Bytes idle_bytes = 0;
    for (ChunkIndex i = 1; i < chunks.all().size(); ++i) {
        const Chunk& chunk = chunks[i];
        if (chunk.handle == 0) continue;
        require(mapped[i] == (chunk.arena ? chunk.size : 0),
                "a chunk is mapped whole, at one place");
        require(chunk.old_mappings == times[i], "a chunk counts its old mappings");
        if (chunk.arena) continue;
        require(chunk.old_mappings == 0, "an idle chunk is mapped nowhere");
        ++idle;
        idle_bytes += chunk.size;
    }
    require(idle == chunks.idle().size(), "a chunk without a place is idle");
    return idle_bytes;
}

void check_clock(const StreamClock& clock) {
    std::uint64_t last = clock.done;
    for (const StreamClock::Mark& mark : clock.marks) {
        require(mark.stamp > last && mark.stamp <= clock.frees, "marks ascend from what is done");
        last = mark.stamp;
    }
    require(clock.done <= clock.frees, "only what was freed is done");
}

void add(Sums& sums, const Block& block, const Segment& segment) {
    if (!block.is_mapped()) {
        ++sums.unmapped_blocks;
        return;
    }
    sums.mapped += block.size;
    if (block.state == BlockState::cached) {
        ++sums.cached_blocks;
        if (block.is_split() && !segment.is_arena()) {
            ++sums.split_blocks;
            sums.split += block.size;
        }
        return;
    }
    ++sums.active_blocks;
    sums.active += block.size;
    sums.requested += block.requested;
    if (block.state == BlockState::live) {
        ++sums.live_blocks;
        sums.live += block.size;
    }
}

void check_home(const Home& home, Sums& listed) {
    const Block* last = nullptr;
    for (Block* block = home.free.first(); block; block = home.free.after(block)) {
        require(block->state == BlockState::cached, "free lists hold cached blocks", block);
        require(block->segment->home == &home, "a block is listed at its home", block);
        require(!home.clock || block->stamp <= home.clock->frees, "stamps are of the past", block);
        require(!last || last->size <= block->size, "free lists are ordered by size", block);
        last = block;
        ++listed.cached_blocks;
    }
    require(listed.cached_blocks >= home.free.size(), "a free list knows its length");
    for (const Block* block : home.unmapped) {
        require(!block->is_mapped(), "the unmapped set holds unmapped ranges", block);
        ++listed.unmapped_blocks;
    }
}

// What the homes count as live, against the walk and the statistics.
void check_live(const Counts& counted, const Sums& sums) {
    require(counted.blocks == sums.live_blocks, "homes count their live blocks");
    require(counted.allocated == sums.live, "homes count the bytes of live blocks");
}

void check_counters(const Statistics& statistics, const Sums& sums) {
    auto equal = [](const PoolCounter& counter, std::int64_t sum, const char* rule) {
        require(counter.all.current == sum, rule);
        require(counter.small_pool.current + counter.large_pool.current == sum, rule);
        require(counter.all.peak >= sum, rule);
    };
    equal(statistics.reserved_bytes, sums.mapped, "reserved counts segments and mapped chunks");
    equal(statistics.allocated_bytes, sums.live, "allocated counts live blocks");
    equal(statistics.active_bytes, sums.active, "active counts live and pending blocks");
    equal(statistics.requested_bytes, sums.requested, "requested counts what was asked for");
    equal(statistics.allocation, sums.live_blocks, "allocation counts live blocks");
    equal(statistics.active, sums.active_blocks, "active counts live and pending blocks");
    equal(statistics.segment, sums.segments, "segment counts cudaMallocs");
    equal(statistics.inactive_split, sums.split_blocks, "inactive_split counts split free blocks");
    equal(statistics.inactive_split_bytes, sums.split, "inactive_split_bytes adds them up");
}

}  // namespace

void check(const Allocator& allocator) {
    Waits waits;
    for (auto& [stream, queue] : allocator.events_)
        for (auto& pending : queue) ++waits.events[pending.block];
    for (const Block* block : allocator.held_) ++waits.events[block];
    for (const Block* block : allocator.deferred_) waits.deferred.insert(block);
    Sums sums;
    std::vector<const Segment*> arenas;  // under elastic rules
    for (std::size_t i = 0; i < allocator.segments().size(); ++i) {
        const Segment& segment = *allocator.segments()[i];
        require(segment.index == i, "a segment knows its place");
        require(segment.first && segment.first->address == segment.address,
                "the first block starts the segment", segment.first);
        require(!segment.first->previous, "nothing precedes the first block", segment.first);
        if (!segment.is_arena()) ++sums.segments;
        const Block* last = nullptr;
        for (const Block* block = segment.first; block; block = block->next) {
            check_block(*block, segment);
            check_waits(*block, waits);
            add(sums, *block, segment);
            last = block;
        }
        require(last->end() == segment.address + static_cast<Address>(segment.size),
                "blocks fill their segment", last);
        if (allocator.is_elastic()) {
            check_pages(segment, allocator.elastic_.chunks);
            arenas.push_back(&segment);
        } else {
            check_chunks(segment);
        }
    }
    sums.mapped += check_chunk_table(allocator.elastic_, arenas);
    for (auto& [stream, clock] : allocator.elastic_.clocks) check_clock(clock);
    Sums listed;
    Counts live;
    for (auto& [id, pool] : allocator.pools())
        for (const PoolHalf* half : {&pool->small, &pool->large})
            for (auto& home : half->homes) {
                check_home(*home, listed);
                live += home->live;
            }
    check_live(live, sums);
    require(listed.cached_blocks == sums.cached_blocks, "every cached block is listed once");
    require(listed.unmapped_blocks == sums.unmapped_blocks, "every unmapped range is listed once");
    require(allocator.reserved_ == sums.mapped, "the limit is compared with reserved bytes");
    check_counters(allocator.statistics(), sums);
}

}  // namespace tenure
