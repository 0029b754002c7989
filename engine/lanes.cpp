// When lanes may serve, and how they share the room below the peaks.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/allocator.hpp"
#include "engine/elastic_rules.hpp"

namespace tenure {

namespace {

Counts live_in(const Lane& lane, std::size_t level) {
    return level == Lane::both ? lane.homes[0]->live + lane.homes[1]->live
                               : lane.homes[level]->live;
}

const Counter& counter_of(const PoolCounter& counter, std::size_t level) {
    if (level == Lane::both) return counter.all;
    return level == 1 ? counter.small_pool : counter.large_pool;
}

// What may still become live before the counter passes its peak.
std::int64_t below_peak(const PoolCounter& counter, std::size_t level) {
    const Counter& of_level = counter_of(counter, level);
    return of_level.peak - of_level.current;
}

// Each lane gets back what it lacks to its own highest level, or its share of that; what is left
// goes to all alike.
void deal_one(std::span<Lane* const> lanes, std::size_t level, std::int64_t Counts::* count,
              std::int64_t room) {
    std::int64_t wanted = 0;
    for (const Lane* lane : lanes)
        wanted += lane->most[level].*count - live_in(*lane, level).*count;
    const double share =
        wanted > room ? static_cast<double>(room) / static_cast<double>(wanted) : 1;
    const std::int64_t rest =
        room > wanted ? (room - wanted) / static_cast<std::int64_t>(lanes.size()) : 0;
    std::int64_t left = room;
    for (Lane* lane : lanes) {
        const std::int64_t live = live_in(*lane, level).*count;
        const auto own = static_cast<double>(lane->most[level].*count - live);
        const auto more = std::min(left, static_cast<std::int64_t>(share * own) + rest);
        lane->ceiling[level].*count = live + more;
        left -= more;
    }
}

}  // namespace

Lane Allocator::lane(Stream stream) {
    // A request of one byte and one of more than a small block's make both homes ready.
    return {{plan(torch_rules::small_size + 1, stream, {}).home, plan(1, stream, {}).home}};
}

bool Allocator::serves_lanes() const {
    return is_elastic() && captures_ == 0 && deferred_.empty() && held_.empty();
}

void Allocator::count(Lane& lane) {
    ++lane.idle;
    for (const bool small : {false, true}) {
        const Counts taken = std::exchange(lane.taken[small], {});
        const Counts given = lane.before[small] + taken - lane.homes[small]->live;
        if (taken.blocks == 0 && given.blocks == 0) continue;
        lane.idle = 0;
        statistics_.allocation.settle(small, taken.blocks, given.blocks);
        statistics_.active.settle(small, taken.blocks, given.blocks);
        statistics_.allocated_bytes.settle(small, taken.allocated, given.allocated);
        statistics_.active_bytes.settle(small, taken.allocated, given.allocated);
        statistics_.requested_bytes.settle(small, taken.requested, given.requested);
    }
}

void Allocator::deal(std::span<Lane* const> lanes) {
    if (lanes.empty()) return;
    const bool may_ask = std::any_of(events_.begin(), events_.end(),
                                     [](const auto& queue) { return !queue.second.empty(); });
    const bool asked = std::exchange(asked_, false);
    for (Lane* lane : lanes) {
        for (const bool small : {false, true}) lane->before[small] = lane->homes[small]->live;
        if (!may_ask)
            lane->unasked = std::numeric_limits<std::int64_t>::max();
        else
            lane->unasked =
                asked ? Lane::most_unasked : std::min(lane->unasked, Lane::most_unasked);
    }
    for (const std::size_t level : {std::size_t{0}, std::size_t{1}, Lane::both}) {
        for (Lane* lane : lanes) {
            Counts& most = lane->most[level];
            const Counts live = live_in(*lane, level);
            most.blocks = std::max(most.blocks, live.blocks);
            most.allocated = std::max(most.allocated, live.allocated);
            most.requested = std::max(most.requested, live.requested);
        }
        const auto& s = statistics_;
        deal_one(lanes, level, &Counts::blocks,
                 std::min(below_peak(s.allocation, level), below_peak(s.active, level)));
        deal_one(lanes, level, &Counts::allocated,
                 std::min(below_peak(s.allocated_bytes, level), below_peak(s.active_bytes, level)));
        deal_one(lanes, level, &Counts::requested, below_peak(s.requested_bytes, level));
    }
}

}  // namespace tenure
