// The free list against std::set: same order, same neighbours, same best fit.
#include "engine/free_list.hpp"

#include <memory>
#include <random>
#include <set>
#include <vector>

#include "engine/tests/check.hpp"

using namespace tenure;

namespace {

struct InOrder {
    bool operator()(const Block* a, const Block* b) const {
        if (a->size != b->size) return a->size < b->size;
        if (a->order != b->order) return a->order < b->order;
        return a->address < b->address;
    }
};

using Reference = std::set<Block*, InOrder>;

// From a handful of close sizes, or any size at all.
Bytes some_size(std::mt19937_64& random) {
    if (random() % 4 > 0) return 512 * static_cast<Bytes>(1 + random() % 40);
    return static_cast<Bytes>((random() >> 1 >> random() % 63) | 1);
}

// Few sizes and few orders, so that every level of the comparison decides somewhere.
std::vector<std::unique_ptr<Block>> some_blocks(std::size_t count, std::mt19937_64& random) {
    std::vector<std::unique_ptr<Block>> blocks;
    for (std::size_t i = 0; i < count; ++i) {
        auto block = std::make_unique<Block>();
        block->size = some_size(random);
        block->order = random() % 3;
        block->address = 4096 * (i + 1);
        blocks.push_back(std::move(block));
    }
    return blocks;
}

Block* dereference(const Reference& reference, Reference::const_iterator place) {
    return place == reference.end() ? nullptr : *place;
}

void compare_best_fit(const FreeList& list, const Reference& reference, Bytes size) {
    Block smallest;  // sorts before every block of that size
    smallest.size = size;
    CHECK(list.best_fit(size) == dereference(reference, reference.lower_bound(&smallest)));
}

void compare_walks(const FreeList& list, const Reference& reference) {
    CHECK_EQUAL(list.size(), reference.size());
    Block* forward = list.first();
    for (Block* expected : reference) {
        CHECK(forward == expected);
        if (forward) forward = list.after(forward);
    }
    CHECK(forward == nullptr);
    Block* backward = list.last();
    for (auto expected = reference.rbegin(); expected != reference.rend(); ++expected) {
        CHECK(backward == *expected);
        if (backward) backward = list.preceding(backward);
    }
    CHECK(backward == nullptr);
}

void test_random_sequence(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto blocks = some_blocks(300, random);
    FreeList list;
    Reference reference;
    for (int step = 0; step < 6000; ++step) {
        Block* block = blocks[random() % blocks.size()].get();
        if (reference.erase(block)) {
            list.erase(block);
            CHECK(block->left == nullptr && block->right == nullptr);
        } else {
            list.insert(block);
            reference.insert(block);
        }
        compare_best_fit(list, reference, some_size(random) - 1);
        if (step % 50 == 0) compare_walks(list, reference);
    }
    while (!reference.empty()) {
        list.erase(list.first());
        reference.erase(reference.begin());
    }
    compare_walks(list, reference);
}

void test_empty_list() {
    const FreeList list;
    CHECK(list.first() == nullptr);
    CHECK(list.last() == nullptr);
    CHECK(list.best_fit(1) == nullptr);
}

}  // namespace

int main() {
    test_empty_list();
    for (std::uint64_t seed = 1; seed <= 10; ++seed) test_random_sequence(seed);
    return testing::result();
}
