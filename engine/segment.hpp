// A segment: a range the driver gave. Either one cudaMalloc, or an arena: reserved addresses
// whose granules are mapped to chunks on demand (PyTorch's "expandable segment").
#pragma once

#include <cstddef>
#include <vector>

#include "engine/block.hpp"
#include "engine/devices/device.hpp"

namespace tenure {

struct Home;

struct Segment {
    Address address = 0;
    Bytes size = 0;  // of a cudaMalloc; or reserved addresses of an arena
    Home* home = nullptr;
    Block* first = nullptr;
    std::size_t index = 0;             // position in the allocator's list of segments
    Bytes granule = 0;                 // bytes of one chunk; 0 for a cudaMalloc
    std::vector<ChunkHandle> chunks;   // by granule; 0 where nothing is mapped
    std::vector<std::uint32_t> pages;  // elastic rules, instead: see chunks.hpp

    bool is_arena() const { return granule != 0; }
};

// The whole granules inside a block of an arena, as offsets into the arena.
struct Granules {
    Bytes begin;
    Bytes end;
    Bytes size() const { return end > begin ? end - begin : 0; }
};

inline Granules whole_granules(const Block& block) {
    const Segment& arena = *block.segment;
    const auto offset = static_cast<Bytes>(block.address - arena.address);
    return {round_up(offset, arena.granule), round_down(offset + block.size, arena.granule)};
}

}  // namespace tenure
