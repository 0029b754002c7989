#include "engine/plans/check_plan.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

namespace tenure {

namespace {

std::vector<std::size_t> sorted_by(std::span<const Interval> buffers, Moment Interval::* when) {
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return buffers[a].*when < buffers[b].*when;
    });
    return order;
}

PlanFault fault_of(const Interval& allocation, const Interval& buffer, Bytes offset, Bytes size) {
    if (offset == -1) return PlanFault::missing;
    if (buffer.begin != allocation.begin || buffer.end != allocation.end)
        return PlanFault::wrong_life;
    if (buffer.size != allocation.size) return PlanFault::wrong_size;
    if (offset % plan_unit != 0) return PlanFault::misaligned;
    if (offset < 0 || buffer.size > size || offset > size - buffer.size)
        return PlanFault::out_of_range;
    return PlanFault::none;
}

// The buffer alive in [offset, offset + size), if there is one.
const std::size_t* in_the_way(const std::map<Bytes, std::size_t>& alive, const PlanView& plan,
                              Bytes offset, Bytes size) {
    const auto above = alive.lower_bound(offset);
    if (above != alive.end() && above->first < offset + size) return &above->second;
    if (above == alive.begin()) return nullptr;
    const auto below = std::prev(above);
    if (below->first + plan.buffers[below->second].size > offset) return &below->second;
    return nullptr;
}

}  // namespace

std::string_view name_of(PlanFault fault) {
    switch (fault) {
        case PlanFault::none:
            return "none";
        case PlanFault::missing:
            return "missing";
        case PlanFault::surplus:
            return "surplus";
        case PlanFault::wrong_life:
            return "wrong_life";
        case PlanFault::wrong_size:
            return "wrong_size";
        case PlanFault::misaligned:
            return "misaligned";
        case PlanFault::out_of_range:
            return "out_of_range";
        case PlanFault::overlap:
            return "overlap";
        case PlanFault::wrong_bound:
            return "wrong_bound";
    }
    return "none";
}

PlanVerdict check_plan(std::span<const Interval> allocations, const PlanView& plan) {
    const std::size_t placed = std::min(plan.buffers.size(), plan.offsets.size());
    for (std::size_t i = 0; i < std::min(allocations.size(), placed); ++i) {
        const PlanFault fault =
            fault_of(allocations[i], plan.buffers[i], plan.offsets[i], plan.size);
        if (fault != PlanFault::none) return {fault, static_cast<std::int64_t>(i), -1};
    }
    if (placed < allocations.size())
        return {PlanFault::missing, static_cast<std::int64_t>(placed), -1};
    if (plan.buffers.size() > allocations.size() || plan.offsets.size() > allocations.size())
        return {PlanFault::surplus, static_cast<std::int64_t>(allocations.size()), -1};

    const auto births = sorted_by(allocations, &Interval::begin);
    const auto deaths = sorted_by(allocations, &Interval::end);
    std::map<Bytes, std::size_t> alive;  // by offset
    Bytes live = 0, peak = 0;
    auto death = deaths.begin();
    for (const std::size_t i : births) {
        for (; allocations[*death].end <= allocations[i].begin; ++death) {
            alive.erase(plan.offsets[*death]);
            live -= allocations[*death].size;
        }
        const Bytes offset = plan.offsets[i], size = allocations[i].size;
        if (const std::size_t* other = in_the_way(alive, plan, offset, size))
            return {PlanFault::overlap, static_cast<std::int64_t>(i),
                    static_cast<std::int64_t>(*other)};
        alive.emplace(offset, i);
        live += size;
        peak = std::max(peak, live);
    }
    if (peak != plan.live_peak) return {PlanFault::wrong_bound, -1, -1};
    return {};
}

std::int64_t count_hand_overs(std::span<const Interval> buffers, std::span<const Bytes> offsets) {
    struct LastUse {
        Bytes end;
        std::size_t buffer;
    };
    std::map<Bytes, LastUse> last;  // who used [start, end) last, by start
    // The range that holds `offset` inside it becomes two, so that one begins there.
    const auto split_at = [&last](Bytes offset) {
        const auto after = last.lower_bound(offset);
        if (after == last.begin()) return;
        LastUse& before = std::prev(after)->second;
        if (before.end <= offset) return;
        last.emplace_hint(after, offset, before);
        before.end = offset;
    };
    std::int64_t count = 0;
    std::vector<std::int64_t> counted_for(buffers.size(), -1);
    for (const std::size_t i : sorted_by(buffers, &Interval::begin)) {
        const Bytes start = offsets[i], end = start + buffers[i].size;
        split_at(start);
        split_at(end);
        auto range = last.lower_bound(start);
        for (; range != last.end() && range->first < end; range = last.erase(range)) {
            const std::size_t before = range->second.buffer;
            if (buffers[before].stream == buffers[i].stream) continue;
            if (std::exchange(counted_for[before], static_cast<std::int64_t>(i)) !=
                static_cast<std::int64_t>(i))
                ++count;
        }
        last.emplace_hint(range, start, LastUse{end, i});
    }
    return count;
}

}  // namespace tenure
