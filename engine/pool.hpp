// Pools: blocks that may serve each other. A pool has a small and a large half, each half has one
// home per stream, and a block only ever moves between its neighbours and its home's free list.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "engine/block_store.hpp"
#include "engine/free_list.hpp"
#include "engine/lane.hpp"
#include "engine/segment.hpp"

namespace tenure {

struct Pool;
struct PoolHalf;
struct StreamClock;

struct LowerAddress {
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
};

// The blocks of one pool half on one stream. PyTorch keeps all streams in one ordered set with the
// stream as first key and never crosses it; homes sorted by stream give the same order.
struct alignas(64) Home {  // written beside other streams' (lane.hpp): shares no cache line
    PoolHalf* half = nullptr;
    Stream stream = 0;
    StreamClock* clock = nullptr;  // elastic rules only
    Counts live;
    FreeList free;
    BlockStore blocks;
    std::set<Block*, LowerAddress> unmapped;
};

struct PoolHalf {
    Pool* pool = nullptr;
    bool small = false;
    std::int64_t searches = 0;  // counted only while garbage collection is on: the clock of ages
    std::vector<std::unique_ptr<Home>> homes;  // ascending stream

    Home& home(Stream stream) {
        for (auto& home : homes)
            if (home->stream == stream) return *home;
        auto home = std::make_unique<Home>();
        home->half = this;
        home->stream = stream;
        auto place = std::find_if(homes.begin(), homes.end(),
                                  [&](auto& other) { return other->stream > stream; });
        return **homes.insert(place, std::move(home));
    }
};

struct Pool {
    explicit Pool(PoolId id) : id(id) {
        small.pool = large.pool = this;
        small.small = true;
    }
    Pool(const Pool&) = delete;

    PoolId id;
    PoolHalf small;
    PoolHalf large;
    int use_count = 0;               // private pools: captures and owners that still hold it
    std::int64_t device_allocs = 0;  // private pools: PyTorch's cudaMalloc_count
    bool use_on_oom = false;         // its free blocks may serve requests that would fail
    bool no_split = false;           // blocks are handed out whole

    bool is_private() const { return !id.is_default(); }
    PoolHalf& half(bool is_small) { return is_small ? small : large; }
};

}  // namespace tenure
