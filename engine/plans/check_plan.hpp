// Whether a placement is one: a sweep over time that shares no code with the packing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/plans/intervals.hpp"

namespace tenure {

// The exact way in which a plan is wrong.
enum class PlanFault : std::uint8_t {
    none,
    missing,       // a buffer has no place
    surplus,       // there are more places than buffers
    wrong_life,    // a buffer lives at other moments than its allocation
    wrong_size,    // a buffer has another size than its allocation
    misaligned,    // an offset is no multiple of plan_unit
    out_of_range,  // a buffer reaches below 0 or beyond the size of the plan
    overlap,       // two buffers alive at one moment share a byte
    wrong_bound,   // the live peak is another than the plan says
};

std::string_view name_of(PlanFault fault);  // as in the enum

struct PlanVerdict {
    PlanFault fault = PlanFault::none;
    std::int64_t buffer = -1;  // the first that is wrong; of an overlap: the later born
    std::int64_t other = -1;   // the one that it overlaps
    bool operator==(const PlanVerdict&) const = default;
};

// What a plan says.
struct PlanView {
    std::span<const Interval> buffers;
    std::span<const Bytes> offsets;  // -1: no place
    Bytes size = 0;                  // bytes of the whole
    Bytes live_peak = 0;             // its bound
};

// Holds a plan against the allocations it should place. Any numbers may be in the plan.
PlanVerdict check_plan(std::span<const Interval> allocations, const PlanView& plan);

// How often memory goes from one stream to another: pairs of buffers of different streams of which
// the later takes a byte that the earlier was the last to use. Each needs an event: the record says
// when the host saw the earlier one's work done, and another run may be slower. Overlapping buffers
// count as if the earlier had ended.
std::int64_t count_hand_overs(std::span<const Interval> buffers, std::span<const Bytes> offsets);

}  // namespace tenure
