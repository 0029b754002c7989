// The state of an allocator as a listing of blocks: read it out, or begin from one.
#include <algorithm>
#include <string>

#include "engine/allocator.hpp"
#include "engine/elastic_rules.hpp"

namespace tenure {

using namespace torch_rules;

std::vector<BlockView> Allocator::blocks() const {
    std::vector<BlockView> views;
    for (const auto& segment : segments_) {
        Address run = segment->address;  // first address of the current mapped run
        for (const Block* block = segment->first; block; block = block->next) {
            if (!block->is_mapped()) {
                run = block->end();
                continue;
            }
            const Home& home = *segment->home;
            views.push_back({run, block->address, block->size, block->requested, block->state,
                             home.stream, home.half->pool->id, home.half->small,
                             segment->is_arena(), block->tag});
        }
    }
    std::sort(views.begin(), views.end(),
              [](const BlockView& a, const BlockView& b) { return a.address < b.address; });
    return views;
}

namespace {

struct Piece {
    Address address;
    Bytes size;
    BlockState state;
    const Allocator::SavedBlock* saved;
};

Address end_of(const Allocator::Range& range) {
    return range.address + static_cast<Address>(range.size);
}

// Tiles the segment with its saved blocks, cached gaps, and unmapped ranges between mapped runs.
std::vector<Piece> tile(const Allocator::SavedSegment& saved) {
    std::vector<Piece> pieces;
    auto block = saved.blocks.begin();
    auto tile_run = [&](const Allocator::Range& run) {
        Address at = run.address;
        for (; block != saved.blocks.end() && block->range.address < end_of(run); ++block) {
            if (block->range.address < at || end_of(block->range) > end_of(run))
                throw BadInput("the blocks of the segment at " + std::to_string(run.address) +
                               " overlap or leave it");
            if (block->range.address > at)
                pieces.push_back({at, static_cast<Bytes>(block->range.address - at),
                                  BlockState::cached, nullptr});
            pieces.push_back({block->range.address, block->range.size,
                              block->pending ? BlockState::pending : BlockState::live, &*block});
            at = end_of(block->range);
        }
        if (at < end_of(run))
            pieces.push_back(
                {at, static_cast<Bytes>(end_of(run) - at), BlockState::cached, nullptr});
    };
    if (!saved.arena) {
        tile_run(saved.range);
    } else {
        Address at = saved.range.address;
        auto skip_to = [&](Address address) {
            if (address < at) throw BadInput("mapped runs of an arena overlap or leave it");
            if (address > at)
                pieces.push_back(
                    {at, static_cast<Bytes>(address - at), BlockState::unmapped, nullptr});
        };
        for (const auto& run : saved.mapped) {
            skip_to(run.address);
            tile_run(run);
            at = end_of(run);
        }
        skip_to(end_of(saved.range));
    }
    if (block != saved.blocks.end())
        throw BadInput("a block at " + std::to_string(block->range.address) +
                       " lies in no segment");
    return pieces;
}

}  // namespace

std::vector<Block*> Allocator::restore(const SavedSegment& saved) {
    if (is_elastic() && !saved.arena)
        throw UsageError("restore: elastic rules have arenas only, this segment is none");
    const std::vector<Piece> pieces = tile(saved);
    Home& home = home_of(pool_at(saved.pool).half(saved.small), saved.stream);
    const Bytes step = is_elastic() ? elastic_rules::page : granule(settings_, saved.small);
    Segment& segment =
        *add_segment(saved.range.address, saved.range.size, home, saved.arena ? step : 0);
    for (const auto& run : saved.mapped)
        if (!(is_elastic() ? map_saved(segment, run) : map_chunks(segment, run.address, run.size)))
            throw BadInput("the saved state needs more memory than the device has");
    std::vector<Block*> restored;
    Block* last = nullptr;
    for (const Piece& piece : pieces) {
        Block* block = last ? new_block(&segment, piece.address, piece.size) : segment.first;
        block->address = piece.address;
        block->size = piece.size;
        block->state = piece.state;
        block->order = last ? part_order(*last) : block->order;
        block->previous = last;
        if (last) last->next = block;
        last = block;
        if (piece.saved) {
            block->requested = piece.saved->requested;
            block->tag = piece.saved->tag;
            restored.push_back(block);
        }
        if (piece.state == BlockState::cached) home.free.insert(block);
        if (piece.state == BlockState::unmapped) home.unmapped.insert(block);
        if (piece.state == BlockState::pending) {
            block->waiting_events = 1;
            held_.push_back(block);
        }
    }
    count_restored(segment);
    return restored;
}

void Allocator::count_restored(const Segment& segment) {
    const bool small = segment.home->half->small;
    Bytes mapped = 0;
    for (const Block* block = segment.first; block; block = block->next) {
        if (!block->is_mapped()) continue;
        mapped += block->size;
        if (block->state == BlockState::cached) {
            if (segment.is_arena() || !block->is_split()) continue;
            statistics_.inactive_split.increase(small, 1);
            statistics_.inactive_split_bytes.increase(small, block->size);
            continue;
        }
        statistics_.active.increase(small, 1);
        statistics_.active_bytes.increase(small, block->size);
        statistics_.requested_bytes.increase(small, block->requested);
        if (block->state == BlockState::pending) continue;
        segment.home->live += {1, block->size, block->requested};
        statistics_.allocation.increase(small, 1);
        statistics_.allocated_bytes.increase(small, block->size);
        if (is_oversize(settings_, block->size)) statistics_.oversize_allocations.increase(1);
    }
    count_reserved(*segment.home, mapped);
    ++segment.home->half->pool->device_allocs;
    if (segment.is_arena()) return;
    statistics_.segment.increase(small, 1);
    if (is_oversize(settings_, segment.size)) statistics_.oversize_segments.increase(1);
}

}  // namespace tenure
