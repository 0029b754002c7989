// What serves one stream of a device without the device's lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "engine/lanes.hpp"
#include "engine/live/block_map.hpp"
#include "engine/live/history.hpp"
#include "engine/live/lock.hpp"

namespace tenure::live {

class StreamFront {
  public:
    // `history` is the device's: it changes only while all streams are at rest.
    StreamFront(Allocator& allocator, Stream stream, const History& history)
        : stream(stream), lane(allocator.lane(stream)), allocator_(allocator), history_(history) {}

    // Null if the request takes more than this stream has; false if the free does, or if the block
    // was not handed out here. Looking before the lock is taken only saves taking it.
    Block* allocate(Bytes size, BlockNote note) {
        if (!is_open()) return nullptr;
        const std::lock_guard held(lock);
        Block* block = may_serve() ? allocator_.allocate_in(lane, size) : nullptr;
        if (!block) return nullptr;
        block->tag = note.tag();
        live.insert(block);
        if (history_.events)
            keep(Action::alloc, block->address, size, history_.alloc_stacks ? note.stack : 0);
        return block;
    }
    bool free(Address address, StackId stack) {
        if (!is_open()) return false;
        const std::lock_guard held(lock);
        Block* block = may_serve() ? live.take(address) : nullptr;
        if (!block) return false;
        const Bytes requested = block->requested;
        if (!allocator_.free_in(lane, block)) {
            live.insert(block);
            return false;
        }
        if (history_.events) keep(Action::free_requested, address, requested, stack);
        return true;
    }

    bool is_open() const { return is_open_.load(std::memory_order_relaxed); }
    // pre: the lock is held.
    void set_open(bool open) { is_open_.store(open, std::memory_order_relaxed); }

    // Whether the address lies in an arena of this stream; a guess, since it takes no lock.
    bool holds(Address address) const {
        for (const auto& arena : arenas_)
            if (address - arena.begin.load(std::memory_order_relaxed) <
                arena.size.load(std::memory_order_relaxed))
                return true;
        return false;
    }
    // Of all the segments there are, the arenas that `holds` knows: one a home, which is enough.
    void learn_arenas() {
        for (auto& arena : arenas_) arena.size.store(0, std::memory_order_relaxed);
        for (const auto& segment : allocator_.segments())
            for (std::size_t half = 0; half < lane.homes.size(); ++half)
                if (segment->home == lane.homes[half]) {
                    arenas_[half].begin.store(segment->address, std::memory_order_relaxed);
                    arenas_[half].size.store(static_cast<Address>(segment->size),
                                             std::memory_order_relaxed);
                }
    }

    // On cache lines of its own: what one stream's threads write, others do not read.
    alignas(64) const Stream stream;
    bool is_active = false;  // under the device's lock: among those that a Held has the locks of
    Lock lock;               // of all below
    Lane lane;
    BlockMap live;              // blocks handed out on this stream
    std::vector<Event> events;  // until the device takes them; a free here is completed at once

  private:
    // As many events are kept before the device is brought to rest to take them.
    static constexpr std::size_t most_events = 4096;

    bool may_serve() const { return is_open() && events.size() < most_events; }
    // Of one stream's events none is older than the one before, whatever is done to the clock.
    void keep(Action action, Address address, Bytes size, StackId stack) {
        std::int64_t time = now_us();
        if (!events.empty()) time = std::max(time, events.back().time_us);
        events.push_back({address, size, stream, time, {}, stack, action});
    }

    struct Range {
        std::atomic<Address> begin{0};
        std::atomic<Address> size{0};
    };

    Allocator& allocator_;
    const History& history_;
    std::atomic<bool> is_open_{false};
    alignas(64) std::array<Range, 2> arenas_;  // read by all, hardly ever written
};

}  // namespace tenure::live
