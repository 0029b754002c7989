// The front's rarer calls: pools, limits, giving memory back, what is remembered.
#include <algorithm>
#include <mutex>

#include "engine/live/front.hpp"
#include "engine/live/notes.hpp"

namespace tenure::live {

namespace {

using Held = std::lock_guard<Lock>;

}  // namespace

void Front::empty_cache() {
    if (is_forked()) return;
    for (int device = 0; device < most_devices; ++device) {
        DeviceFront* front = find(device);
        if (!front) continue;
        const Held held(front->lock);
        front->allocator.empty_cache();
        if (front->history.events) note_changes(*front, 0);
    }
}

void Front::set_memory_fraction(double fraction, int device) {
    DeviceFront& front = this->device(device);
    const Held held(front.lock);
    set_fraction(front, fraction);
}

void Front::set_limit(int device, Bytes limit) {
    DeviceFront& front = this->device(device);
    const Held held(front.lock);
    front.capacity = limit;
    front.allocator.set_limit(limit);
}

// --- pools ---------------------------------------------------------------------------------------

void Front::create_memory_pool(int device, PoolId pool) {
    DeviceFront& front = this->device(device);
    const Held held(front.lock);
    front.memory_pools.insert(pool);
    front.allocator.create_pool(pool);
}

void Front::begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter) {
    DeviceFront& front = this->device(device);
    const Held held(front.lock);
    const bool captures = !front.memory_pools.contains(pool);
    front.allocator.create_pool(pool);
    front.routes.push_back({pool, std::move(filter), captures});
    if (captures) front.allocator.begin_capture();
}

void Front::end_allocate_to_pool(int device, PoolId pool) {
    DeviceFront* front = find(device);
    if (!front) return;
    const Held held(front->lock);
    const auto route = std::find_if(front->routes.begin(), front->routes.end(),
                                    [&](const auto& known) { return known.pool == pool; });
    if (route == front->routes.end()) return;
    if (route->captures) front->allocator.end_capture();
    front->routes.erase(route);
}

void Front::release_pool(int device, PoolId pool) {
    DeviceFront* front = find(device);
    if (!front) return;
    const Held held(front->lock);
    const auto& pools = front->allocator.pools();
    const auto known = pools.find(pool);
    if (known == pools.end() || known->second->use_count == 0) return;
    front->allocator.release_pool(pool);
}

void* Front::base_of(void* pointer, std::size_t* size) {
    const auto address = reinterpret_cast<Address>(pointer);
    DeviceFront* front = owner(address);
    *size = 0;
    if (!front) return pointer;
    const Held held(front->lock);
    const Block* block = front->live.find(address);
    if (!block) return pointer;
    const Segment& segment = *block->segment;
    *size = static_cast<std::size_t>(segment.is_arena() ? block->size : segment.size);
    return segment.is_arena() ? pointer : reinterpret_cast<void*>(segment.address);
}

// --- what is remembered --------------------------------------------------------------------------

void Front::set_history(const History& history, bool clear) {
    const Held held(devices_lock_);
    history_ = history;
    for (int device = 0; device < most_devices; ++device) {
        DeviceFront* front = find(device);
        if (!front) continue;
        const Held device_held(front->lock);
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
