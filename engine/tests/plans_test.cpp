// Plans against slow and obvious ways to say the same: bitmaps of bytes, every pair, every moment.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "engine/errors.hpp"
#include "engine/plans/check_plan.hpp"
#include "engine/plans/intervals.hpp"
#include "engine/plans/occupancy.hpp"
#include "engine/plans/pack.hpp"
#include "engine/tests/check.hpp"

using namespace tenure;

namespace {

constexpr Bytes u = plan_unit;

// Mostly short lives and small sizes, some long and large. One draw a statement: the order in which
// an expression draws is the compiler's choice.
std::vector<Interval> some_intervals(std::size_t count, std::uint64_t moments, std::uint64_t seed,
                                     std::uint64_t streams = 1) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) {
        return static_cast<std::int64_t>(random() % limit);
    };
    std::vector<Interval> intervals;
    for (std::size_t i = 0; i < count; ++i) {
        const Moment begin = below(moments);
        const bool long_life = below(4) == 0;
        const Moment life = 1 + below(long_life ? 60 : 6);
        const bool large = below(2) == 0;
        const Bytes size = u * (1 + below(large ? 40 : 4));
        intervals.push_back({begin, begin + life, size, static_cast<Stream>(below(streams))});
    }
    return intervals;
}

bool share_a_moment(const Interval& a, const Interval& b) {
    return a.begin < b.end && b.begin < a.end;
}

bool is_sound(const std::vector<Interval>& intervals, const Packing& packing) {
    for (std::size_t i = 0; i < intervals.size(); ++i) {
        const Bytes start = packing.offsets[i], end = start + intervals[i].size;
        if (start < 0 || end > packing.size || start % u != 0) return false;
        for (std::size_t j = 0; j < i; ++j)
            if (share_a_moment(intervals[i], intervals[j]) &&
                start < packing.offsets[j] + intervals[j].size && packing.offsets[j] < end)
                return false;
    }
    return true;
}

Bytes slow_peak(const std::vector<Interval>& intervals) {
    Bytes peak = 0;
    for (const Interval& at : intervals) {
        Bytes live = 0;
        for (const Interval& each : intervals)
            if (each.begin <= at.begin && at.begin < each.end) live += each.size;
        peak = std::max(peak, live);
    }
    return peak;
}

void test_intervals_count_moments_between_events_and_round_up() {
    const std::vector<std::int64_t> born{-1, 0, 3}, done{0, 5, -1};
    const std::vector<Bytes> requested{1, 512, 513};
    const std::vector<Stream> stream{0, 7, 0};
    const auto intervals = intervals_of({born, done, requested, stream, 6});
    CHECK_EQUAL(intervals.size(), 3u);
    CHECK(intervals[0].begin == 0 && intervals[0].end == 1 && intervals[0].size == u);
    CHECK(intervals[1].begin == 1 && intervals[1].end == 6 && intervals[1].size == u);
    CHECK(intervals[2].begin == 4 && intervals[2].end == 7 && intervals[2].size == 2 * u);
    CHECK_EQUAL(intervals[1].stream, 7u);
    // The first dies at the event that makes the second.
    CHECK_EQUAL(live_peak(intervals), 3 * u);
}

void refuse(std::int64_t born, std::int64_t done, Bytes requested, const char* why) {
    const std::vector<std::int64_t> borns{born}, dones{done};
    const std::vector<Bytes> sizes{requested};
    const std::vector<Stream> stream{0};
    CHECK_THROWS(intervals_of({borns, dones, sizes, stream, 10}), BadInput, why);
}

void test_impossible_allocations_are_refused() {
    refuse(10, -1, 1, "an event that is not there");
    refuse(-2, -1, 1, "an event that is not there");
    refuse(0, 10, 1, "an event that is not there");
    refuse(5, 5, 1, "freed before it is made");
    refuse(5, 2, 1, "freed before it is made");
    refuse(0, -1, -1, "asks for -1 bytes");
    refuse(0, -1, std::numeric_limits<Bytes>::max(), "asks for");
    const std::vector<Interval> vast(3, Interval{0, 1, Bytes{1} << 59, 0});
    CHECK_THROWS(require_sound(vast), BadInput, "than any device has");
    CHECK_THROWS(require_sound(std::vector<Interval>{{0, 1, 100, 0}}), BadInput, "no multiple");
    CHECK_THROWS(require_sound(std::vector<Interval>{{2, 2, u, 0}}), BadInput, "moment 2 to 2");
}

void test_points_keep_who_lives_together() {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const auto intervals = some_intervals(60, 40 + seed * 20, seed);
        const Points points = points_of(intervals);
        CHECK(points.count <= 60);
        for (std::size_t i = 0; i < intervals.size(); ++i) {
            CHECK(0 <= points.first[i] && points.first[i] < points.last[i]);
            CHECK(points.last[i] <= points.count);
            for (std::size_t j = 0; j < i; ++j) {
                const bool share =
                    points.first[i] < points.last[j] && points.first[j] < points.last[i];
                CHECK_EQUAL(share, share_a_moment(intervals[i], intervals[j]));
            }
        }
        CHECK_EQUAL(live_peak(intervals), slow_peak(intervals));
    }
}

void test_a_union_of_ranges_is_a_set_of_bytes() {
    std::mt19937_64 random(3);
    for (int round = 0; round < 50; ++round) {
        ByteRanges ranges;
        std::set<Bytes> bytes;
        for (int step = 0; step < 30; ++step) {
            const auto start = static_cast<Bytes>(random() % 60);
            const auto end = start + 1 + static_cast<Bytes>(random() % 8);
            const std::size_t before = bytes.size();
            for (Bytes b = start; b < end; ++b) bytes.insert(b);
            CHECK_EQUAL(add_range(ranges, {start, end}), bytes.size() > before);
            std::set<Bytes> held;
            for (std::size_t i = 0; i < ranges.size(); ++i) {
                CHECK(ranges[i].start < ranges[i].end);
                if (i > 0) CHECK(ranges[i - 1].end < ranges[i].start);
                for (Bytes b = ranges[i].start; b < ranges[i].end; ++b) held.insert(b);
            }
            CHECK(held == bytes);
        }
    }
}

void test_the_lowest_offset_is_what_a_bitmap_says() {
    std::mt19937_64 random(4);
    for (const std::int32_t points : {1, 2, 3, 8, 13, 32}) {
        constexpr Bytes height = 400;
        std::vector<std::vector<bool>> taken(static_cast<std::size_t>(points),
                                             std::vector<bool>(height));
        Occupancy occupancy(points);
        for (int step = 0; step < 60; ++step) {
            const auto first = static_cast<std::int32_t>(random() % std::uint64_t(points));
            const auto last =
                first + 1 + static_cast<std::int32_t>(random() % std::uint64_t(points - first));
            const auto size = static_cast<Bytes>(1 + random() % 6);
            const auto free_at = [&](Bytes offset) {
                for (auto p = first; p < last; ++p)
                    for (Bytes b = offset; b < offset + size; ++b)
                        if (taken[std::size_t(p)][std::size_t(b)]) return false;
                return true;
            };
            Bytes lowest = 0;
            while (!free_at(lowest)) ++lowest;
            CHECK_EQUAL(occupancy.lowest(first, last, size), lowest);
            // Sometimes elsewhere than at the lowest place, so that gaps remain.
            const Bytes offset = free_at(lowest + 5) ? lowest + 5 : lowest;
            occupancy.take(first, last, {offset, offset + size});
            for (auto p = first; p < last; ++p)
                for (Bytes b = offset; b < offset + size; ++b)
                    taken[std::size_t(p)][std::size_t(b)] = true;
        }
        occupancy.clear();
        CHECK_EQUAL(occupancy.lowest(0, points, 5), 0);
    }
}

void test_packings_are_sound_and_near_the_bound() {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        const auto intervals = some_intervals(5 + seed * 40, 150, seed, 3);
        PackOptions options;
        options.seconds = seed % 2 ? 0.05 : 0;
        const Packing packing = pack(intervals, options);
        CHECK(is_sound(intervals, packing));
        CHECK(packing.size >= live_peak(intervals));
        CHECK(packing.tries >= 1);
        CHECK(check_plan(intervals, {intervals, packing.offsets, packing.size,
                                     live_peak(intervals)}) == PlanVerdict{});
        options.streams_apart = true;
        const Packing apart = pack(intervals, options);
        CHECK(is_sound(intervals, apart));
        CHECK_EQUAL(count_hand_overs(intervals, apart.offsets), 0);
    }
    CHECK_EQUAL(pack({}, {}).size, 0);
}

// Crowded enough that the known orders, ten of them, leave more than the search will.
void test_the_search_gets_below_every_known_order() {
    const auto intervals = some_intervals(200, 60, 1);
    PackOptions options;
    options.seconds = 60;  // it ends within 0.2 % of the bound, long before
    const Packing packing = pack(intervals, options);
    CHECK(packing.tries > 10);
    CHECK(static_cast<double>(packing.size) <= 1.002 * static_cast<double>(live_peak(intervals)));
    CHECK(pack(intervals, options).offsets == packing.offsets);
}

// Two neighbours in time and space, and a third beside them.
struct Planted {
    std::vector<Interval> allocations{{0, 4, 2 * u, 0}, {4, 9, 2 * u, 1}, {2, 6, u, 0}};
    std::vector<Interval> buffers = allocations;
    std::vector<Bytes> offsets{0, 0, 2 * u};
    Bytes size = 3 * u;
    Bytes live_peak = 3 * u;

    PlanVerdict verdict() const {
        return check_plan(allocations, {buffers, offsets, size, live_peak});
    }
};

template <typename Change>
void planted(PlanFault fault, std::int64_t buffer, std::int64_t other, Change&& change) {
    Planted plan;
    CHECK(plan.verdict() == PlanVerdict{});
    change(plan);
    const PlanVerdict verdict = plan.verdict();
    CHECK_EQUAL(name_of(verdict.fault), name_of(fault));
    CHECK_EQUAL(verdict.buffer, buffer);
    CHECK_EQUAL(verdict.other, other);
}

void test_the_checker_names_what_is_wrong() {
    using enum PlanFault;
    constexpr Bytes most = std::numeric_limits<Bytes>::max(), least = -most - 1;
    planted(missing, 1, -1, [](Planted& p) { p.offsets[1] = -1; });
    planted(missing, 2, -1, [](Planted& p) { p.offsets.pop_back(); });
    planted(missing, 0, -1, [](Planted& p) { p.buffers.clear(); });
    planted(surplus, 3, -1, [](Planted& p) {
        p.buffers.push_back(p.buffers[0]);
        p.offsets.push_back(0);
    });
    planted(wrong_life, 1, -1, [](Planted& p) { p.buffers[1].begin = 5; });
    planted(wrong_life, 0, -1, [](Planted& p) { p.buffers[0].end = least; });
    planted(wrong_size, 2, -1, [](Planted& p) { p.buffers[2].size = 2 * u; });
    planted(wrong_size, 2, -1, [](Planted& p) { p.buffers[2].size = most; });
    planted(misaligned, 0, -1, [](Planted& p) { p.offsets[0] = 1; });
    planted(out_of_range, 2, -1, [](Planted& p) { p.offsets[2] = 3 * u; });
    planted(out_of_range, 2, -1, [](Planted& p) { p.offsets[2] = -u; });
    planted(out_of_range, 2, -1, [](Planted& p) { p.offsets[2] = most - most % u; });
    planted(out_of_range, 2, -1, [](Planted& p) { p.offsets[2] = least; });
    planted(out_of_range, 2, -1, [](Planted& p) { p.size = 3 * u - 1; });
    planted(out_of_range, 0, -1, [](Planted& p) { p.size = least; });
    planted(overlap, 2, 0, [](Planted& p) { p.offsets[2] = u; });
    planted(overlap, 1, 2, [](Planted& p) { p.offsets[1] = u; });
    planted(overlap, 2, 0, [](Planted& p) { p.offsets[2] = 0; });
    planted(wrong_bound, -1, -1, [](Planted& p) { p.live_peak -= u; });
}

void test_every_overlap_is_found() {
    std::mt19937_64 random(9);
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const auto intervals = some_intervals(25, 60, seed);
        Packing packing = pack(intervals, {.seconds = 0});
        const Bytes peak = live_peak(intervals);
        for (int move = 0; move < 3; ++move) {  // to anywhere in the plan
            const std::size_t i = random() % intervals.size();
            const Bytes room = (packing.size - intervals[i].size) / u + 1;
            packing.offsets[i] = u * static_cast<Bytes>(random() % std::uint64_t(room));
        }
        const auto verdict =
            check_plan(intervals, {intervals, packing.offsets, packing.size, peak});
        CHECK_EQUAL(verdict.fault == PlanFault::none, is_sound(intervals, packing));
        if (verdict.fault == PlanFault::none) continue;
        CHECK(verdict.fault == PlanFault::overlap);
        const auto a = static_cast<std::size_t>(verdict.buffer);
        const auto b = static_cast<std::size_t>(verdict.other);
        CHECK(share_a_moment(intervals[a], intervals[b]));
        CHECK(packing.offsets[a] < packing.offsets[b] + intervals[b].size);
        CHECK(packing.offsets[b] < packing.offsets[a] + intervals[a].size);
    }
}

void test_hand_overs_are_counted_as_byte_by_byte() {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        auto intervals = some_intervals(80, 100, seed, 3);
        std::sort(intervals.begin(), intervals.end(),
                  [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
        const Packing packing = pack(intervals, {.seconds = 0});
        std::vector<std::int64_t> last(static_cast<std::size_t>(packing.size / u), -1);
        std::set<std::pair<std::int64_t, std::size_t>> pairs;
        for (std::size_t i = 0; i < intervals.size(); ++i) {
            const Bytes start = packing.offsets[i] / u, end = start + intervals[i].size / u;
            for (Bytes b = start; b < end; ++b) {
                auto& before = last[static_cast<std::size_t>(b)];
                if (before >= 0 && intervals[std::size_t(before)].stream != intervals[i].stream)
                    pairs.emplace(before, i);
                before = static_cast<std::int64_t>(i);
            }
        }
        CHECK_EQUAL(count_hand_overs(intervals, packing.offsets),
                    static_cast<std::int64_t>(pairs.size()));
    }
}

}  // namespace

int main() {
    test_intervals_count_moments_between_events_and_round_up();
    test_impossible_allocations_are_refused();
    test_points_keep_who_lives_together();
    test_a_union_of_ranges_is_a_set_of_bytes();
    test_the_lowest_offset_is_what_a_bitmap_says();
    test_packings_are_sound_and_near_the_bound();
    test_the_search_gets_below_every_known_order();
    test_the_checker_names_what_is_wrong();
    test_every_overlap_is_found();
    test_hand_overs_are_counted_as_byte_by_byte();
    return testing::result();
}
