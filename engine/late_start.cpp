#include "engine/late_start.hpp"

#include <algorithm>
#include <iterator>

namespace tenure {

namespace {

constexpr std::uint64_t spacing = std::uint64_t{1} << 32;  // room between orders for new places
constexpr int most_ties = 8;    // equal blocks that one choice is compared with
constexpr int most_bends = 16;  // for one request

}  // namespace

void LateStart::begin(const std::vector<std::pair<Number, Bytes>>& slack) {
    slack_.insert(slack.begin(), slack.end());
    if (allocator_.tie_rule_ == torch_rules::TieRule::address) return;
    // All orders at once and evenly: no free list changes.
    for (auto& segment : allocator_.segments_)
        for (Block* block = segment->first; block; block = block->next) {
            block->order *= spacing;
            ages_.emplace(block->order, 0);
        }
    allocator_.next_order_ *= spacing;
    for (auto& [order, age] : ages_) {
        age = orders_.size();
        orders_.push_back(order);
    }
}

void LateStart::fit(Bytes requested, Stream stream, PoolId pool, Address recorded) {
    if (slack_.empty() && ages_.empty()) return;
    const Allocator::Request request = allocator_.plan(requested, stream, pool);
    for (int bends = 0; bends < most_bends; ++bends) {
        Block* ours = allocator_.best_block(request);
        if (!ours) return;
        if (ours->address == recorded) return remember(ours);
        const Block* theirs = nullptr;
        const FreeList& free = request.home->free;
        for (Block* next = free.after(ours); next && next->size == ours->size && !theirs;
             next = free.after(next))
            if (next->address == recorded) theirs = next;
        if (!(theirs && older(theirs, ours)) && !shrink(ours, request.rounded)) return;
    }
}

void LateStart::fit_releases(std::span<const SegmentEvent> recorded) {
    if (ages_.empty()) return;
    for (std::size_t i = 1; i < recorded.size(); ++i) {
        const SegmentEvent& first = recorded[i - 1];
        const SegmentEvent& second = recorded[i];
        if (first.size != second.size || first.action != second.action) continue;
        const Block* older_one = whole_segment(first);
        const Block* younger_one = whole_segment(second);
        if (!older_one || !younger_one) continue;
        if (older_one->segment->home != younger_one->segment->home) continue;
        if (older_one->order > younger_one->order) older(older_one, younger_one);
    }
}

// The block that a segment_free returns; null for anything else.
const Block* LateStart::whole_segment(const SegmentEvent& event) const {
    if (event.action != Action::segment_free) return nullptr;
    for (auto& segment : allocator_.segments_)
        if (segment->address == event.address && !segment->is_arena()) return segment->first;
    return nullptr;
}

// Gives the front of a free block to the one before it, so that it no longer serves the request.
bool LateStart::shrink(Block* block, Bytes rounded) {
    Block* before = block->previous;
    if (!before || before->is_free()) return false;
    const auto open = slack_.find(before->tag);
    const Bytes more = block->size - rounded + torch_rules::min_block_size;
    if (open == slack_.end() || more > open->second) return false;
    open->second -= more;
    larger_[before->tag] += more;
    FreeList& free = block->segment->home->free;
    const bool small = block->segment->home->half->small;
    Statistics& statistics = allocator_.statistics_;
    free.erase(block);
    block->address += static_cast<Address>(more);
    block->size -= more;
    before->size += more;
    free.insert(block);
    statistics.active_bytes.increase(small, more);
    if (before->state == BlockState::live) {
        statistics.allocated_bytes.increase(small, more);
        before->segment->home->live.allocated += more;
    }
    statistics.inactive_split_bytes.decrease(small, more);
    return true;
}

const LateStart::Age* LateStart::age_of(const Block* block) const {
    const auto place = ages_.find(block->order);
    return place == ages_.end() ? nullptr : &place->second;
}

// The record took this block: those of equal size are younger.
void LateStart::remember(const Block* taken) {
    if (ages_.empty()) return;
    const Age* first = age_of(taken);
    if (!first) return;
    const FreeList& free = taken->segment->home->free;
    const Block* next = free.after(taken);
    for (int i = 0; i < most_ties && next && next->size == taken->size; ++i) {
        const Age* second = age_of(next);
        if (second && *second != *first) younger_[*first].insert(*second);
        next = free.after(next);
    }
}

bool LateStart::older(const Block* chosen, const Block* ours) {
    const Age* first = age_of(chosen);
    const Age* second = age_of(ours);
    return first && second && put_before(*first, *second);
}

bool LateStart::leads_to(Age from, Age to) const {
    std::vector<Age> next{from};
    std::set<Age> seen;
    while (!next.empty()) {
        const Age age = next.back();
        next.pop_back();
        if (age == to) return true;
        const auto known = younger_.find(age);
        if (known == younger_.end() || !seen.insert(age).second) continue;
        next.insert(next.end(), known->second.begin(), known->second.end());
    }
    return false;
}

// Makes `first` older than `second`, and what is known to be older than `first` older still.
bool LateStart::put_before(Age first, Age second) {
    if (first == second || leads_to(second, first)) return false;
    const auto place = ages_.find(orders_[second]);
    const Order floor = place == ages_.begin() ? 0 : std::prev(place)->first;
    const Order order = floor + (place->first - floor) / 2;
    if (order == floor) return false;
    set_order(first, order);
    younger_[first].insert(second);
    for (const auto& [age, known] : younger_)
        if (known.contains(first) && orders_[age] > order && !put_before(age, first)) return false;
    return true;
}

void LateStart::set_order(Age age, Order order) {
    const Order old = orders_[age];
    for (auto& segment : allocator_.segments_)
        for (Block* block = segment->first; block; block = block->next) {
            if (block->order != old) continue;
            FreeList& free = segment->home->free;
            const bool listed = block->state == BlockState::cached;
            if (listed) free.erase(block);
            block->order = order;
            if (listed) free.insert(block);
        }
    ages_.erase(old);
    ages_.emplace(order, age);
    orders_[age] = order;
}

}  // namespace tenure
