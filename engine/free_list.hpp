// The free blocks of one pool on one stream, ordered by (size, order, address).
//
// An intrusive zip tree (Tarjan, Levy, Timmel 2018): a search tree by key that is a heap by a
// random rank, so insertion unzips one path, removal zips two, and nothing is ever allocated.
// Expected depth is about 1.5 log2 n. Keys must not change while a block is in the list.
#pragma once

#include <bit>
#include <cstddef>

#include "engine/block.hpp"

namespace tenure {

class FreeList {
  public:
    void insert(Block* block) {
        block->rank = next_rank();
        Block** link = &root_;
        while (*link && stays_above(**link, *block))
            link = before(*block, **link) ? &(*link)->left : &(*link)->right;
        Block* below = *link;
        *link = block;
        unzip(below, block);
        ++size_;
    }

    void erase(Block* block) {
        Block** link = &root_;
        while (*link != block) link = before(*block, **link) ? &(*link)->left : &(*link)->right;
        *link = zip(block->left, block->right);
        block->left = block->right = nullptr;
        --size_;
    }

    // The first block of at least `size` bytes, or null.
    Block* best_fit(Bytes size) const {
        Block* found = nullptr;
        for (Block* node = root_; node;) {
            if (node->size >= size) {
                found = node;
                node = node->left;
            } else {
                node = node->right;
            }
        }
        return found;
    }

    Block* after(const Block* block) const {
        Block* found = nullptr;
        for (Block* node = root_; node;) {
            if (before(*block, *node)) {
                found = node;
                node = node->left;
            } else {
                node = node->right;
            }
        }
        return found;
    }

    Block* preceding(const Block* block) const {
        Block* found = nullptr;
        for (Block* node = root_; node;) {
            if (before(*node, *block)) {
                found = node;
                node = node->right;
            } else {
                node = node->left;
            }
        }
        return found;
    }

    Block* first() const { return edge(&Block::left); }
    Block* last() const { return edge(&Block::right); }
    std::size_t size() const { return size_; }

  private:
    static bool before(const Block& a, const Block& b) {
        if (a.size != b.size) return a.size < b.size;
        if (a.order != b.order) return a.order < b.order;
        return a.address < b.address;
    }

    // Whether `node` keeps its place above a newcomer: higher rank, or equal rank and smaller key.
    static bool stays_above(const Block& node, const Block& newcomer) {
        return node.rank > newcomer.rank || (node.rank == newcomer.rank && before(node, newcomer));
    }

    static void unzip(Block* node, Block* block) {
        Block** smaller = &block->left;
        Block** larger = &block->right;
        while (node) {
            if (before(*node, *block)) {
                *smaller = node;
                smaller = &node->right;
                node = *smaller;
            } else {
                *larger = node;
                larger = &node->left;
                node = *larger;
            }
        }
        *smaller = *larger = nullptr;
    }

    static Block* zip(Block* smaller, Block* larger) {
        Block* top = nullptr;
        Block** link = &top;
        while (smaller && larger) {
            if (smaller->rank >= larger->rank) {
                *link = smaller;
                link = &smaller->right;
                smaller = *link;
            } else {
                *link = larger;
                link = &larger->left;
                larger = *link;
            }
        }
        *link = smaller ? smaller : larger;
        return top;
    }

    Block* edge(Block* Block::* side) const {
        Block* node = root_;
        while (node && node->*side) node = node->*side;
        return node;
    }

    // Geometric ranks from a fixed xorshift sequence: runs are repeatable.
    std::uint32_t next_rank() {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        return static_cast<std::uint32_t>(std::countr_zero(random_ | (1ull << 63)));
    }

    Block* root_ = nullptr;
    std::size_t size_ = 0;
    std::uint64_t random_ = 0x9E3779B97F4A7C15ull;
};

}  // namespace tenure
