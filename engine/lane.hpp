// A lane: what one stream needs to be served by itself, so that threads on streams of their own do
// not meet. It reaches the stream's two homes in the default pool and nothing else of the
// allocator, and counts for itself; lanes.hpp has what it may do.
//
// Peaks stay exact without a common counter: while nothing moves, the room below each peak is dealt
// out among the lanes. A lane that keeps to its ceiling passes no peak, whatever the others do; at
// its ceiling it asks again, for which everything is brought to rest and counted.
#pragma once

#include <array>
#include <cstdint>

#include "engine/units.hpp"

namespace tenure {

struct Home;

// Live blocks: how many, their bytes, and the bytes that were asked for.
struct Counts {
    std::int64_t blocks = 0;
    Bytes allocated = 0;
    Bytes requested = 0;

    void operator+=(const Counts& more) {
        blocks += more.blocks;
        allocated += more.allocated;
        requested += more.requested;
    }
    void operator-=(const Counts& less) {
        blocks -= less.blocks;
        allocated -= less.allocated;
        requested -= less.requested;
    }
    friend Counts operator+(Counts a, const Counts& b) {
        a += b;
        return a;
    }
    friend Counts operator-(Counts a, const Counts& b) {
        a -= b;
        return a;
    }
    bool within(const Counts& ceiling) const {
        return blocks <= ceiling.blocks && allocated <= ceiling.allocated &&
               requested <= ceiling.requested;
    }
    bool operator==(const Counts&) const = default;
};

struct Lane {
    static constexpr int most_idle = 16;  // from then on it is better left out
    // Requests that a lane serves while frees wait for events, before it lets them be asked about.
    static constexpr std::int64_t most_unasked = 64;
    static constexpr std::size_t both = 2;  // index of the two halves together, behind theirs

    std::array<Home*, 2> homes;      // of the large and of the small half
    std::array<Counts, 2> taken{};   // handed out by the lane itself since all was last counted
    std::array<Counts, 2> before{};  // live at that time
    // What may be live at most: in the large half, in the small one, in both together.
    std::array<Counts, 3> ceiling{};
    std::array<Counts, 3> most{};  // that was ever live when room was dealt out
    std::int64_t unasked = 0;      // requests that it may serve until events are asked about
    int idle = 0;                  // times since the lane did anything
};

}  // namespace tenure
