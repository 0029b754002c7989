#include "engine/live/notes.hpp"

#include <time.h>

#include <algorithm>

namespace tenure::live {

namespace {

std::int64_t now_us() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

void note_segments(DeviceFront& front, StackId stack) {
    if (front.segment_log.empty()) return;
    const std::int64_t time = now_us();
    for (const SegmentEvent& event : front.segment_log)
        front.ring.add({event.address, event.size, event.stream, time, {}, stack, event.action});
    front.segment_log.clear();
}

void note_allocation(DeviceFront& front, const Block& block, PoolId pool, StackId stack) {
    note_segments(front, stack);
    front.ring.add({block.address, block.requested, block.segment->home->stream, now_us(), pool,
                    front.history.alloc_stacks ? stack : 0, Action::alloc});
}

void note_free(DeviceFront& front, const Block& block, StackId stack) {
    const Home& home = *block.segment->home;
    Event event{block.address,       block.requested, home.stream,           now_us(),
                home.half->pool->id, stack,           Action::free_requested};
    front.ring.add(event);
    if (!block.uses.empty()) return;
    event.action = Action::free_completed;
    front.ring.add(event);
}

void note_shortage(DeviceFront& front, const Shortage& shortage, StackId stack) {
    const Bytes rounded = torch_rules::round_size(front.allocator.settings(), shortage.requested);
    front.ring.add({static_cast<Address>(shortage.free), rounded, shortage.stream, now_us(),
                    shortage.pool, stack, Action::oom});
}

void set_fraction(DeviceFront& front, double fraction) {
    Bytes limit = front.capacity;
    if (fraction < 1) {
        const auto share =
            static_cast<Bytes>(fraction * static_cast<double>(front.device.total_memory()));
        limit = limit == unlimited ? share : std::min(limit, share);
    }
    front.allocator.set_limit(limit);
}

}  // namespace tenure::live
