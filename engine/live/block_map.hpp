// From an address to its live block: a table for each stream, under its lock, and one for the rest.
#pragma once

#include <memory>

#include "engine/block.hpp"

namespace tenure::live {

// Open addressing, at most half full; an erased entry's followers move up, so there are no marks of
// former entries to search through.
class BlockMap {
  public:
    BlockMap() : entries_(new Entry[std::size_t{1} << 12]) {}

    std::size_t size() const { return size_; }

    // pre: the block's address is not in the map.
    void insert(Block* block) {
        if (2 * (size_ + 1) > mask_ + 1) grow();
        entries_[free_place(block->address)] = {block->address, block};
        ++size_;
    }
    Block* find(Address address) const {
        const std::size_t i = place_of(address);
        return entries_[i].block;
    }
    // The block, which is no longer in the map; null if there was none.
    Block* take(Address address) {
        std::size_t hole = place_of(address);
        Block* block = entries_[hole].block;
        if (!block) return nullptr;
        --size_;
        for (std::size_t i = next(hole); entries_[i].block; i = next(i)) {
            // An entry may move to the hole if that lies between its home and its place.
            const std::size_t home = home_of(entries_[i].address);
            if (((i - home) & mask_) < ((i - hole) & mask_)) continue;
            entries_[hole] = entries_[i];
            hole = i;
        }
        entries_[hole] = {};
        return block;
    }

  private:
    struct Entry {
        Address address = 0;
        Block* block = nullptr;
    };

    std::size_t next(std::size_t i) const { return (i + 1) & mask_; }
    // Addresses are multiples of 512; the high bits of the product depend on all others.
    std::size_t home_of(Address address) const {
        return static_cast<std::size_t>((address >> 9) * 0x9e37'79b9'7f4a'7c15u >> shift_);
    }
    std::size_t place_of(Address address) const {
        std::size_t i = home_of(address);
        while (entries_[i].block && entries_[i].address != address) i = next(i);
        return i;
    }
    std::size_t free_place(Address address) const {
        std::size_t i = home_of(address);
        while (entries_[i].block) i = next(i);
        return i;
    }
    void grow() {
        const std::unique_ptr<Entry[]> before = std::move(entries_);
        const std::size_t count = mask_ + 1;
        entries_.reset(new Entry[2 * count]);
        mask_ = 2 * count - 1;
        --shift_;
        for (std::size_t i = 0; i < count; ++i)
            if (before[i].block) entries_[free_place(before[i].address)] = before[i];
    }

    std::unique_ptr<Entry[]> entries_;
    std::size_t mask_ = (std::size_t{1} << 12) - 1;  // how many there are, less one
    int shift_ = 64 - 12;
    std::size_t size_ = 0;
};

}  // namespace tenure::live
