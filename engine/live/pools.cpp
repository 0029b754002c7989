// The front's rarer calls: pools, limits, giving memory back, what is remembered.
#include <algorithm>
#include <mutex>

#include "engine/live/front.hpp"
#include "engine/live/notes.hpp"

namespace tenure::live {

void Front::empty_cache() {
    if (is_forked()) return;
    for (int device = 0; device < most_devices; ++device) {
        DeviceFront* front = find(device);
        if (!front) continue;
        const Held held(*front);
        front->allocator.empty_cache();
        if (front->history.events) note_changes(*front, 0);
    }
}

void Front::set_memory_fraction(double fraction, int device) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    set_fraction(front, fraction);
}

void Front::set_limit(int device, Bytes limit) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    front.capacity = limit;
    front.allocator.set_limit(limit);
}

// --- pools ---------------------------------------------------------------------------------------

void Front::create_memory_pool(int device, PoolId pool) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    front.memory_pools.insert(pool);
    front.allocator.create_pool(pool);
}

void Front::begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    const bool captures = !front.memory_pools.contains(pool);
    front.allocator.create_pool(pool);
    front.routes.push_back({pool, std::move(filter), captures});
    if (captures) front.allocator.begin_capture();
}

void Front::end_allocate_to_pool(int device, PoolId pool) {
    DeviceFront* front = find(device);
    if (!front) return;
    const Held held(*front);
    const auto route = std::find_if(front->routes.begin(), front->routes.end(),
                                    [&](const auto& known) { return known.pool == pool; });
    if (route == front->routes.end()) return;
    if (route->captures) front->allocator.end_capture();
    front->routes.erase(route);
}

void Front::release_pool(int device, PoolId pool) {
    DeviceFront* front = find(device);
    if (!front) return;
    const Held held(*front);
    const auto& pools = front->allocator.pools();
    const auto known = pools.find(pool);
    if (known == pools.end() || known->second->use_count == 0) return;
    front->allocator.release_pool(pool);
}

std::vector<Allocator::Checkpointed> Front::checkpoint(int device, PoolId pool) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    return front.allocator.checkpoint(pool);
}

Front::Restored Front::restore_checkpoint(int device, PoolId pool,
                                          const std::vector<Allocator::Checkpointed>& blocks) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    const bool notes = front.history.events;
    Restored restored;
    for (const Allocator::Checkpointed& live : front.allocator.checkpoint(pool)) {
        Block* block = front.take_live(live.address);
        if (!block) continue;
        if (notes) note_free(front, *block, 0);
        front.allocator.free(block);
        restored.freed.push_back(live.address);
    }
    if (notes) note_changes(front, 0);
    for (Block* block : front.allocator.restore_checkpoint(pool, blocks)) {
        front.add_live(block, block->segment->home->stream);
        if (notes) note_allocation(front, *block, pool, BlockNote::of(block->tag).stack);
        restored.made.push_back(block->address);
    }
    return restored;
}

// PyTorch starts from what the driver has free, which no limit lessens, and looks for a larger
// block. Under elastic rules all that is free can be brought together.
Bytes Front::largest_free(int device) {
    DeviceFront& front = this->device(device);
    const Held held(front);
    const Allocator& allocator = front.allocator;
    const Bytes free = front.device.free_memory();
    if (allocator.settings().rules == Rules::elastic) {
        const Bytes active = allocator.statistics().active_bytes.all.current;
        const Bytes room = free + allocator.reserved() - active;
        const Bytes limit = allocator.settings().limit;
        return limit == unlimited ? room : std::clamp(limit - active, Bytes{0}, room);
    }
    Bytes largest = free;
    for (const auto& [id, pool] : allocator.pools())
        for (const PoolHalf* half : {&pool->small, &pool->large})
            for (const auto& home : half->homes)
                if (const Block* last = home->free.last()) largest = std::max(largest, last->size);
    return largest;
}

bool Front::grant_access(int owner, int reader) {
    DeviceFront& front = this->device(owner);
    const Held held(front);
    return front.device.grant_access(reader);
}

void* Front::base_of(void* pointer, std::size_t* size) {
    *size = 0;
    with_live(reinterpret_cast<Address>(pointer), [&](DeviceFront&, const Block* block) {
        const Segment& segment = *block->segment;
        *size = static_cast<std::size_t>(segment.is_arena() ? block->size : segment.size);
        if (!segment.is_arena()) pointer = reinterpret_cast<void*>(segment.address);
    });
    return pointer;
}

// --- what is remembered --------------------------------------------------------------------------

void Front::set_history(const History& history, bool clear) {
    const std::lock_guard held(devices_lock_);
    history_ = history;
    for (int device = 0; device < most_devices; ++device) {
        DeviceFront* front = find(device);
        if (!front) continue;
        const Held device_held(*front);
        front->history = history;
        keep_log(*front, history.events);
        if (clear) front->ring.clear();
        if (history.events) front->ring.set_limit(history.max_events);
    }
    alloc_stacks_.store(history.at_alloc());
    free_stacks_.store(history.free_stacks);
}

void Front::forget_host() {
    stack_.store(nullptr);
    collect_.store(nullptr);
    explain_.store(nullptr);
}

}  // namespace tenure::live
