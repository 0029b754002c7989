// _engine.replay: a trace as numpy columns through the engine, results as plain dicts and arrays.
#include "engine/replay.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "engine/python/bindings.hpp"
#include "engine/python/columns.hpp"

namespace nb = nanobind;

namespace tenure {

namespace {

using PoolPair = std::pair<std::uint64_t, std::uint64_t>;

// (address, size, stream, pool, small, arena, mapped runs, blocks); see replays/feeding.py.
using SavedRun = std::tuple<Address, Bytes>;
using SavedBlock = std::tuple<Address, Bytes, Bytes, bool, std::int64_t>;
using SavedSegment = std::tuple<Address, Bytes, Stream, PoolPair, bool, bool, std::vector<SavedRun>,
                                std::vector<SavedBlock>>;

Allocator::SavedSegment saved_segment(const SavedSegment& given) {
    const auto& [address, size, stream, pool, small, arena, runs, blocks] = given;
    Allocator::SavedSegment saved{
        {address, size}, stream, {pool.first, pool.second}, small, arena, {}, {}};
    for (const auto& [run_address, run_size] : runs)
        saved.mapped.push_back({run_address, run_size});
    for (const auto& [block_address, block_size, requested, pending, number] : blocks)
        saved.blocks.push_back({{block_address, block_size}, requested, pending, number});
    return saved;
}

void require_lengths(const TraceColumns& trace) {
    const std::size_t n = trace.length();
    if (trace.address.size() != n || trace.size.size() != n || trace.stream.size() != n ||
        trace.pool.size() != n || trace.allocation.size() != n)
        throw UsageError("columns of a trace must have equal length");
    for (std::size_t i = 0; i < n; ++i) {
        const Action action = trace.action_at(i);
        const bool moves = action == Action::alloc || action == Action::free_requested ||
                           action == Action::free_completed;
        if (moves && (trace.allocation[i] < 0 || trace.allocation[i] >= trace.allocations))
            throw UsageError("event " + std::to_string(i) + " belongs to no allocation");
        if ((action == Action::alloc && trace.pool[i] < 0) ||
            trace.pool[i] >= static_cast<std::int32_t>(trace.pools.size()))
            throw UsageError("event " + std::to_string(i) + " names no pool");
        if ((action == Action::alloc || action == Action::oom) && trace.size[i] <= 0)
            throw BadInput("event " + std::to_string(i) + " asks for " +
                           std::to_string(trace.size[i]) + " bytes");
    }
}

nb::dict peak_dict(const Peak& peak) {
    nb::dict out;
    out["bytes"] = peak.bytes;
    out["event"] = peak.event;
    return out;
}

nb::dict blocks_dict(const std::vector<BlockView>& blocks) {
    std::vector<Address> segment, address;
    std::vector<Bytes> size, requested;
    std::vector<std::uint8_t> state, small, in_arena;
    std::vector<Stream> stream;
    std::vector<std::int64_t> allocation;
    std::vector<std::uint64_t> capture, user;
    for (const BlockView& view : blocks) {
        segment.push_back(view.segment);
        address.push_back(view.address);
        size.push_back(view.size);
        requested.push_back(view.requested);
        state.push_back(static_cast<std::uint8_t>(view.state));
        small.push_back(view.small);
        in_arena.push_back(view.in_arena);
        stream.push_back(view.stream);
        allocation.push_back(view.tag);
        capture.push_back(view.pool.capture);
        user.push_back(view.pool.user);
    }
    nb::dict out;
    out["segment"] = to_array(std::move(segment));
    out["address"] = to_array(std::move(address));
    out["size"] = to_array(std::move(size));
    out["requested"] = to_array(std::move(requested));
    out["state"] = to_array(std::move(state));
    out["small"] = to_array(std::move(small));
    out["in_arena"] = to_array(std::move(in_arena));
    out["stream"] = to_array(std::move(stream));
    out["allocation"] = to_array(std::move(allocation));
    out["pool_capture"] = to_array(std::move(capture));
    out["pool_user"] = to_array(std::move(user));
    return out;
}

nb::object oom_dict(const FailedRequest& failed) {
    if (failed.event < 0) return nb::none();
    nb::dict out;
    out["event"] = failed.event;
    out["requested"] = failed.requested;
    out["segment"] = failed.segment;
    out["stream"] = failed.stream;
    out["reserved"] = failed.reserved;
    out["pending_would_fit"] = failed.pending_would_fit;
    return out;
}

nb::list calls_list(const std::vector<Call>& calls) {
    nb::list list;
    for (const Call& call : calls)
        list.append(nb::make_tuple(call.event, nb::make_tuple(call.pool.capture, call.pool.user),
                                   call.release_pool));
    return list;
}

nb::dict result_dict(ReplayResult&& result, const Settings& settings) {
    nb::dict out;
    out["events"] = result.events;
    out["address_mismatches"] = result.address_mismatches;
    out["segment_mismatches"] = result.segment_mismatches;
    out["divergence_event"] = result.first_divergence.event;
    out["divergence"] = result.first_divergence.what;
    nb::dict peaks;
    peaks["requested"] = peak_dict(result.requested);
    peaks["allocated"] = peak_dict(result.allocated);
    peaks["active"] = peak_dict(result.active);
    peaks["reserved"] = peak_dict(result.reserved);
    out["peaks"] = peaks;
    out["statistics"] = statistics_dict(result.statistics, settings);
    out["elastic"] = elastic_dict(result.elastic);
    out["chunk_moves"] = result.elastic.moves;
    out["stall_seconds"] = result.elastic.stall_us * 1e-6;
    out["first_oom"] = oom_dict(result.first_oom);
    out["calls"] = calls_list(result.calls);
    out["retries"] = to_array(std::move(result.retries));
    out["inferred_refusals"] = result.inferred_refusals;
    out["smallest_refused"] = result.smallest_refused;
    out["larger"] = result.larger;
    nb::dict timeline;
    timeline["requested"] = to_array(std::move(result.timeline.requested));
    timeline["allocated"] = to_array(std::move(result.timeline.allocated));
    timeline["active"] = to_array(std::move(result.timeline.active));
    timeline["reserved"] = to_array(std::move(result.timeline.reserved));
    out["timeline"] = timeline;
    out["blocks"] = blocks_dict(result.blocks);
    out["seconds"] = result.seconds;
    return out;
}

nb::dict bound_replay(const Settings& settings, Column<std::uint8_t> action,
                      Column<Address> address, Column<Bytes> size, Column<Stream> stream,
                      Column<std::int32_t> pool, Column<std::int64_t> allocation,
                      const std::vector<PoolPair>& pools, const std::vector<SavedSegment>& start,
                      std::int64_t allocations,
                      const std::vector<std::tuple<std::int64_t, PoolPair, bool>>& calls,
                      std::vector<std::int64_t> known_calls, Bytes recorded_peak, bool compare,
                      Bytes capacity, bool ascending, bool stop_at_oom, std::int64_t until,
                      bool timeline, std::vector<std::pair<std::int64_t, Bytes>> slack,
                      std::optional<Column<std::int64_t>> time_us, std::int64_t lead_us) {
    TraceColumns trace{span_of(action),
                       span_of(address),
                       span_of(size),
                       span_of(stream),
                       span_of(pool),
                       span_of(allocation),
                       {},
                       {},
                       allocations,
                       {},
                       0,
                       std::move(slack)};
    for (const auto& [capture, user] : pools) trace.pools.push_back({capture, user});
    for (const SavedSegment& segment : start) trace.start.push_back(saved_segment(segment));
    trace.known_calls = std::move(known_calls);
    trace.recorded_peak = recorded_peak;
    if (time_us) trace.time_us = span_of(*time_us);
    require_lengths(trace);
    std::vector<Call> given;
    for (const auto& [event, id, release] : calls)
        given.push_back({event, {id.first, id.second}, release});
    ReplayOptions options;
    options.compare = compare;
    options.capacity = capacity;
    options.placement = ascending ? Placement::ascending : Placement::descending;
    options.stop_at_oom = stop_at_oom;
    options.until = until;
    options.timeline = timeline;
    options.lead_us = lead_us;
    ReplayResult result;
    {
        nb::gil_scoped_release unlocked;
        result = replay(trace, settings, options, given);
    }
    return result_dict(std::move(result), settings);
}

}  // namespace

void bind_replay(nb::module_& m) {
    m.def("replay", &bound_replay, nb::arg("settings"), nb::arg("action"), nb::arg("address"),
          nb::arg("size"), nb::arg("stream"), nb::arg("pool"), nb::arg("allocation"), nb::kw_only(),
          nb::arg("pools"), nb::arg("start"), nb::arg("allocations"), nb::arg("calls"),
          nb::arg("known_calls"), nb::arg("recorded_peak"), nb::arg("compare"),
          nb::arg("capacity") = unlimited, nb::arg("ascending") = false,
          nb::arg("stop_at_oom") = false, nb::arg("until") = -1, nb::arg("timeline") = false,
          nb::arg("slack") = std::vector<std::pair<std::int64_t, Bytes>>{},
          nb::arg("time_us") = nb::none(), nb::arg("lead_us") = 0,
          "Feed a trace to an allocator; see tenure.replays.");
}

}  // namespace tenure
