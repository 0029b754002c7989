// A placement of intervals at fixed offsets, as small as can be found in the time given.
//
// First fit in a good order comes close to the bound for nearly every recorded job. So: the orders
// that did best on recordings, one after another; then, where that is not enough, a search that
// moves the buffer that did not fit to an earlier place in the order, and tries again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plans/intervals.hpp"

namespace tenure {

struct PackOptions {
    double seconds = 2;          // for improvement; the first order is always placed to its end
    std::uint64_t seed = 1;      // of the search
    bool streams_apart = false;  // no byte is ever used by two streams
};

struct Packing {
    Bytes size = 0;              // bytes from 0 to the end of the highest buffer
    std::vector<Bytes> offsets;  // of each interval, multiples of plan_unit
    std::int64_t tries = 0;      // orders begun
};

Packing pack(std::span<const Interval> intervals, const PackOptions& options);

}  // namespace tenure
