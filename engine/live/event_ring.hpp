// The newest events of a device, in order: what a snapshot's device_traces shows.
#pragma once

#include <time.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/trace.hpp"
#include "engine/units.hpp"

namespace tenure::live {

using StackId = std::uint32_t;  // names a recorded stack; 0 is none

struct Event {
    Address address;  // of an out-of-memory: the device's free bytes
    Bytes size;
    Stream stream;
    std::int64_t time_us;  // since 1970
    PoolId pool;
    StackId stack;
    Action action;
};

inline std::int64_t now_us() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

class EventRing {
  public:
    // Keeps at most `limit` events from now on; the newest of those there are.
    void set_limit(std::size_t limit) {
        std::vector<Event> kept = events();
        if (kept.size() > limit)
            kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(limit));
        clear();
        limit_ = limit;
        for (const Event& event : kept) add(event);
    }
    void clear() {
        pages_.clear();
        size_ = next_ = 0;
    }
    void add(const Event& event) {
        if (limit_ == 0) return;
        if (next_ == limit_) next_ = 0;
        if (next_ / page_size == pages_.size())
            pages_.push_back(std::make_unique<Event[]>(page_size));
        at(next_++) = event;
        size_ = std::max(size_, next_);
    }
    std::size_t size() const { return size_; }
    // Oldest first.
    std::vector<Event> events() const {
        std::vector<Event> all;
        all.reserve(size_);
        for (std::size_t i = 0; i < size_; ++i) all.push_back(at((next_ + i) % size_));
        return all;
    }

  private:
    static constexpr std::size_t page_size = 4096;  // events; growing copies nothing

    Event& at(std::size_t i) const { return pages_[i / page_size][i % page_size]; }

    std::vector<std::unique_ptr<Event[]>> pages_;
    std::size_t limit_ = 0;
    std::size_t size_ = 0;
    std::size_t next_ = 0;
};

}  // namespace tenure::live
