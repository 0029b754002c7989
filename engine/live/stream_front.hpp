// What serves one stream of a device without the device's lock.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "engine/allocator.hpp"
#include "engine/live/block_map.hpp"
#include "engine/live/lock.hpp"

namespace tenure::live {

class StreamFront {
  public:
    StreamFront(Allocator& allocator, Stream stream)
        : stream(stream), lane(allocator.lane(stream)), allocator_(allocator) {}

    // Null if the request takes more than this stream has; false if the free does, or if the block
    // was not handed out here. Looking before the lock is taken only saves taking it.
    Block* allocate(Bytes size, std::int64_t tag) {
        if (!is_open()) return nullptr;
        const std::lock_guard held(lock);
        Block* block = is_open() ? allocator_.allocate_in(lane, size) : nullptr;
        if (!block) return nullptr;
        block->tag = tag;
        live.insert(block);
        return block;
    }
    bool free(Address address) {
        if (!is_open()) return false;
        const std::lock_guard held(lock);
        Block* block = is_open() ? live.take(address) : nullptr;
        if (!block) return false;
        if (allocator_.free_in(lane, block)) return true;
        live.insert(block);
        return false;
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
    BlockMap live;  // blocks handed out on this stream

  private:
    struct Range {
        std::atomic<Address> begin{0};
        std::atomic<Address> size{0};
    };

    Allocator& allocator_;
    std::atomic<bool> is_open_{false};
    alignas(64) std::array<Range, 2> arenas_;  // read by all, hardly ever written
};

}  // namespace tenure::live
