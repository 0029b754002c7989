#include "engine/plans/intervals.hpp"

#include <algorithm>
#include <string>

#include "engine/errors.hpp"

namespace tenure {

namespace {

constexpr Bytes largest_total = Bytes{1} << 60;  // bytes

// A birth or a death. At one moment deaths come first: intervals are half-open.
struct Turn {
    Moment moment;
    bool birth;
    std::int32_t interval;

    bool operator<(const Turn& other) const {
        if (moment != other.moment) return moment < other.moment;
        return birth < other.birth;
    }
};

std::vector<Turn> turns_of(std::span<const Interval> intervals) {
    std::vector<Turn> turns;
    turns.reserve(2 * intervals.size());
    for (std::size_t i = 0; i < intervals.size(); ++i) {
        turns.push_back({intervals[i].begin, true, static_cast<std::int32_t>(i)});
        turns.push_back({intervals[i].end, false, static_cast<std::int32_t>(i)});
    }
    std::sort(turns.begin(), turns.end());
    return turns;
}

[[noreturn]] void refuse(std::size_t allocation, const std::string& why) {
    throw BadInput("allocation " + std::to_string(allocation) + " " + why);
}

}  // namespace

std::vector<Interval> intervals_of(const AllocationColumns& columns) {
    const std::size_t n = columns.born.size();
    if (columns.done.size() != n || columns.requested.size() != n || columns.stream.size() != n)
        throw UsageError("columns of allocations must have equal length");
    std::vector<Interval> intervals(n);
    for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t born = columns.born[i], done = columns.done[i];
        const Bytes requested = columns.requested[i];
        if (born < -1 || born >= columns.events || done < -1 || done >= columns.events)
            refuse(i, "names an event that is not there");
        if (done >= 0 && done <= born) refuse(i, "is freed before it is made");
        if (requested < 0 || requested > largest_total)
            refuse(i, "asks for " + std::to_string(requested) + " bytes");
        const Bytes size = round_up(std::max<Bytes>(requested, 1), plan_unit);
        intervals[i] = {born + 1, (done < 0 ? columns.events : done) + 1, size, columns.stream[i]};
    }
    require_sound(intervals);
    return intervals;
}

void require_sound(std::span<const Interval> intervals) {
    if (intervals.size() > INT32_MAX)
        throw BadInput(std::to_string(intervals.size()) + " allocations are too many for a plan");
    Bytes total = 0;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
        const Interval& interval = intervals[i];
        if (interval.begin < 0 || interval.begin >= interval.end)
            refuse(i, "lives from moment " + std::to_string(interval.begin) + " to " +
                          std::to_string(interval.end));
        if (interval.size <= 0 || interval.size % plan_unit != 0)
            refuse(i, "has a size of " + std::to_string(interval.size) + " bytes, no multiple of " +
                          std::to_string(plan_unit));
        if (interval.size > largest_total - total)
            throw BadInput("the allocations sum to more bytes than any device has");
        total += interval.size;
    }
}

Bytes live_peak(std::span<const Interval> intervals) {
    Bytes live = 0, peak = 0;
    for (const Turn& turn : turns_of(intervals)) {
        const Bytes size = intervals[static_cast<std::size_t>(turn.interval)].size;
        live += turn.birth ? size : -size;
        peak = std::max(peak, live);
    }
    return peak;
}

Points points_of(std::span<const Interval> intervals) {
    Points points;
    points.first.resize(intervals.size());
    points.last.resize(intervals.size());
    bool after_death = true;
    for (const Turn& turn : turns_of(intervals)) {
        const auto i = static_cast<std::size_t>(turn.interval);
        if (turn.birth) {
            if (after_death) ++points.count;
            points.first[i] = points.count - 1;
        } else {
            points.last[i] = points.count;
        }
        after_death = !turn.birth;
    }
    return points;
}

}  // namespace tenure
