// What a lane does by itself: the common path of a live process, inline for that.
#pragma once

#include "engine/allocator.hpp"
#include "engine/elastic_rules.hpp"

namespace tenure {

// Whether the next free is worth an event.
inline bool Allocator::is_mark_due(const StreamClock& clock) const {
    return elastic_.is_scarce && captures_ == 0 &&
           (clock.frees + 1) % elastic_rules::marked_frees == 0;
}

// As split_front, for a block that stays in its home's free list.
inline Block* Allocator::split_in_place(Home& home, Block* rest, Bytes size) {
    Block* front = home.blocks.take();
    front->segment = rest->segment;
    front->address = rest->address;
    front->size = size;
    front->order = rest->order;
    front->previous = rest->previous;
    front->next = rest;
    (rest->previous ? rest->previous->next : rest->segment->first) = front;
    rest->previous = front;
    home.free.change(rest, rest->address + static_cast<Address>(size), rest->size - size);
    return front;
}

// As put_back; but of a block and its free neighbours it is the larger neighbour that becomes the
// whole, since it may keep its place in the free list.
inline void Allocator::join_in_place(Home& home, Block* block) {
    auto is_cached = [](const Block* side) { return side && side->state == BlockState::cached; };
    Block* const before = is_cached(block->previous) ? block->previous : nullptr;
    Block* const after = is_cached(block->next) ? block->next : nullptr;
    if (!before && !after) {
        block->state = BlockState::cached;
        home.free.insert(block);
        return;
    }
    const bool grows_after = !before || (after && after->size > before->size);
    Block* const whole = grows_after ? after : before;
    Block* const other = grows_after ? before : after;
    const Bytes size = block->size + whole->size + (other ? other->size : 0);
    const Address address = before ? before->address : block->address;
    whole->requested = block->requested;
    whole->stamp = block->stamp;  // of the newest free
    whole->previous = before ? before->previous : block->previous;
    whole->next = after ? after->next : block->next;
    (whole->previous ? whole->previous->next : whole->segment->first) = whole;
    if (whole->next) whole->next->previous = whole;
    if (other) {
        home.free.erase(other);
        home.blocks.give_back(other);
    }
    home.free.change(whole, address, size);
    home.blocks.give_back(block);
}

inline Block* Allocator::allocate_in(Lane& lane, Bytes requested) {
    if (requested <= 0 || lane.unasked == 0) return nullptr;
    const Bytes rounded = elastic_rules::round_size(requested);
    const bool small = torch_rules::is_small(rounded);
    Home& home = *lane.homes[small];
    const Counts more{1, rounded, requested};
    const Counts live = home.live + more;
    if (!live.within(lane.ceiling[small]) ||
        !(live + lane.homes[!small]->live).within(lane.ceiling[Lane::both]))
        return nullptr;
    Block* block = home.free.best_fit(rounded);
    if (!block) return nullptr;
    if (block->size > rounded)
        block = split_in_place(home, block, rounded);
    else
        home.free.erase(block);
    block->state = BlockState::live;
    block->requested = requested;
    home.live = live;
    lane.taken[small] += more;
    --lane.unasked;
    return block;
}

inline bool Allocator::free_in(Lane& lane, Block* block) {
    Home& home = *block->segment->home;
    const bool small = home.half->small;
    if (&home != lane.homes[small] || !block->uses.empty() || is_mark_due(*home.clock))
        return false;
    home.live -= {1, block->size, block->requested};
    block->stamp = ++home.clock->frees;
    join_in_place(home, block);
    return true;
}

}  // namespace tenure
