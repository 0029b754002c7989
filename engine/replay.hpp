// A recorded trace through an allocator, in one call.
//
// Two ways. *Compared*: under the settings of the recording, with the recorded addresses of
// segments handed out, every address and every segment event is held against the record. *What
// if*: under any other settings, with guessed addresses.
//
// Calls that leave no event of their own are inferred in a compared replay: releases that the next
// request does not explain are an empty_cache(), and come back as `calls`, which a what-if takes.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/virtual_device.hpp"

namespace tenure {

// Events as columns of equal length. `allocation` numbers the allocation that an alloc, a
// free_requested or a free_completed belongs to (-1 elsewhere); `pool` indexes `pools`.
struct TraceColumns {
    std::span<const std::uint8_t> action;
    std::span<const Address> address;
    std::span<const Bytes> size;
    std::span<const Stream> stream;
    std::span<const std::int32_t> pool;
    std::span<const std::int64_t> allocation;
    std::vector<PoolId> pools;
    std::vector<Allocator::SavedSegment> start;  // the state before the first event
    std::int64_t allocations = 0;                // numbers are below this
    std::vector<std::int64_t> known_calls;       // releases that an empty_cache() is known to cause
    Bytes recorded_peak = 0;                     // most bytes reserved in the recording
    // Bytes by which blocks of the start may be larger, by allocation (see late_start.hpp).
    std::vector<std::pair<std::int64_t, Bytes>> slack = {};
    std::span<const std::int64_t> time_us = {};  // of each event; empty: no time passes

    std::size_t length() const { return action.size(); }
    Action action_at(std::size_t i) const { return static_cast<Action>(action[i]); }
};

// An inferred call, made just before the event.
struct Call {
    std::int64_t event;
    PoolId pool;        // default: empty_cache() of everything
    bool release_pool;  // the pool's last owner let go of it; no memory moved yet
};

struct ReplayOptions {
    bool compare = true;
    Bytes capacity = unlimited;  // of the device; the limit is in the settings
    Placement placement = Placement::descending;
    bool stop_at_oom = false;
    std::int64_t until = -1;   // stop after this many events; -1: all
    bool timeline = false;     // keep the four byte counts after every event
    std::int64_t lead_us = 0;  // elastic rules: freed memory's work ends so long after the free
};

struct Divergence {
    std::int64_t event = -1;  // -1: none
    std::string what;
};

struct Peak {
    Bytes bytes = 0;
    std::int64_t event = -1;  // the event after which it was reached first; -1: before the first
};

struct FailedRequest {
    std::int64_t event = -1;
    Bytes requested = 0;
    Bytes segment = 0;
    Stream stream = 0;
    Bytes reserved = 0;
    bool pending_would_fit = false;  // pytorch#189504: a second try would have been served
};

struct Timeline {
    std::vector<Bytes> requested, allocated, active, reserved;
};

struct ReplayResult {
    std::int64_t events = 0;  // replayed
    std::int64_t address_mismatches = 0;
    std::int64_t segment_mismatches = 0;
    Divergence first_divergence;
    Peak requested, allocated, active, reserved;
    Statistics statistics;
    ElasticStatistics elastic;  // all zero under torch rules
    FailedRequest first_oom;
    std::vector<Call> calls;
    std::vector<std::int64_t> retries;   // events whose request gave everything cached back
    std::int64_t inferred_refusals = 0;  // the device said no without a known limit
    Bytes largest_served = 0;            // most bytes reserved; a limit was at least this
    Bytes smallest_refused = unlimited;  // least reserved + segment refused; a limit was below this
    // Blocks of the start that the record shows to be larger, with the bytes to add: once they are
    // added, another replay gives the counts that hold from the first event on.
    std::vector<std::pair<std::int64_t, Bytes>> larger;
    Timeline timeline;
    std::vector<BlockView> blocks;  // state at the end of the replay
    double seconds = 0;
};

// `calls`: for a what-if, those that a compared replay of the same trace inferred.
ReplayResult replay(const TraceColumns& trace, const Settings& settings,
                    const ReplayOptions& options, const std::vector<Call>& calls);

}  // namespace tenure
