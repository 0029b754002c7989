// Elastic rules: where the memory for a window comes from.
//
// An idle chunk; a new one, under the limits; one that lies wholly in free space, of any arena of
// any stream. Moving is safe without stopping anything: work that still runs on a chunk's former
// place keeps its mapping there until an event says that it is over, and the new place is used
// behind it, by the stream's own order or by a wait on the device.
#include <algorithm>
#include <limits>

#include "engine/allocator.hpp"
#include "engine/elastic_rules.hpp"

namespace tenure {

using elastic_rules::page;

// --- limits --------------------------------------------------------------------------------------

Bytes Allocator::limit_in_force() const {
    if (settings_.limit == unlimited) return elastic_.refused_at;
    if (elastic_.refused_at == unlimited) return settings_.limit;
    return std::min(settings_.limit, elastic_.refused_at);
}

Bytes Allocator::soft_target(Bytes rounded) const {
    if (settings_.soft_limit <= 0) return unlimited;
    const Counter& active = statistics_.active_bytes.all;
    const Bytes live = std::max({elastic_.live_peak, active.peak, active.current + rounded});
    return static_cast<Bytes>(settings_.soft_limit * static_cast<double>(live));
}

bool Allocator::may_create(const Supply& supply, Bytes size) const {
    auto fits = [&](Bytes limit) { return limit == unlimited || reserved_ + size <= limit; };
    return fits(supply.limit) && fits(supply.soft_limit);
}

void Allocator::pin(Address address, Bytes size) { elastic_.pins.emplace(address, size); }

void Allocator::unpin(Address address, Bytes size) {
    auto [place, end] = elastic_.pins.equal_range(address);
    while (place != end && place->second != size) ++place;
    if (place == end) throw UsageError("unpin: no such range is pinned");
    elastic_.pins.erase(place);
}

bool Allocator::is_pinned(const Chunk& chunk) const {
    for (const auto& [address, size] : elastic_.pins)
        if (address < chunk.address + static_cast<Address>(chunk.size) &&
            chunk.address < address + static_cast<Address>(size))
            return true;
    return false;
}

// --- victims -------------------------------------------------------------------------------------

Allocator::Supply Allocator::supply_for(const Request& request, const Window& window,
                                        bool may_wait) {
    Supply supply{request.home, window, settings_.limit, soft_target(request.rounded), may_wait,
                  false,        {}};
    if (!may_create(supply, window.missing)) gather_victims(supply);
    return supply;
}

// Graphs know the addresses of private pools: what lies there never moves.
void Allocator::gather_victims(Supply& supply) const {
    supply.gathered = true;
    for (PoolHalf* half : {&default_pool_->large, &default_pool_->small})
        for (auto& home : half->homes) gather_victims(*home, supply.window, supply.victims);
}

void Allocator::gather_victims(Home& home, const Window& window,
                               std::vector<Victim>& victims) const {
    const Address low = window.begin - window.begin % static_cast<Address>(page);
    const auto high = static_cast<Address>(round_up(static_cast<Bytes>(window.end()), page));
    for (Block* block = home.free.best_fit(page); block; block = home.free.after(block)) {
        const auto offset = static_cast<Bytes>(block->address - block->segment->address);
        Address at = block->segment->address + static_cast<Address>(round_up(offset, page));
        while (at < block->end()) {
            const ChunkIndex index = chunk_at(*block->segment, at);
            const Chunk& chunk = elastic_.chunks[index];
            const Address end = chunk.address + static_cast<Address>(chunk.size);
            const bool whole = chunk.address == at && end <= block->end();
            at = end;
            const bool same_arena = block->segment == window.arena;
            if (!whole || (same_arena && chunk.address < high && low < end)) continue;
            if (!elastic_.pins.empty() && is_pinned(chunk)) continue;
            const Bytes distance =
                !same_arena ? std::numeric_limits<Bytes>::max()
                            : static_cast<Bytes>(end <= low ? low - end : chunk.address - high);
            victims.push_back({index, &home, block->stamp, chunk.size, block->size, distance});
        }
    }
}

// Its last use is over, and nothing reaches it through another mapping.
bool Allocator::is_releasable(const Victim& victim) const {
    return victim.home->clock->is_done(victim.stamp) &&
           elastic_.chunks[victim.chunk].old_mappings == 0;
}

// How dear it is to take a chunk for a piece of `size` bytes.
Allocator::Price Allocator::price(const Supply& supply, const Victim& victim, Bytes size) const {
    if (is_releasable(victim)) {
        return victim.size == size ? Price::move : Price::release;
    } else if (captures_ == 0 && device_.can_alias()) {
        if (victim.size == size) return Price::alias;
        if (victim.size < size) return Price::alias_part;
    }
    return supply.may_wait && captures_ == 0 ? Price::wait : Price::never;
}

// Whether the window can be filled, as far as known without asking the device.
bool Allocator::suffices(const Supply& supply, Bytes missing) const {
    if (supply.limit == unlimited) return true;  // the device's own limit shows when it refuses
    Bytes available = std::max<Bytes>(supply.limit - reserved_, 0);
    for (const ChunkIndex idle : elastic_.chunks.idle()) available += elastic_.chunks[idle].size;
    for (const Victim& victim : supply.victims)
        if (price(supply, victim, victim.size) != Price::never) available += victim.size;
    return available >= missing;
}

// Cheapest first; then nearest in the window's arena; elsewhere from the smallest hole.
std::size_t Allocator::best_victim(const Supply& supply, Bytes size) const {
    std::size_t best = supply.victims.size();
    auto key = [&](const Victim& victim) {
        return std::tuple(price(supply, victim, size), victim.distance, victim.hole,
                          elastic_.chunks[victim.chunk].address);
    };
    for (std::size_t i = 0; i < supply.victims.size(); ++i) {
        if (price(supply, supply.victims[i], size) == Price::never) continue;
        if (best == supply.victims.size() || key(supply.victims[i]) < key(supply.victims[best]))
            best = i;
    }
    return best;
}

// --- one chunk -----------------------------------------------------------------------------------

// Maps a chunk of `size` bytes at the address, or a smaller one; returns its size, 0 for none.
Bytes Allocator::supply_chunk(Supply& supply, Address address, Bytes size) {
    for (const ChunkIndex idle : elastic_.chunks.idle())
        if (elastic_.chunks[idle].size == size) return place_idle(idle, *supply.home, address);
    for (;;) {
        if (may_create(supply, size)) {
            const ChunkIndex chunk = create(supply, size);
            if (chunk != 0) return place_new(chunk, *supply.home, address);
        } else if (!elastic_.chunks.idle().empty()) {
            release_idle(elastic_.chunks.idle().back());
        } else if (!supply.gathered) {
            gather_victims(supply);
        } else {
            const std::size_t i = best_victim(supply, size);
            if (i == supply.victims.size()) {
                if (supply.soft_limit == unlimited) return 0;
                supply.soft_limit = unlimited;  // nothing can move: what is soft gives way
                continue;
            }
            const Victim victim = supply.victims[i];
            const Price cost = price(supply, victim, size);
            if (cost == Price::wait) {
                wait_for(victim);
                continue;
            }
            supply.victims[i] = supply.victims.back();
            supply.victims.pop_back();
            const Bytes taken = take(victim, cost, *supply.home, address);
            if (taken > 0 || cost != Price::release) return taken;
        }
    }
}

ChunkIndex Allocator::create(Supply& supply, Bytes size) {
    const bool grows = reserved_ + size > elastic_.reserved_peak;
    const ChunkIndex chunk = elastic_.chunks.create(size, grows);
    if (chunk == 0) {
        supply.limit = elastic_.refused_at = reserved_;  // others share the device
        return 0;
    }
    if (elastic_.refused_at != unlimited && reserved_ + size > elastic_.refused_at)
        elastic_.refused_at = unlimited;
    return chunk;
}

Bytes Allocator::place_new(ChunkIndex chunk, Home& home, Address address) {
    const Bytes size = elastic_.chunks[chunk].size;
    if (place(chunk, home, address, 0)) {
        ++statistics_.num_device_alloc;
        return size;
    }
    elastic_.chunks.destroy(chunk);
    return 0;
}

Bytes Allocator::place_idle(ChunkIndex chunk, Home& home, Address address) {
    const Bytes size = elastic_.chunks[chunk].size;
    count_idle(-size);
    if (place(chunk, home, address, 0)) return size;
    count_idle(size);
    return 0;
}

// Maps an idle chunk where addresses are unmapped, and makes them a cached block.
bool Allocator::place(ChunkIndex chunk, Home& home, Address address, std::uint64_t stamp) {
    Block* block = unmapped_at(home, address);
    if (!elastic_.chunks.map(chunk, *block->segment, address)) return false;
    settle_in(chunk, block, stamp);
    return true;
}

// Fills a mapped run of a saved arena. No record says where one chunk ends and the next begins: as
// if the run had grown at once.
bool Allocator::map_saved(Segment& arena, const Range& run) {
    const auto whole = [](Address number) { return number % static_cast<Address>(page) == 0; };
    if (!whole(arena.address) || !whole(run.address) || !whole(static_cast<Address>(run.size)))
        throw BadInput("a mapped run of an arena is not made of whole pages of 2 MiB");
    const Bytes most = elastic_rules::chunk_size(settings_, arena.home->half->small, unlimited);
    for (Bytes at = 0; at < run.size;) {
        const Bytes size = std::min(most, run.size - at);
        const ChunkIndex chunk = elastic_.chunks.create(size, true);
        if (chunk == 0) return false;
        if (!elastic_.chunks.map(chunk, arena, run.address + static_cast<Address>(at)))
            return false;
        at += size;
    }
    return true;
}

// Blocks and counters follow a chunk that was just mapped.
void Allocator::settle_in(ChunkIndex index, Block* block, std::uint64_t stamp) {
    Home& home = *block->segment->home;
    const Chunk& chunk = elastic_.chunks[index];
    remap(block, chunk.address, chunk.size, BlockState::cached, stamp);
    count_reserved(home, chunk.size);
    elastic_.reserved_peak = std::max(elastic_.reserved_peak, reserved_);
    log(Action::segment_map, chunk.address, chunk.size, home);
}

// Blocks and counters let go of a chunk's range.
void Allocator::let_go(Home& home, Address address, Bytes size) {
    remap(cached_at(home, address, size), address, size, BlockState::unmapped, 0);
    count_reserved(home, -size);
    log(Action::segment_unmap, address, size, home);
}

// Takes a chunk out of free space: returns the bytes mapped at the address, or 0; a chunk that is
// only released leaves room under the limit.
Bytes Allocator::take(const Victim& victim, Price cost, Home& home, Address address) {
    ElasticStatistics& counts = elastic_.chunks.meter.counts;
    ++counts.moves;
    if (victim.home->stream != home.stream) ++counts.other_stream;
    if (cost == Price::alias || cost == Price::alias_part) {
        if (alias(victim, home, address)) {
            ++counts.aliased;
            return victim.size;
        }
        if (!victim.home->clock->is_done(victim.stamp)) return 0;  // the device refused to map
        wait_for(victim);  // there was no event to be had, and nothing runs there now
    }
    const Chunk chunk = elastic_.chunks[victim.chunk];
    elastic_.chunks.unmap(victim.chunk);
    let_go(*victim.home, chunk.address, chunk.size);
    if (cost == Price::release) {
        destroy(victim.chunk);
        return 0;
    }
    if (place(victim.chunk, home, address, 0)) return victim.size;
    count_idle(victim.size);
    return 0;
}

// Maps the chunk at the new place now, and leaves its old mapping to be undone behind the work
// that still uses it. False: nothing changed; if the stream had to be waited for, it is done now.
bool Allocator::alias(const Victim& victim, Home& home, Address address) {
    StreamClock& clock = *victim.home->clock;
    const StreamClock::Mark* over = mark(clock, victim.stamp);
    if (!over) return false;
    if (victim.home->stream != home.stream) {
        if (!device_.make_stream_wait(home.stream, over->event)) {
            wait_until(clock, victim.stamp);
            return false;
        }
        elastic_.chunks.meter.made_stream_wait();
    }
    const Chunk before = elastic_.chunks[victim.chunk];
    Segment& arena = *unmapped_at(home, address)->segment;
    if (!elastic_.chunks.alias(victim.chunk, arena, address)) return false;
    elastic_.old_mappings.push_back(
        {victim.chunk, before.arena, before.address, before.size, &clock, victim.stamp});
    let_go(*victim.home, before.address, before.size);
    // Work behind this point on the new stream comes after the old use: a later event covers both.
    settle_in(victim.chunk, unmapped_at(home, address), ++home.clock->frees);
    return true;
}

Block* Allocator::unmapped_at(const Home& home, Address address) const {
    Block probe;
    probe.address = address;
    return *std::prev(home.unmapped.upper_bound(&probe));
}

}  // namespace tenure
