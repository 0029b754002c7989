// Which offsets are taken over a span of time: the structure behind the packing.
//
// A binary tree over the points of time. Each node keeps two unions of byte ranges:
//
//   cover   what was put there because the node is a whole piece of some buffer's life
//   within  what is taken at any point of the node: its cover and all that lies below it
//
//        0  1  2  3  4  5  6  7   points
//      [           ~           ]  a buffer alive over [1, 6): its pieces are #, put into their
//      [     ~     |     ~     ]  cover and within; the nodes ~ above them get it in within.
//      [  ~  |  #  |  #  |     ]  A search over [1, 6) reads within of the # and cover of the ~.
//      [  |# |  |  |  |  |  |  ]
//
// Ranges that touch are one range, so high nodes stay short: first fit leaves few gaps that last.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/units.hpp"

namespace tenure {

struct ByteRange {
    Bytes start = 0;
    Bytes end = 0;
};

// Sorted, disjoint, no two touching.
using ByteRanges = std::vector<ByteRange>;

// Adds a range to a union; false if it was all there before.
bool add_range(ByteRanges& ranges, ByteRange added);

class Occupancy {
  public:
    explicit Occupancy(std::int32_t points);

    // Everything is free again; memory is kept.
    void clear();

    // The lowest offset at which `size` bytes are free at all points of [first, last).
    Bytes lowest(std::int32_t first, std::int32_t last, Bytes size);

    // Takes a range over [first, last).
    void take(std::int32_t first, std::int32_t last, ByteRange range);

  private:
    struct Cursor {
        const ByteRange* at;
        const ByteRange* end;
    };

    ByteRanges& within(std::size_t node);
    template <typename Visit>
    void visit_pieces(std::size_t first, std::size_t last, Visit&& visit);
    template <typename Visit>
    void visit_above(std::size_t first, std::size_t last, Visit&& visit);
    void watch(const ByteRanges& ranges);

    std::size_t leaves_;              // a power of two; the root is 1, leaves begin here
    std::vector<ByteRanges> cover_;   // by node
    std::vector<ByteRanges> within_;  // by node, without the leaves: theirs is their cover
    std::vector<Cursor> cursors_;     // of the search under way
};

}  // namespace tenure
