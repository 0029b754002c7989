// Every counter of torch.cuda.memory_stats(), counted where PyTorch counts it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/units.hpp"

namespace tenure {

struct Counter {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t allocated = 0;  // sum of all increases
    std::int64_t freed = 0;      // sum of all decreases
    bool operator==(const Counter&) const = default;

    void increase(std::int64_t amount) {
        current += amount;
        peak = std::max(peak, current);
        allocated += amount;
    }
    void decrease(std::int64_t amount) {
        current -= amount;
        freed += amount;
    }
    // Increases and decreases of which no moment passed the peak.
    void settle(std::int64_t more, std::int64_t less) {
        current += more - less;
        allocated += more;
        freed += less;
    }
    void change(std::int64_t amount) {
        if (amount > 0) increase(amount);
        if (amount < 0) decrease(-amount);
    }
    void reset_peak() { peak = current; }
    void reset_accumulated() { allocated = freed = 0; }
};

struct PoolCounter {
    Counter all;
    Counter small_pool;
    Counter large_pool;
    bool operator==(const PoolCounter&) const = default;

    Counter& of(bool small) { return small ? small_pool : large_pool; }
    void increase(bool small, std::int64_t amount) {
        all.increase(amount);
        of(small).increase(amount);
    }
    void decrease(bool small, std::int64_t amount) {
        all.decrease(amount);
        of(small).decrease(amount);
    }
    void settle(bool small, std::int64_t more, std::int64_t less) {
        all.settle(more, less);
        of(small).settle(more, less);
    }
    void change(bool small, std::int64_t amount) {
        all.change(amount);
        of(small).change(amount);
    }
    void reset_peak() {
        all.reset_peak();
        small_pool.reset_peak();
        large_pool.reset_peak();
    }
    void reset_accumulated() {
        all.reset_accumulated();
        small_pool.reset_accumulated();
        large_pool.reset_accumulated();
    }
};

struct Statistics {
    PoolCounter allocation;       // blocks handed out
    PoolCounter segment;          // cudaMallocs, not arenas
    PoolCounter active;           // live + pending blocks
    PoolCounter inactive_split;   // cached blocks with a neighbour in their segment, not in arenas
    PoolCounter allocated_bytes;  // of live blocks, rounding included
    PoolCounter reserved_bytes;   // of what the driver gave
    PoolCounter active_bytes;     // of live + pending blocks
    PoolCounter inactive_split_bytes;
    PoolCounter requested_bytes;  // as asked, of live + pending blocks
    Counter oversize_allocations;
    Counter oversize_segments;
    std::int64_t num_alloc_retries = 0;  // last attempts, after everything cached was returned
    std::int64_t num_ooms = 0;
    std::int64_t num_sync_all_streams = 0;  // waits for every outstanding event
    std::int64_t num_device_alloc = 0;      // cudaMalloc calls and map calls
    std::int64_t num_device_free = 0;
    bool operator==(const Statistics&) const = default;

    template <typename Visit>
    void each(Visit&& visit) {
        PoolCounter* counters[] = {
            &allocation,      &segment,        &active,       &inactive_split,
            &allocated_bytes, &reserved_bytes, &active_bytes, &inactive_split_bytes,
            &requested_bytes};
        for (PoolCounter* counter : counters) visit(*counter);
        visit(oversize_allocations);
        visit(oversize_segments);
    }
    void reset_peak() {
        each([](auto& counter) { counter.reset_peak(); });
    }
    void reset_accumulated() {
        each([](auto& counter) { counter.reset_accumulated(); });
        num_alloc_retries = num_ooms = num_sync_all_streams = 0;
        num_device_alloc = num_device_free = 0;
    }
};

}  // namespace tenure
