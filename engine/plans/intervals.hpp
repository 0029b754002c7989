// What has to be placed: each allocation of a trace as a size that is alive over a span of moments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/units.hpp"

namespace tenure {

// Moment t lies between event t - 1 and event t: moment 0 is before the first event.
using Moment = std::int64_t;

// The smallest unit that PyTorch hands out, and so the step of every size and offset of a plan.
constexpr Bytes plan_unit = 512;

// One allocation, alive at every moment of [begin, end).
struct Interval {
    Moment begin = 0;
    Moment end = 0;
    Bytes size = 0;  // a multiple of plan_unit, above 0
    Stream stream = 0;

    Moment life() const { return end - begin; }
};

// The columns of traces.Allocations: alloc event (-1: before the recording), free_completed event
// (-1: none), bytes asked for. Those never freed live on to the end.
struct AllocationColumns {
    std::span<const std::int64_t> born, done;
    std::span<const Bytes> requested;
    std::span<const Stream> stream;
    std::int64_t events = 0;
};

// One sound interval for each allocation, in the same order. Throws BadInput where an allocation
// ends before it begins, or asks for less than nothing.
std::vector<Interval> intervals_of(const AllocationColumns& columns);

// Throws BadInput unless sizes and moments are as above and the sum of sizes is below any device's,
// so that no sum of sizes or offsets can overflow.
void require_sound(std::span<const Interval> intervals);

// Most bytes alive at one moment: no placement can be smaller.
Bytes live_peak(std::span<const Interval> intervals);

// The intervals on a shorter axis: a point is a moment at which no birth comes before the next
// death. Two intervals share a moment if and only if they share a point.
struct Points {
    std::vector<std::int32_t> first, last;  // alive at the points [first, last)
    std::int32_t count = 0;
};
Points points_of(std::span<const Interval> intervals);

}  // namespace tenure
