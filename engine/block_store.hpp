// Block objects of one home: those of its segments, and spare ones for those to come.
#pragma once

#include <memory>
#include <vector>

#include "engine/block.hpp"

namespace tenure {

class BlockStore {
  public:
    // As a new one, but for the fields that name its place.
    Block* take() {
        if (!spare_) add_slab();
        Block* block = spare_;
        spare_ = block->next;
        block->next = nullptr;
        return block;
    }
    // pre: in no list. Field by field: this is on the common path, and a Block is large.
    void give_back(Block* block) {
        block->requested = 0;
        block->previous = nullptr;
        block->order = 0;
        block->state = BlockState::cached;
        block->waiting_events = 0;
        block->searches_seen = 0;
        block->stamp = 0;
        block->tag = -1;
        block->uses.clear();
        block->next = spare_;
        spare_ = block;
    }

  private:
    static constexpr std::size_t slab = 128;

    void add_slab() {
        slabs_.push_back(std::make_unique<Block[]>(slab));
        for (std::size_t i = 0; i < slab; ++i) {
            slabs_.back()[i].next = spare_;
            spare_ = &slabs_.back()[i];
        }
    }

    std::vector<std::unique_ptr<Block[]>> slabs_;
    Block* spare_ = nullptr;  // chained by `next`
};

}  // namespace tenure
