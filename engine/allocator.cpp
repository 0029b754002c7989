// The common path of a request: search, split, hand out; and growing when the search fails.
#include "engine/allocator.hpp"

#include <string>

#include "engine/elastic_rules.hpp"

namespace tenure {

using namespace torch_rules;

Allocator::Allocator(const Settings& settings, Device& device)
    : settings_(settings),
      device_(device),
      tie_rule_(tenure::torch_rules::tie_rule(settings.torch_version)),
      elastic_(device, settings.call_costs) {
    default_pool_ = &named_pool(PoolId{});
    if (!is_elastic()) return;
    elastic_rules::require_valid(settings);
    settings_ = elastic_rules::effective(settings);
    tie_rule_ = TieRule::address;
}

Allocator::~Allocator() {
    for (auto& [stream, queue] : events_)
        for (const PendingEvent& pending : queue) device_.release_event(pending.event);
    release_all_chunks();
    for (auto& segment : segments_) {
        if (!segment->is_arena()) {
            device_.destroy_segment(segment->address, segment->size);
            continue;
        }
        unmap_chunks(*segment, segment->address, segment->size);
        device_.unreserve(segment->address, segment->size);
    }
}

Pool& Allocator::named_pool(PoolId id) {
    auto [place, is_new] = pools_.try_emplace(id);
    if (is_new) {
        place->second = std::make_unique<Pool>(id);
        place->second->use_count = 1;
    }
    return *place->second;
}

void Allocator::create_pool(PoolId id) {
    if (pools_.contains(id))
        ++pool_at(id).use_count;
    else
        pool_at(id);
}

Home& Allocator::home_of(PoolHalf& half, Stream stream) {
    Home& home = half.home(stream);
    if (is_elastic() && !home.clock) {
        home.clock = &elastic_.clocks[stream];
        home.clock->stream = stream;
    }
    return home;
}

Allocator::Request Allocator::plan(Bytes requested, Stream stream, PoolId pool) {
    if (requested <= 0) throw UsageError("a request must be for at least 1 byte");
    if (requested >= refuse_at)
        throw OutOfMemory("Tried to allocate more than 1EB memory.", requested, requested, stream);
    const Bytes rounded = round_size(settings_, requested);
    Home& home = home_of(pool_at(pool).half(is_small(rounded)), stream);
    return {requested, rounded, segment_size(settings_, rounded), &home,
            settings_.expandable_segments};
}

Block* Allocator::allocate(Bytes requested, Stream stream, PoolId pool) {
    Request request = plan(requested, stream, pool);
    if (captures_ == 0) poll_events();
    Block* block = is_elastic() ? allocate_elastic(request) : take_free(request);
    if (!block && !is_elastic()) block = search_harder(request);
    if (!block) fail(request);
    return hand_out(block, request);
}

bool Allocator::collects_garbage() const {
    return settings_.limit != unlimited && settings_.garbage_collection_threshold > 0;
}

// The block that best fit means, still in its free list; null if the rules refuse it.
Block* Allocator::best_block(const Request& request) const {
    const FreeList& free = request.home->free;
    // A block at the edge of an arena counts with the room behind it, so that it is used last.
    auto growable_size = [](const Block* block) {
        const Block* next = block->next;
        return block->size + (next && !next->is_mapped() ? next->size : 0);
    };
    Block* best = free.best_fit(request.rounded);
    if (best && best->segment->is_arena()) {
        if (request.expandable) {
            for (Block* next = free.after(best);
                 next && best->segment->is_arena() && growable_size(next) < growable_size(best);
                 next = free.after(best))
                best = next;
        } else {
            do best = free.after(best);
            while (best && best->segment->is_arena());
        }
    }
    return best && may_serve(settings_, request.rounded, best->size) ? best : nullptr;
}

Block* Allocator::take_free(const Request& request) {
    if (collects_garbage()) ++request.half().searches;
    Block* block = best_block(request);
    if (block) request.home->free.erase(block);
    return block;
}

Block* Allocator::search_harder(Request& request) {
    if (!collection_paused_) collect_garbage();
    if (Block* block = grow(request, false)) return block;
    if (Block* block = borrow(request)) return block;
    if (release_oversize(request))
        if (Block* block = grow(request, false)) return block;
    if (captures_ > 0) return nullptr;
    release_cached();
    return grow(request, true);
}

// Requests of the default pool that would fail may take free blocks of pools that opted in.
Block* Allocator::borrow(Request& request) {
    if (request.half().pool->is_private()) return nullptr;
    for (auto& [id, pool] : pools_) {
        if (!pool->use_on_oom) continue;
        Request there = request;
        there.home = &pool->half(request.half().small).home(request.home->stream);
        there.expandable = is_elastic();
        if (Block* block = take_free(there)) {
            request = there;
            return block;
        }
    }
    return nullptr;
}

bool Allocator::over_limit(const Request& request) const {
    return settings_.limit != unlimited && reserved_ + request.segment > settings_.limit;
}

Block* Allocator::grow(const Request& request, bool last_attempt) {
    if (last_attempt) ++statistics_.num_alloc_retries;
    // PyTorch compares the whole segment with the limit, in arenas too, where less may be needed.
    if (over_limit(request)) return nullptr;
    return request.expandable ? grow_arena(request) : new_segment(request);
}

Block* Allocator::new_segment(const Request& request) {
    const Address address = device_.create_segment(request.segment);
    if (address == 0) return nullptr;
    Segment* segment = add_segment(address, request.segment, *request.home, 0);
    const bool small = request.half().small;
    count_reserved(*request.home, request.segment);
    ++request.half().pool->device_allocs;
    statistics_.segment.increase(small, 1);
    if (is_oversize(settings_, request.segment)) statistics_.oversize_segments.increase(1);
    ++statistics_.num_device_alloc;
    log(Action::segment_alloc, address, request.segment, *request.home);
    return segment->first;
}

Block* Allocator::hand_out(Block* block, const Request& request) {
    const bool small = request.half().small;
    const bool whole = request.half().pool->no_split ||
                       !should_split(settings_, small, request.rounded, block->size);
    const bool counts_split = !block->segment->is_arena();
    const bool was_split = block->is_split();
    if (!whole) {
        Block* rest = block;
        block = split_front(block, request.rounded);
        if (counts_split && was_split) {
            statistics_.inactive_split_bytes.decrease(small, block->size);
        } else if (counts_split) {
            statistics_.inactive_split_bytes.increase(small, rest->size);
            statistics_.inactive_split.increase(small, 1);
        }
    } else if (counts_split && was_split) {
        statistics_.inactive_split_bytes.decrease(small, block->size);
        statistics_.inactive_split.decrease(small, 1);
    }
    make_live(block, request.requested);
    return block;
}

void Allocator::make_live(Block* block, Bytes requested) {
    Home& home = *block->segment->home;
    const bool small = home.half->small;
    block->state = BlockState::live;
    block->requested = requested;
    home.live += {1, block->size, requested};
    statistics_.allocation.increase(small, 1);
    statistics_.allocated_bytes.increase(small, block->size);
    statistics_.active.increase(small, 1);
    statistics_.active_bytes.increase(small, block->size);
    statistics_.requested_bytes.increase(small, requested);
    if (is_oversize(settings_, block->size)) statistics_.oversize_allocations.increase(1);
}

// Cuts [address, address + size) off the front; the old Block keeps the tail and is cached.
Block* Allocator::split_front(Block* rest, Bytes size) {
    Block* front = new_block(rest->segment, rest->address, size);
    front->order = part_order(*rest);
    front->previous = rest->previous;
    front->next = rest;
    if (front->previous)
        front->previous->next = front;
    else
        rest->segment->first = front;
    rest->previous = front;
    rest->address += static_cast<Address>(size);
    rest->size -= size;
    Home& home = *rest->segment->home;
    rest->searches_seen = home.half->searches;
    home.free.insert(rest);
    return front;
}

std::uint64_t Allocator::new_block_order() const {
    return tie_rule_ == TieRule::address ? 0 : next_order_++;
}

std::uint64_t Allocator::part_order(const Block& whole) const {
    return tie_rule_ == TieRule::block_counter ? next_order_++ : whole.order;
}

bool Allocator::would_release(Bytes requested, Stream stream, PoolId pool) {
    const Request request = plan(requested, stream, pool);
    if (best_block(request)) return false;
    if (over_limit(request)) return true;
    const auto threshold = static_cast<Bytes>(settings_.garbage_collection_threshold *
                                              static_cast<double>(settings_.limit));
    return collects_garbage() && reserved_ > threshold;
}

bool Allocator::serves_from_cache(Bytes requested, Stream stream, PoolId pool) {
    return best_block(plan(requested, stream, pool)) != nullptr;
}

bool Allocator::would_serve(const Block& block, Bytes requested, Stream stream) const {
    const Home& home = *block.segment->home;
    const Bytes rounded = round_size(settings_, requested);
    Bytes size = block.size;
    for (const Block* neighbour : {block.previous, block.next})
        if (neighbour && neighbour->state == BlockState::cached) size += neighbour->size;
    return home.stream == stream && home.half->small == is_small(rounded) && size >= rounded &&
           may_serve(settings_, rounded, size);
}

void Allocator::fail(const Request& request) {
    ++statistics_.num_ooms;
    throw OutOfMemory("cannot serve " + std::to_string(request.requested) +
                          " bytes: a segment of " + std::to_string(request.segment) +
                          " was refused with " + std::to_string(reserved_) + " bytes reserved",
                      request.requested, request.segment, request.home->stream);
}

Block* Allocator::new_block(Segment* segment, Address address, Bytes size) {
    Block* block = segment->home->blocks.take();
    block->segment = segment;
    block->address = address;
    block->size = size;
    return block;
}

Segment* Allocator::add_segment(Address address, Bytes size, Home& home, Bytes granule) {
    auto segment = std::make_unique<Segment>();
    ++segment_changes_;
    segment->address = address;
    segment->size = size;
    segment->home = &home;
    segment->granule = granule;
    segment->index = segments_.size();
    segment->first = new_block(segment.get(), address, size);
    segment->first->order = new_block_order();
    segments_.push_back(std::move(segment));
    return segments_.back().get();
}

void Allocator::drop_segment(Segment* segment) {
    ++segment_changes_;
    segment->home->blocks.give_back(segment->first);
    std::swap(segments_[segment->index], segments_.back());
    segments_[segment->index]->index = segment->index;
    segments_.pop_back();
}

void Allocator::count_reserved(Home& home, Bytes change) {
    reserved_ += change;
    statistics_.reserved_bytes.change(home.half->small, change);
    if (home.half->pool->is_private())
        private_reserved_[home.half->pool->id].change(home.half->small, change);
}

void Allocator::reset_peak() {
    elastic_.live_peak = std::max(elastic_.live_peak, statistics_.active_bytes.all.peak);
    statistics_.reset_peak();
    for (auto& [id, counter] : private_reserved_) counter.reset_peak();
}

void Allocator::reset_accumulated() {
    statistics_.reset_accumulated();
    for (auto& [id, counter] : private_reserved_) counter.reset_accumulated();
}

void Allocator::log(Action action, Address address, Bytes size, const Home& home) {
    if (log_) log_->push_back({action, address, size, home.stream});
}

}  // namespace tenure
