// Arenas under torch rules ("expandable segments"): reserve once, map granules as needed.
//
//   arena  | live | cached | live | cached || unmapped ............................ |
//            mapped granules, one chunk each  reserved addresses without memory
#include <algorithm>

#include "engine/allocator.hpp"

namespace tenure {

using namespace torch_rules;

Block* Allocator::grow_arena(const Request& request) {
    Block* block = find_room(request);
    if (!block) return nullptr;
    if (!block->is_mapped() && !map(block, std::min(block->size, request.rounded))) return nullptr;
    while (block->size < request.rounded) {
        // What follows a free mapped block here is unmapped, else they would have merged; mapping
        // merges them, and the unmapped Block is the one that survives.
        Block* next = block->next;
        if (!map(next, std::min(request.rounded - block->size, next->size))) return nullptr;
        block = next;
    }
    request.home->free.erase(block);
    ++request.half().pool->device_allocs;
    return block;
}

// The first of the free blocks, by address, from which free ranges reach the request's size.
Block* Allocator::find_room(const Request& request) {
    auto usable = [](const Block* block) { return block && block->is_free(); };
    for (Block* unmapped : request.home->unmapped) {
        Block* start = usable(unmapped->previous) ? unmapped->previous : unmapped;
        Bytes room = 0;
        for (Block* block = start; room < request.rounded && usable(block); block = block->next)
            room += block->size;
        if (room >= request.rounded) return start;
    }
    return new_arena(request);
}

Block* Allocator::new_arena(const Request& request) {
    const Bytes granule = torch_rules::granule(settings_, request.half().small);
    const Bytes size = arena_size(settings_, granule);
    if (size < request.rounded) return nullptr;
    const Address address = device_.reserve(size, granule);
    if (address == 0) return nullptr;
    Segment* arena = add_segment(address, size, *request.home, granule);
    arena->first->state = BlockState::unmapped;
    request.home->unmapped.insert(arena->first);
    return arena->first;
}

// Maps at least the first `size` bytes of an unmapped block; false if the device has no more.
bool Allocator::map(Block* block, Bytes size) {
    Segment& arena = *block->segment;
    const Bytes mapped = std::min(round_up(size, arena.granule), block->size);
    if (!map_chunks(arena, block->address, mapped)) return false;
    Home& home = *arena.home;
    const Address address = block->address;
    home.unmapped.erase(block);
    if (mapped < block->size) {
        Block* rest =
            new_block(&arena, block->address + static_cast<Address>(mapped), block->size - mapped);
        rest->order = part_order(*block);
        rest->state = BlockState::unmapped;
        rest->previous = block;
        rest->next = block->next;
        if (rest->next) rest->next->previous = rest;
        block->next = rest;
        block->size = mapped;
        home.unmapped.insert(rest);
    }
    block->state = BlockState::cached;
    merge(block, block->previous);
    merge(block, block->next);
    block->searches_seen = home.half->searches;
    home.free.insert(block);
    count_reserved(home, mapped);
    ++statistics_.num_device_alloc;
    log(Action::segment_map, address, mapped, home);
    return true;
}

// All or nothing: chunks made before a failure are undone.
bool Allocator::map_chunks(Segment& arena, Address address, Bytes size) {
    const auto begin = static_cast<Bytes>(address - arena.address) / arena.granule;
    const Bytes end = begin + size / arena.granule;
    if (arena.chunks.size() < static_cast<std::size_t>(end))
        arena.chunks.resize(static_cast<std::size_t>(end));
    for (Bytes i = begin; i < end; ++i) {
        const Address place = arena.address + static_cast<Address>(i * arena.granule);
        const ChunkHandle chunk = device_.create_chunk(arena.granule);
        if (chunk != 0 && device_.map_chunk(place, chunk, arena.granule)) {
            arena.chunks[static_cast<std::size_t>(i)] = chunk;
            continue;
        }
        if (chunk != 0) device_.destroy_chunk(chunk, arena.granule);
        unmap_chunks(arena, address, (i - begin) * arena.granule);
        return false;
    }
    return true;
}

void Allocator::unmap_chunks(Segment& arena, Address address, Bytes size) {
    auto i = static_cast<std::size_t>(static_cast<Bytes>(address - arena.address) / arena.granule);
    const std::size_t end =
        std::min(i + static_cast<std::size_t>(size / arena.granule), arena.chunks.size());
    for (; i < end; ++i) {
        if (arena.chunks[i] == 0) continue;
        device_.unmap_chunk(arena.address + i * static_cast<Address>(arena.granule), arena.granule);
        device_.destroy_chunk(arena.chunks[i], arena.granule);
        arena.chunks[i] = 0;
    }
}

// Gives back the whole granules inside a cached block; the pieces around them stay cached.
void Allocator::unmap(Block* block) {
    Segment& arena = *block->segment;
    Home& home = *arena.home;
    const auto offset = static_cast<Bytes>(block->address - arena.address);
    const auto [begin, end] = whole_granules(*block);
    if (begin >= end) return;
    device_.synchronize(home.stream);
    const Address address = arena.address + static_cast<Address>(begin);
    unmap_chunks(arena, address, end - begin);
    home.free.erase(block);
    auto piece = [&](Address start, Bytes size, Block* previous, Block* next) {
        Block* part = new_block(&arena, start, size);
        part->order = part_order(*block);
        part->previous = previous;
        part->next = next;
        (previous ? previous->next : arena.first) = part;
        if (next) next->previous = part;
        part->searches_seen = home.half->searches;
        home.free.insert(part);
    };
    const Bytes before = begin - offset;
    const Bytes after = offset + block->size - end;
    if (before > 0) piece(block->address, before, block->previous, block);
    if (after > 0) piece(arena.address + static_cast<Address>(end), after, block, block->next);
    block->address = address;
    block->size = end - begin;
    block->state = BlockState::unmapped;
    merge(block, block->previous);
    merge(block, block->next);
    home.unmapped.insert(block);
    count_reserved(home, begin - end);
    --home.half->pool->device_allocs;
    ++statistics_.num_device_free;
    log(Action::segment_unmap, address, end - begin, home);
}

}  // namespace tenure
