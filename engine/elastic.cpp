// Elastic rules: where a request goes.
//
// Best fit among mapped free blocks serves nearly every request. Else the position, among all free
// ranges of the arenas, that needs the least memory mapped; moves.cpp finds that memory.
#include <algorithm>

#include "engine/allocator.hpp"
#include "engine/elastic_rules.hpp"

namespace tenure {

using elastic_rules::page;

namespace {

Address page_floor(Address address) { return address - address % static_cast<Address>(page); }
Address page_ceiling(Address address) {
    return page_floor(address + static_cast<Address>(page) - 1);
}
Address end_of(const Segment& arena) { return arena.address + static_cast<Address>(arena.size); }

}  // namespace

Block* Allocator::allocate_elastic(Request& request) {
    Block* block = take_mapped(request);
    return block ? block : grow_elastic(request);
}

Block* Allocator::take_mapped(const Request& request) {
    Block* block = request.home->free.best_fit(request.rounded);
    if (block) request.home->free.erase(block);
    return block;
}

// Each step costs more than the one before: map, move; take from pools that lend; wait for the
// old uses of what is free; for pending blocks, oldest first; ask for dead objects.
Block* Allocator::grow_elastic(Request& request) {
    ++elastic_.chunks.meter.counts.requests_grown;
    if (captures_ == 0) begin_slow_path(request);
    if (Block* block = map_window(request, false)) return block;
    if (Block* block = borrow(request)) return block;
    if (captures_ > 0) return nullptr;
    ++statistics_.num_alloc_retries;
    auto retry = [&] {
        Block* block = take_mapped(request);
        return block ? block : map_window(request, true);
    };
    while (wait_for_old_mappings()) {
    }
    if (Block* block = retry()) return block;
    while (wait_for_oldest_pending())
        if (Block* block = retry()) return block;
    release_freeable_pools();
    if (Block* block = retry()) return block;
    if (elastic_.collect && elastic_.collect()) {
        poll_events();
        return retry();
    }
    return nullptr;
}

// Fills the position that needs the least; if memory cannot be found for it, the one that makes
// the job as a whole touch the least.
Block* Allocator::map_window(const Request& request, bool may_wait) {
    Window fewest_missing;
    Window fewest_touched;
    if (!find_windows(request, fewest_missing, fewest_touched)) {
        if (!add_arena(request)) return nullptr;
        if (!find_windows(request, fewest_missing, fewest_touched)) return nullptr;
    }
    if (Block* block = fill(request, fewest_missing, may_wait)) return block;
    if (!find_windows(request, fewest_missing, fewest_touched)) return nullptr;
    return fill(request, fewest_touched, may_wait);
}

bool Allocator::add_arena(const Request& request) {
    const Bytes size = elastic_rules::arena_size(settings_);
    if (size < request.rounded) return false;
    const Address address = device_.reserve(size, page);
    if (address == 0) return false;
    Segment* arena = add_segment(address, size, *request.home, page);
    arena->first->state = BlockState::unmapped;
    request.home->unmapped.insert(arena->first);
    return true;
}

// The free ranges of the home's arenas that memory could be mapped in, by ascending address: each
// unmapped range, without the old mappings in it, and the cached blocks beside it.
std::vector<Allocator::FreeRun> Allocator::free_runs(const Home& home) const {
    std::vector<FreeRun> runs;
    auto add = [&](const Block& block, Address begin, Address end) {
        if (begin < end) runs.push_back({block.segment, begin, end, block.is_mapped()});
    };
    for (const Block* block : home.unmapped) {
        const Block* before = block->previous;
        const bool is_new = runs.empty() || !before || runs.back().end <= before->address;
        if (before && before->is_free() && is_new) add(*before, before->address, before->end());
        Address at = block->address;
        for (const OldMapping* old : old_mappings_in(*block)) {
            add(*block, at, old->address);
            at = old->address + static_cast<Address>(old->size);
        }
        add(*block, at, block->end());
        if (block->next && block->next->is_free())
            add(*block->next, block->next->address, block->next->end());
    }
    return runs;
}

std::vector<const OldMapping*> Allocator::old_mappings_in(const Block& block) const {
    std::vector<const OldMapping*> found;
    for (const OldMapping& old : elastic_.old_mappings)
        if (old.address >= block.address && old.address < block.end()) found.push_back(&old);
    std::sort(found.begin(), found.end(),
              [](const OldMapping* a, const OldMapping* b) { return a->address < b->address; });
    return found;
}

namespace {

// Bytes of unmapped pages among the runs that [begin, end) touches.
template <typename Runs>
Bytes missing_in(const Runs& runs, std::size_t first, std::size_t last, Address begin,
                 Address end) {
    Bytes missing = 0;
    for (std::size_t i = first; i < last; ++i) {
        if (runs[i].mapped) continue;
        const Address from = std::max(runs[i].begin, page_floor(begin));
        const Address to = std::min(runs[i].end, page_ceiling(end));
        if (from < to) missing += static_cast<Bytes>(to - from);
    }
    return missing;
}

// Bytes of the pages under [begin, end) that lie wholly inside the free range [low, high).
Bytes touched_in(Address low, Address high, Address begin, Address end) {
    const Address from = std::max(page_ceiling(low), page_floor(begin));
    const Address to = std::min(page_floor(high), page_ceiling(end));
    return from < to ? static_cast<Bytes>(to - from) : 0;
}

}  // namespace

// In every maximal free range, at its two ends and at the two ends of each mapped run in it. The
// range that ends the arena has no upper end to place anything at.
bool Allocator::find_windows(const Request& request, Window& fewest_missing,
                             Window& fewest_touched) const {
    const std::vector<FreeRun> runs = free_runs(*request.home);
    const auto size = static_cast<Address>(request.rounded);
    bool found = false;
    auto consider = [&](const Window& window) {
        auto missing = [](const Window& w) { return std::tuple(w.missing, w.range, w.begin); };
        auto touched = [](const Window& w) {
            return std::tuple(w.touched, w.missing, w.range, w.begin);
        };
        if (!found || missing(window) < missing(fewest_missing)) fewest_missing = window;
        if (!found || touched(window) < touched(fewest_touched)) fewest_touched = window;
        found = true;
    };
    for (std::size_t first = 0, last = 0; first < runs.size(); first = last) {
        for (last = first + 1; last < runs.size() && runs[last].begin == runs[last - 1].end &&
                               runs[last].arena == runs[first].arena;
             ++last) {
        }
        const Address low = runs[first].begin;
        const Address high = runs[last - 1].end;
        if (high - low < size) continue;
        auto at = [&](Address begin) {
            if (begin < low || begin > high - size) return;
            consider({runs[first].arena, begin, request.rounded,
                      missing_in(runs, first, last, begin, begin + size),
                      touched_in(low, high, begin, begin + size), static_cast<Bytes>(high - low)});
        };
        at(low);
        if (high != end_of(*runs[first].arena)) at(high - size);
        for (std::size_t i = first; i < last; ++i) {
            if (!runs[i].mapped) continue;
            at(runs[i].begin);
            at(runs[i].end - size);
        }
    }
    return found;
}

// Null if the memory cannot be found; what was mapped until then stays, as free memory.
Block* Allocator::fill(const Request& request, const Window& window, bool may_wait) {
    Supply supply = supply_for(request, window, may_wait);
    if (!suffices(supply, window.missing)) return nullptr;
    const Bytes chunk =
        elastic_rules::chunk_size(settings_, request.half().small, supply.soft_limit);
    for (const FreeRun& run : missing_runs(request, window, supply))
        for (Address at = run.begin; at < run.end;) {
            const Bytes size =
                supply_chunk(supply, at, std::min(chunk, static_cast<Bytes>(run.end - at)));
            if (size == 0) return cut_out(window);
            at += static_cast<Address>(size);
        }
    return cut_out(window);
}

// The unmapped ranges under the window. While memory is plenty, the last one is rounded up.
std::vector<Allocator::FreeRun> Allocator::missing_runs(const Request& request,
                                                        const Window& window,
                                                        const Supply& supply) const {
    std::vector<FreeRun> missing;
    Address room = 0;  // where the unmapped range ends that the last one lies in
    for (FreeRun run : free_runs(*request.home)) {
        if (run.mapped || run.arena != window.arena) continue;
        const Address end = run.end;
        run.begin = std::max(run.begin, page_floor(window.begin));
        run.end = std::min(run.end, page_ceiling(window.end()));
        if (run.begin >= run.end) continue;
        missing.push_back(run);
        room = end;
    }
    if (missing.empty() || request.half().small) return missing;
    FreeRun& last = missing.back();
    const Bytes chunk = elastic_rules::chunk_size(settings_, false, supply.soft_limit);
    const Bytes grown =
        std::min(elastic_rules::growth(last.size(), chunk), static_cast<Bytes>(room - last.begin));
    const Bytes total = reserved_ + window.missing + grown - last.size();
    const bool plenty = !elastic_rules::is_scarce(total, limit_in_force()) &&
                        (supply.soft_limit == unlimited || total <= supply.soft_limit);
    if (plenty) last.end = last.begin + static_cast<Address>(grown);
    return missing;
}

// The block at a window, if it is mapped throughout; what lies before it stays cached.
Block* Allocator::cut_out(const Window& window) {
    Home& home = *window.arena->home;
    Block* block = cached_at(home, window.begin, window.size);
    if (!block || block->end() < window.end()) return nullptr;
    home.free.erase(block);
    if (block->address == window.begin) return block;
    Block* front = split_front(block, static_cast<Bytes>(window.begin - block->address));
    front->stamp = block->stamp;
    home.free.erase(block);  // split_front lists the rest
    home.free.insert(front);
    return block;
}

// The cached block of at least that size that holds the address; null if it is another's.
Block* Allocator::cached_at(const Home& home, Address address, Bytes size) const {
    for (Block* block = home.free.best_fit(size); block; block = home.free.after(block))
        if (block->address <= address && address < block->end()) return block;
    return nullptr;
}

// Makes a range of a free block, whole pages of it, cached or unmapped; the pieces around it stay
// as they are.
Block* Allocator::remap(Block* block, Address begin, Bytes size, BlockState state,
                        std::uint64_t stamp) {
    Home& home = *block->segment->home;
    auto list = [&](Block* part) {
        if (part->is_mapped())
            home.free.insert(part);
        else
            home.unmapped.insert(part);
    };
    auto piece = [&](Address start, Address end, Block* previous, Block* next) {
        if (start == end) return;
        Block* part = new_block(block->segment, start, static_cast<Bytes>(end - start));
        part->state = block->state;
        part->stamp = block->stamp;
        part->previous = previous;
        part->next = next;
        (previous ? previous->next : block->segment->first) = part;
        if (next) next->previous = part;
        list(part);
    };
    if (block->is_mapped())
        home.free.erase(block);
    else
        home.unmapped.erase(block);
    const Address end = begin + static_cast<Address>(size);
    piece(block->address, begin, block->previous, block);
    piece(end, block->end(), block, block->next);
    block->address = begin;
    block->size = size;
    block->state = state;
    block->stamp = stamp;
    merge(block, block->previous);
    merge(block, block->next);
    list(block);
    return block;
}

}  // namespace tenure
