// Plans: allocations and placements as numpy columns, verdicts as plain values.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/errors.hpp"
#include "engine/plans/check_plan.hpp"
#include "engine/plans/intervals.hpp"
#include "engine/plans/pack.hpp"
#include "engine/python/bindings.hpp"
#include "engine/python/columns.hpp"

namespace nb = nanobind;

namespace tenure {

namespace {

// Intervals as Python keeps them: moments of birth and end, bytes, streams.
using IntervalColumns = std::tuple<Column<Moment>, Column<Moment>, Column<Bytes>, Column<Stream>>;

std::vector<Interval> intervals_from(const IntervalColumns& columns) {
    const auto& [begin, end, size, stream] = columns;
    const std::size_t n = begin.size();
    if (end.size() != n || size.size() != n || stream.size() != n)
        throw UsageError("columns of a plan must have equal length");
    std::vector<Interval> intervals(n);
    for (std::size_t i = 0; i < n; ++i)
        intervals[i] = {begin.data()[i], end.data()[i], size.data()[i], stream.data()[i]};
    return intervals;
}

nb::tuple plan_intervals(const Column<std::int64_t>& born, const Column<std::int64_t>& done,
                         const Column<Bytes>& requested, const Column<Stream>& stream,
                         std::int64_t events) {
    const auto intervals =
        intervals_of({span_of(born), span_of(done), span_of(requested), span_of(stream), events});
    std::vector<Moment> begin, end;
    std::vector<Bytes> size;
    for (const Interval& interval : intervals) {
        begin.push_back(interval.begin);
        end.push_back(interval.end);
        size.push_back(interval.size);
    }
    return nb::make_tuple(to_array(std::move(begin)), to_array(std::move(end)),
                          to_array(std::move(size)));
}

nb::dict pack_plan(const IntervalColumns& buffers, double seconds, std::uint64_t seed,
                   bool streams_apart) {
    const auto intervals = intervals_from(buffers);
    require_sound(intervals);
    Packing packing;
    Bytes bound = 0;
    {
        nb::gil_scoped_release unlocked;
        bound = live_peak(intervals);
        packing = pack(intervals, {seconds, seed, streams_apart});
    }
    nb::dict out;
    out["live_peak"] = bound;
    out["size"] = packing.size;
    out["offsets"] = to_array(std::move(packing.offsets));
    out["tries"] = packing.tries;
    return out;
}

std::tuple<std::string, std::int64_t, std::int64_t> checked(const IntervalColumns& allocations,
                                                            const IntervalColumns& buffers,
                                                            const Column<Bytes>& offsets,
                                                            Bytes size, Bytes live_peak) {
    const auto wanted = intervals_from(allocations);
    const auto planned = intervals_from(buffers);
    require_sound(wanted);
    PlanVerdict verdict;
    {
        nb::gil_scoped_release unlocked;
        verdict = check_plan(wanted, {planned, span_of(offsets), size, live_peak});
    }
    return {std::string(name_of(verdict.fault)), verdict.buffer, verdict.other};
}

std::int64_t hand_overs(const IntervalColumns& buffers, const Column<Bytes>& offsets) {
    const auto intervals = intervals_from(buffers);
    if (offsets.size() != intervals.size())
        throw UsageError("columns of a plan must have equal length");
    require_sound(intervals);
    for (std::size_t i = 0; i < intervals.size(); ++i)
        if (offsets.data()[i] < 0 || offsets.data()[i] > INT64_MAX - intervals[i].size)
            throw UsageError("buffer " + std::to_string(i) + " has no place");
    nb::gil_scoped_release unlocked;
    return count_hand_overs(intervals, span_of(offsets));
}

}  // namespace

void bind_plans(nb::module_& m) {
    m.def("plan_intervals", &plan_intervals, nb::arg("born"), nb::arg("done"), nb::arg("requested"),
          nb::arg("stream"), nb::arg("events"),
          "When each allocation is alive (begin, end) and its rounded size; see tenure.plans.");
    m.def("pack_plan", &pack_plan, nb::arg("buffers"), nb::kw_only(), nb::arg("seconds"),
          nb::arg("seed") = 1, nb::arg("streams_apart") = false,
          "A placement of the buffers; see tenure.plans.");
    m.def("check_plan", &checked, nb::arg("allocations"), nb::arg("buffers"), nb::arg("offsets"),
          nb::kw_only(), nb::arg("size"), nb::arg("live_peak"),
          "The fault of a placement, the buffer and the other one; see tenure.plans.");
    m.def("count_hand_overs", &hand_overs, nb::arg("buffers"), nb::arg("offsets"),
          "How often memory goes from one stream to another; see tenure.plans.");
}

}  // namespace tenure
