// Frees, uses and events: when a block may be handed out again.
//
// Reuse on the block's own stream needs no event: work there is ordered. A use on another stream
// (record_stream) makes the free wait for one event per such stream, recorded at the free and
// noticed at a later request, as in PyTorch.
#include <algorithm>

#include "engine/allocator.hpp"

namespace tenure {

void Allocator::record_stream(Block* block, Stream stream) {
    if (stream == block->segment->home->stream) return;
    const auto known = std::find_if(block->uses.begin(), block->uses.end(),
                                    [&](const Use& use) { return use.stream == stream; });
    if (known == block->uses.end())
        block->uses.push_back({stream, captures_ > 0});
    else
        known->in_capture = known->in_capture || captures_ > 0;
}

void Allocator::start_waiting(Block* block) {
    const bool small = block->segment->home->half->small;
    block->state = BlockState::pending;
    block->segment->home->live -= {1, block->size, block->requested};
    statistics_.allocation.decrease(small, 1);
    statistics_.allocated_bytes.decrease(small, block->size);
    if (torch_rules::is_oversize(settings_, block->size))
        statistics_.oversize_allocations.decrease(1);
}

void Allocator::free(Block* block) {
    start_waiting(block);
    if (block->uses.empty()) {
        make_cached(block);
    } else if (captures_ > 0) {
        deferred_.push_back(block);
    } else {
        record_events(block);
    }
}

// One event on each stream that used the block, behind everything queued there until now. Where the
// device has no event left, the wait is over before this returns.
void Allocator::record_events(Block* block) {
    for (const auto [stream, in_capture] : block->uses) {
        const EventHandle event = device_.record_event(stream);
        if (event == 0) {
            device_.synchronize(stream);
            continue;
        }
        events_[stream].push_back({event, block, ++next_event_});
        ++block->waiting_events;
    }
    block->uses.clear();
    if (block->waiting_events == 0) make_cached(block);
}

void Allocator::resume_deferred() {
    for (Block* block : deferred_) {
        // PyTorch's rule: a capture's streams have joined when it ends. Elastic rules, which move
        // memory between streams, wait for the work all the same.
        if (!is_elastic())
            std::erase_if(block->uses, [](const Use& use) { return use.in_capture; });
        record_events(block);
    }
    deferred_.clear();
}

void Allocator::end_capture() {
    if (captures_ == 0) throw UsageError("no capture is underway");
    --captures_;
}

void Allocator::free_pending(Block* block) {
    start_waiting(block);
    block->uses.clear();
    block->waiting_events = 1;
    held_.push_back(block);
}

void Allocator::complete(Block* block) {
    const auto place = std::find(held_.begin(), held_.end(), block);
    if (place == held_.end()) throw UsageError("complete: the block waits for nothing");
    held_.erase(place);
    block->waiting_events = 0;
    make_cached(block);
}

void Allocator::poll_events() {
    asked_ = true;
    if (!deferred_.empty()) resume_deferred();
    for (auto& [stream, queue] : events_)
        while (!queue.empty() && device_.is_done(queue.front().event)) {
            const PendingEvent done = queue.front();
            queue.pop_front();
            retire(done);
        }
}

void Allocator::wait_for_all_events() {
    ++statistics_.num_sync_all_streams;
    if (!deferred_.empty()) resume_deferred();
    for (auto& [stream, queue] : events_)
        while (!queue.empty()) {
            const PendingEvent done = queue.front();
            device_.wait(done.event);
            queue.pop_front();
            retire(done);
        }
    std::vector<Block*> held;
    held.swap(held_);
    for (Block* block : held) {
        block->waiting_events = 0;
        make_cached(block);
    }
}

void Allocator::wait_for_events(const Pool& pool) {
    ++statistics_.num_sync_all_streams;
    auto mine = [&](const Block* block) { return block->segment->home->half->pool == &pool; };
    for (auto& [stream, queue] : events_) {
        std::deque<PendingEvent> others;
        for (const PendingEvent& pending : queue) {
            if (!mine(pending.block)) {
                others.push_back(pending);
                continue;
            }
            device_.wait(pending.event);
            retire(pending);
        }
        queue.swap(others);
    }
    const auto first = std::stable_partition(held_.begin(), held_.end(),
                                             [&](const Block* block) { return !mine(block); });
    const std::vector<Block*> done(first, held_.end());
    held_.erase(first, held_.end());
    for (Block* block : done) {
        block->waiting_events = 0;
        make_cached(block);
    }
}

void Allocator::retire(PendingEvent pending) {
    device_.release_event(pending.event);
    if (--pending.block->waiting_events == 0) make_cached(pending.block);
}

// Gives a block back to its pool.
void Allocator::make_cached(Block* block) {
    Home& home = *block->segment->home;
    const bool small = home.half->small;
    if (completed_)
        completed_->push_back({block->address, block->requested, home.stream, home.half->pool->id});
    statistics_.active.decrease(small, 1);
    statistics_.active_bytes.decrease(small, block->size);
    statistics_.requested_bytes.decrease(small, block->requested);
    const Merged merged = put_back(block);
    if (block->segment->is_arena()) return;
    const bool is_split = block->is_split();
    statistics_.inactive_split.change(small, is_split - merged.neighbours);
    statistics_.inactive_split_bytes.change(small, (is_split ? block->size : 0) - merged.bytes);
}

// Into its home's free list, as one with its free neighbours.
Allocator::Merged Allocator::put_back(Block* block) {
    Home& home = *block->segment->home;
    block->state = BlockState::cached;
    Merged merged;
    for (Block* neighbour : {block->previous, block->next}) {
        const Bytes bytes = merge(block, neighbour);
        merged.neighbours += bytes > 0;
        merged.bytes += bytes;
    }
    block->searches_seen = home.half->searches;
    if (home.clock) note_free(*home.clock, block);
    home.free.insert(block);
    return merged;
}

// Absorbs a free neighbour in the same mapped state; bytes gained, or 0.
Bytes Allocator::merge(Block* block, Block* neighbour) {
    if (!neighbour || !neighbour->is_free() || neighbour->state != block->state) return 0;
    Home& home = *block->segment->home;
    if (neighbour->is_mapped())
        home.free.erase(neighbour);
    else
        home.unmapped.erase(neighbour);
    if (neighbour == block->previous) {
        block->address = neighbour->address;
        block->previous = neighbour->previous;
        if (block->previous)
            block->previous->next = block;
        else
            block->segment->first = block;
    } else {
        block->next = neighbour->next;
        if (block->next) block->next->previous = block;
    }
    const Bytes gained = neighbour->size;
    block->size += gained;
    block->stamp = std::max(block->stamp, neighbour->stamp);
    home.blocks.give_back(neighbour);
    return gained;
}

}  // namespace tenure
