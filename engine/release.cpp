// Giving memory back to the driver: garbage collection, oversize blocks, everything cached.
#include "engine/allocator.hpp"

namespace tenure {

using namespace torch_rules;

// Old whole segments of the default large pool, until reserved is under the threshold. Ages are
// counted in searches of that pool; each round takes all of at least average age.
std::vector<Block*> Allocator::garbage() const {
    const auto threshold = static_cast<Bytes>(settings_.garbage_collection_threshold *
                                              static_cast<double>(settings_.limit));
    if (!collects_garbage() || reserved_ <= threshold) return {};
    const Bytes target = reserved_ - threshold;
    const PoolHalf& half = default_pool_->large;
    auto age = [&](const Block* block) { return half.searches - block->searches_seen; };
    std::vector<Block*> whole;  // unsplit free blocks, arenas' included
    std::int64_t total_age = 0;
    for (auto& home : half.homes)
        for (Block* block = home->free.first(); block; block = home->free.after(block))
            if (!block->is_split()) {
                total_age += age(block);
                whole.push_back(block);
            }
    auto left = static_cast<std::int64_t>(whole.size());
    std::vector<Block*> chosen;
    Bytes reclaimed = 0;
    for (bool found = true; reclaimed < target && found && left > 0;) {
        found = false;
        const double average = static_cast<double>(total_age) / static_cast<double>(left);
        for (Block*& block : whole) {
            if (!block || block->segment->is_arena()) continue;
            if (static_cast<double>(age(block)) < average) continue;
            found = true;
            reclaimed += block->size;
            total_age -= age(block);
            --left;
            chosen.push_back(block);
            block = nullptr;
        }
    }
    return chosen;
}

void Allocator::collect_garbage() {
    for (Block* block : garbage()) release_segment(block);
}

// Returns one cached oversize block that is large enough, or several, largest first.
bool Allocator::release_oversize(const Request& request) {
    if (settings_.max_split_size == unlimited) return false;
    FreeList& free = request.home->free;
    const Bytes wanted = std::max(request.rounded, settings_.max_split_size);
    Block* large_enough = free.best_fit(wanted);
    if (large_enough && !large_enough->segment->is_arena()) {
        if (large_enough->is_split()) return false;
        release_segment(large_enough);
        return true;
    }
    Bytes released = 0;
    Block* block = large_enough ? free.preceding(large_enough) : free.last();
    while (block && released < wanted && is_oversize(settings_, block->size)) {
        Block* smaller = free.preceding(block);
        if (!block->segment->is_arena() && !block->is_split()) {
            released += block->size;
            release_segment(block);
        }
        block = smaller;
    }
    return released >= wanted;
}

void Allocator::release_cached() {
    wait_for_all_events();
    release_half(default_pool_->large);
    release_half(default_pool_->small);
    release_freeable_pools();
}

void Allocator::empty_cache() {
    if (captures_ == 0) {
        release_cached();
    } else {
        release_freeable_pools();
    }
}

void Allocator::release_freeable_pools() {
    for (auto place = pools_.begin(); place != pools_.end();) {
        Pool& pool = *(place++)->second;
        if (pool.is_private() && pool.use_count == 0) release_pool_memory(pool);
    }
}

void Allocator::empty_cache(PoolId id) {
    if (id.is_default()) return empty_cache();
    const auto place = pools_.find(id);
    if (place == pools_.end() || place->second->use_count > 0) return;
    wait_for_events(*place->second);
    release_pool_memory(*place->second);
}

// Returns what the pool has cached, and drops the pool once the driver has everything back.
void Allocator::release_pool_memory(Pool& pool) {
    release_half(pool.small);
    release_half(pool.large);
    if (pool.device_allocs != 0) return;
    for (std::size_t i = segments_.size(); i-- > 0;) {
        Segment& segment = *segments_[i];
        if (segment.home->half->pool != &pool) continue;
        if (segment.first->is_mapped() || segment.first->is_split()) return;
        drop_arena(segment.first);  // reserved, but its first chunk was refused
    }
    pools_.erase(pool.id);
}

void Allocator::release_pool(PoolId id) {
    Pool& pool = pool_at(id);
    if (pool.use_count == 0) throw UsageError("release_pool: nobody holds this pool");
    --pool.use_count;
}

void Allocator::release_half(PoolHalf& half) {
    if (is_elastic()) return release_elastic(half);
    std::vector<Block*> in_arenas;  // unmapping changes the free lists: gather first
    for (auto& home : half.homes)
        for (Block *block = home->free.first(), *next; block; block = next) {
            next = home->free.after(block);
            if (block->segment->is_arena())
                in_arenas.push_back(block);
            else if (!block->is_split())
                release_segment(block);
        }
    for (Block* block : in_arenas) release_in_arena(block);
}

// Unmaps what it can of a cached block, and drops the arena once all of it is unmapped.
void Allocator::release_in_arena(Block* block) {
    unmap(block);
    if (!block->is_mapped() && !block->is_split()) drop_arena(block);
}

// pre: the block is all of its arena, and unmapped.
void Allocator::drop_arena(Block* block) {
    Segment* arena = block->segment;
    arena->home->unmapped.erase(block);
    device_.unreserve(arena->address, arena->size);
    drop_segment(arena);
}

std::vector<SegmentEvent> Allocator::releasable() const {
    std::vector<SegmentEvent> events;
    for (const PoolHalf* half : {&default_pool_->large, &default_pool_->small})
        for (auto& home : half->homes)
            for (const Block* block = home->free.first(); block; block = home->free.after(block)) {
                const Segment& segment = *block->segment;
                if (!segment.is_arena()) {
                    if (!block->is_split())
                        events.push_back(
                            {Action::segment_free, block->address, block->size, home->stream});
                    continue;
                }
                const Granules whole = whole_granules(*block);
                if (whole.size() > 0)
                    events.push_back({Action::segment_unmap,
                                      segment.address + static_cast<Address>(whole.begin),
                                      whole.size(), home->stream});
            }
    return events;
}

// pre: cached, unsplit, not in an arena.
void Allocator::release_segment(Block* block) {
    Home& home = *block->segment->home;
    const bool small = home.half->small;
    const Bytes size = block->size;
    const Address address = block->address;
    device_.destroy_segment(address, size);
    home.free.erase(block);
    drop_segment(block->segment);
    count_reserved(home, -size);
    --home.half->pool->device_allocs;
    statistics_.segment.decrease(small, 1);
    if (is_oversize(settings_, size)) statistics_.oversize_segments.decrease(1);
    ++statistics_.num_device_free;
    log(Action::segment_free, address, size, home);
}

}  // namespace tenure
