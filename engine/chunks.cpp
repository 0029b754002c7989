#include "engine/chunks.hpp"

#include <algorithm>

#include "engine/elastic_rules.hpp"

namespace tenure {

using elastic_rules::page;

namespace {

std::size_t page_of(const Segment& arena, Address address) {
    return static_cast<std::size_t>((address - arena.address) / static_cast<Address>(page));
}

}  // namespace

ChunkIndex chunk_at(const Segment& arena, Address address) {
    const std::size_t i = page_of(arena, address);
    if (i >= arena.pages.size() || (arena.pages[i] & old_mapping)) return 0;
    return arena.pages[i];
}

ChunkIndex ChunkTable::create(Bytes size, bool grows) {
    const ChunkHandle handle = device_.create_chunk(size);
    if (handle == 0) return 0;
    meter.created(grows);
    if (spare_.empty()) {
        spare_.push_back(static_cast<ChunkIndex>(chunks_.size()));
        chunks_.emplace_back();
    }
    const ChunkIndex chunk = spare_.back();
    spare_.pop_back();
    chunks_[chunk] = {handle, size, nullptr, 0, 0, grows};
    idle_.push_back(chunk);
    return chunk;
}

void ChunkTable::destroy(ChunkIndex chunk) {
    device_.destroy_chunk(chunks_[chunk].handle, chunks_[chunk].size);
    meter.released(chunks_[chunk].size);
    forget_idle(chunk);
    chunks_[chunk] = {};
    spare_.push_back(chunk);
}

bool ChunkTable::map(ChunkIndex chunk, Segment& arena, Address address) {
    if (!map_at(chunk, arena, address)) return false;
    forget_idle(chunk);
    return true;
}

bool ChunkTable::alias(ChunkIndex chunk, Segment& arena, Address address) {
    const Chunk before = chunks_[chunk];
    if (!map_at(chunk, arena, address)) return false;
    set_pages(*before.arena, before.address, before.size, chunk | old_mapping);
    ++chunks_[chunk].old_mappings;
    return true;
}

bool ChunkTable::map_at(ChunkIndex index, Segment& arena, Address address) {
    Chunk& chunk = chunks_[index];
    if (!device_.map_chunk(address, chunk.handle, chunk.size)) return false;
    meter.mapped(chunk.grows);
    chunk.grows = false;
    chunk.arena = &arena;
    chunk.address = address;
    set_pages(arena, address, chunk.size, index);
    return true;
}

void ChunkTable::unmap(ChunkIndex index) {
    Chunk& chunk = chunks_[index];
    device_.unmap_chunk(chunk.address, chunk.size);
    meter.unmapped();
    set_pages(*chunk.arena, chunk.address, chunk.size, 0);
    chunk.arena = nullptr;
    chunk.address = 0;
    idle_.push_back(index);
}

void ChunkTable::unmap(const OldMapping& old) {
    device_.unmap_chunk(old.address, old.size);
    meter.unmapped();
    set_pages(*old.arena, old.address, old.size, 0);
    --chunks_[old.chunk].old_mappings;
}

void ChunkTable::set_pages(Segment& arena, Address address, Bytes size, ChunkIndex value) {
    const std::size_t begin = page_of(arena, address);
    const std::size_t end = begin + static_cast<std::size_t>(size / page);
    if (arena.pages.size() < end) arena.pages.resize(end);
    std::fill(arena.pages.begin() + static_cast<std::ptrdiff_t>(begin),
              arena.pages.begin() + static_cast<std::ptrdiff_t>(end), value);
}

void ChunkTable::forget_idle(ChunkIndex chunk) {
    idle_.erase(std::remove(idle_.begin(), idle_.end(), chunk), idle_.end());
}

}  // namespace tenure
