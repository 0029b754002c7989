#include "engine/live/notes.hpp"

#include <algorithm>

namespace tenure::live {

void keep_log(DeviceFront& front, bool on) {
    front.segment_log.clear();
    front.completed.clear();
    front.allocator.log_to(on ? &front.segment_log : nullptr);
    front.allocator.log_completed_to(on ? &front.completed : nullptr);
}

void note_changes(DeviceFront& front, StackId stack) {
    if (front.segment_log.empty() && front.completed.empty()) return;
    const std::int64_t time = now_us();
    for (const CompletedFree& free : front.completed)
        front.ring.add({free.address, free.requested, free.stream, time, free.pool, stack,
                        Action::free_completed});
    for (const SegmentEvent& event : front.segment_log)
        front.ring.add({event.address, event.size, event.stream, time, {}, stack, event.action});
    front.completed.clear();
    front.segment_log.clear();
}

void note_allocation(DeviceFront& front, const Block& block, PoolId pool, StackId stack) {
    note_changes(front, stack);
    front.ring.add({block.address, block.requested, block.segment->home->stream, now_us(), pool,
                    front.history.alloc_stacks ? stack : 0, Action::alloc});
}

void note_free(DeviceFront& front, const Block& block, StackId stack) {
    const Home& home = *block.segment->home;
    front.ring.add({block.address, block.requested, home.stream, now_us(), home.half->pool->id,
                    stack, Action::free_requested});
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
