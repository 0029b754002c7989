// A block: a contiguous range of one segment, handed out or free.
//
//   segment  | block A (live) | block B (cached) | block C (pending) | block D (unmapped) |
//              previous/next link neighbours by address; a segment never spans pools.
#pragma once

#include <vector>

#include "engine/units.hpp"

namespace tenure {

struct Segment;

enum class BlockState : std::uint8_t {
    cached = 0,    // free, in its home's free list
    live = 1,      // in use by a tensor
    pending = 2,   // freed, but awaiting events of other streams
    unmapped = 3,  // addresses of an arena without memory behind them
};

// Another stream that works on a block. What a capture recorded is over when the capture ends.
struct Use {
    Stream stream;
    bool in_capture;
};

struct Block {
    Address address = 0;
    Bytes size = 0;
    Bytes requested = 0;  // of the last request served; kept when freed, as in PyTorch's snapshots
    Segment* segment = nullptr;
    Block* previous = nullptr;
    Block* next = nullptr;

    // Place in the free list (see free_list.hpp). `order` breaks ties between equal sizes.
    Block* left = nullptr;
    Block* right = nullptr;
    std::uint64_t order = 0;
    std::uint32_t rank = 0;

    BlockState state = BlockState::cached;
    int waiting_events = 0;          // events that a pending block still waits for
    std::int64_t searches_seen = 0;  // pool searches so far when it became cached (its age base)
    std::uint64_t stamp = 0;         // elastic rules: of the newest free in it, see StreamClock
    std::int64_t tag = -1;           // the caller's name for the allocation; replay: its number
    std::vector<Use> uses;           // named by record_stream since the block was handed out

    bool is_split() const { return previous != nullptr || next != nullptr; }
    bool is_mapped() const { return state != BlockState::unmapped; }
    bool is_free() const { return state == BlockState::cached || state == BlockState::unmapped; }
    Address end() const { return address + static_cast<Address>(size); }
};

}  // namespace tenure
