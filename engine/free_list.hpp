// The free blocks of one pool on one stream, ordered by (size, order, address).
//
// Bins by size, sixteen to a power of two, so that most hold one block or none; in each an
// intrusive zip tree (Tarjan, Levy, Timmel 2018): a search tree by key that is a heap by a random
// rank, so insertion unzips one path, removal zips two, and nothing is ever allocated. Keys must
// not change while a block is in the list.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "engine/block.hpp"

namespace tenure {

class FreeList {
  public:
    void insert(Block* block) { insert(block, bin_of(block->size)); }
    void erase(Block* block) { erase(block, bin_of(block->size)); }

    // A block of the list gets another place and size. Alone in its bin, and still of it, it stays
    // where it is: so does most often what is left of a large block, or joined to one.
    void change(Block* block, Address address, Bytes size) {
        const std::size_t from = bin_of(block->size);
        const std::size_t to = bin_of(size);
        const bool stays = from == to && roots_[from] == block && !block->left && !block->right;
        if (!stays) erase(block, from);
        block->address = address;
        block->size = size;
        if (!stays) insert(block, to);
    }

    // The first block of at least `size` bytes, or null.
    Block* best_fit(Bytes size) const {
        const std::size_t bin = bin_of(size);
        Block* found = first_where(bin, [=](const Block& node) { return node.size >= size; });
        return found ? found : edge(next_bin(bin + 1), &Block::left);
    }

    Block* after(const Block* block) const {
        const std::size_t bin = bin_of(block->size);
        Block* found = first_where(bin, [=](const Block& node) { return before(*block, node); });
        return found ? found : edge(next_bin(bin + 1), &Block::left);
    }

    Block* preceding(const Block* block) const {
        const std::size_t bin = bin_of(block->size);
        Block* found = last_where(bin, [=](const Block& node) { return before(node, *block); });
        return found ? found : edge(previous_bin(bin), &Block::right);
    }

    Block* first() const { return edge(next_bin(0), &Block::left); }
    Block* last() const { return edge(previous_bin(bins), &Block::right); }
    std::size_t size() const { return size_; }

  private:
    static constexpr std::size_t steps = 16;         // bins to a power of two
    static constexpr std::size_t bins = 64 * steps;  // the last holds nothing

    static std::size_t bin_of(Bytes size) {
        const auto bytes = static_cast<std::uint64_t>(std::max(size, Bytes{steps}));
        const auto log2 = static_cast<std::size_t>(std::bit_width(bytes)) - 1;
        return steps * log2 + (bytes >> (log2 - std::countr_zero(steps))) % steps;
    }

    void insert(Block* block, std::size_t bin) {
        block->rank = next_rank();
        ++size_;
        occupied_[bin / 64] |= std::uint64_t{1} << bin % 64;
        Block** link = &roots_[bin];
        while (*link && stays_above(**link, *block))
            link = before(*block, **link) ? &(*link)->left : &(*link)->right;
        Block* below = *link;
        *link = block;
        if (below) unzip(below, block);  // else both its sides are empty, as in every block outside
    }

    void erase(Block* block, std::size_t bin) {
        --size_;
        Block** link = &roots_[bin];
        while (*link != block) link = before(*block, **link) ? &(*link)->left : &(*link)->right;
        if (block->left || block->right) {
            *link = zip(block->left, block->right);
            block->left = block->right = nullptr;
            return;
        }
        *link = nullptr;
        if (!roots_[bin]) occupied_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
    }

    // The nearest bin with a block in it, from `bin` on or before `bin`; if none, the last bin.
    std::size_t next_bin(std::size_t bin) const {
        std::size_t word = bin / 64;
        std::uint64_t occupied = occupied_[word] >> bin % 64 << bin % 64;
        while (!occupied && ++word < occupied_.size()) occupied = occupied_[word];
        return occupied ? 64 * word + static_cast<std::size_t>(std::countr_zero(occupied))
                        : bins - 1;
    }
    std::size_t previous_bin(std::size_t bin) const {
        while (bin-- > 0)
            if (roots_[bin]) return bin;
        return bins - 1;
    }

    // Of one bin, in order: the first block that the test holds for, given that it holds for all
    // behind it; or the last one, given that it holds for all before it.
    template <typename Test>
    Block* first_where(std::size_t bin, Test holds) const {
        Block* found = nullptr;
        for (Block* node = roots_[bin]; node;) {
            const bool here = holds(*node);
            if (here) found = node;
            node = here ? node->left : node->right;
        }
        return found;
    }
    template <typename Test>
    Block* last_where(std::size_t bin, Test holds) const {
        Block* found = nullptr;
        for (Block* node = roots_[bin]; node;) {
            const bool here = holds(*node);
            if (here) found = node;
            node = here ? node->right : node->left;
        }
        return found;
    }

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

    Block* edge(std::size_t bin, Block* Block::* side) const {
        Block* node = roots_[bin];
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

    std::array<Block*, bins> roots_{};
    std::array<std::uint64_t, bins / 64> occupied_{};
    std::size_t size_ = 0;
    std::uint64_t random_ = 0x9E3779B97F4A7C15ull;
};

}  // namespace tenure
