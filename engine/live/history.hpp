// What a live process remembers, and how a block carries its share of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/live/event_ring.hpp"

namespace tenure::live {

// What is remembered; PyTorch's terms. Stacks cost most, so they are told apart.
struct History {
    bool events = false;        // into the ring
    bool block_stacks = false;  // of live blocks
    bool alloc_stacks = false;  // of events that allocate
    bool free_stacks = false;   // of events that free
    std::size_t max_events = 0;

    bool at_alloc() const { return block_stacks || alloc_stacks; }
};

// What a block's tag holds while it is live: its stack, and when it was handed out.
struct BlockNote {
    StackId stack;
    std::uint32_t milliseconds;  // since the front was made

    static BlockNote of(std::int64_t tag) {
        const auto bits = static_cast<std::uint64_t>(tag);
        return {static_cast<StackId>(bits), static_cast<std::uint32_t>(bits >> 32)};
    }
    std::int64_t tag() const {
        return static_cast<std::int64_t>(std::uint64_t{milliseconds} << 32 | stack);
    }
};

}  // namespace tenure::live
