// Checkpoints of private pools: what is live in one, and making it so again. Graphs that share a
// pool need it, each to find the pool as it was when it was captured.
#include <algorithm>

#include "engine/allocator.hpp"

namespace tenure {

std::vector<Allocator::Checkpointed> Allocator::checkpoint(PoolId pool) const {
    std::vector<Checkpointed> live;
    for (const auto& segment : segments_) {
        if (segment->home->half->pool->id != pool) continue;
        for (const Block* block = segment->first; block; block = block->next)
            if (block->state == BlockState::live)
                live.push_back({block->address, block->size, block->requested, block->tag});
    }
    return live;
}

// The cached block of the pool that holds the range; null if memory or blocks are in the way.
Block* Allocator::cached_around(PoolId pool, Address address, Bytes size) const {
    for (const auto& segment : segments_) {
        if (segment->home->half->pool->id != pool || address < segment->address ||
            address - segment->address >= static_cast<Address>(segment->size))
            continue;
        Block* block = segment->first;
        while (block->end() <= address) block = block->next;
        const bool holds = block->end() >= address + static_cast<Address>(size);
        return holds && block->state == BlockState::cached ? block : nullptr;
    }
    return nullptr;
}

// pre: nothing of the pool is live, and no capture is underway, so that nothing is deferred.
std::vector<Block*> Allocator::restore_checkpoint(PoolId id, std::span<const Checkpointed> blocks) {
    const auto known = pools_.find(id);
    if (known == pools_.end()) throw UsageError("the pool of the checkpoint is gone");
    wait_for_events(*known->second);
    for (const Checkpointed& saved : blocks)
        if (!cached_around(id, saved.address, saved.size))
            throw UsageError("the memory of a block at " + std::to_string(saved.address) +
                             " in the checkpoint has gone to other use");
    std::vector<Block*> made;
    for (const Checkpointed& saved : blocks) {
        made.push_back(carve(cached_around(id, saved.address, saved.size), saved));
        made.back()->tag = saved.tag;
    }
    return made;
}

// Exactly that range of a cached block becomes live; what lies around it stays cached.
Block* Allocator::carve(Block* block, const Checkpointed& range) {
    Home& home = *block->segment->home;
    const bool small = home.half->small;
    auto count_split = [&](const Block& part, int sign) {
        if (part.segment->is_arena() || !part.is_split()) return;
        statistics_.inactive_split.change(small, sign);
        statistics_.inactive_split_bytes.change(small, sign * part.size);
    };
    count_split(*block, -1);
    home.free.erase(block);
    if (block->address < range.address) {
        Block* before = split_front(block, static_cast<Bytes>(range.address - block->address));
        before->stamp = block->stamp;
        home.free.erase(block);  // split_front lists the rest
        home.free.insert(before);
        count_split(*before, 1);
    }
    if (block->size > range.size) {
        Block* rest = block;
        block = split_front(rest, range.size);
        count_split(*rest, 1);
    }
    make_live(block, range.requested);
    return block;
}

}  // namespace tenure
