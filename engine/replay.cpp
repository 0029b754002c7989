#include "engine/replay.hpp"

#include <algorithm>
#include <chrono>

#include "engine/collected.hpp"
#include "engine/elastic_rules.hpp"
#include "engine/late_start.hpp"
#include "engine/recorded_device.hpp"

namespace tenure {

namespace {

bool is_release(Action action) {
    return action == Action::segment_free || action == Action::segment_unmap;
}

bool is_segment_event(Action action) {
    return action >= Action::segment_alloc && action <= Action::segment_unmap;
}

// Events that a compared replay handles together with the request behind them.
bool needs_settling(Action action) {
    return is_segment_event(action) || action == Action::free_completed || action == Action::oom;
}

// The run of segment events and completions before one request (or before anything else).
struct Group {
    std::vector<SegmentEvent> expected;
    std::vector<std::size_t> completions;  // events
    std::size_t releases = 0;              // leading ones among `expected`
    std::int64_t first_release = -1;       // event
    std::size_t owner = 0;                 // event behind the run
    bool waited = false;                   // the completions end every wait, as a retry's do
};

class Replay {
  public:
    Replay(const TraceColumns& trace, const Settings& settings, const ReplayOptions& options,
           const std::vector<Call>& calls)
        : trace_(trace),
          options_(options),
          device_(options.capacity, options.placement),
          allocator_(settings, device_),
          late_start_(allocator_),
          calls_(calls) {
        if (options.compare) allocator_.log_to(&log_);
        end_ = trace.length();
        if (options.until >= 0) end_ = std::min(end_, static_cast<std::size_t>(options.until));
        live_.resize(static_cast<std::size_t>(trace.allocations));
        if (elastic()) {
            device_.run_behind_host(options.lead_us);
            device_.expect_moves(settings.limit != unlimited || settings.soft_limit > 0);
        }
        restore();
    }

    ReplayResult run();

  private:
    void restore();
    void lay_out_anew();
    void note_start();
    bool alloc(std::size_t i);
    void failed(std::size_t i, const OutOfMemory& error, std::int64_t retries);
    void free(std::size_t& i);
    void complete(std::size_t i);
    void missing(std::size_t i);
    void complete_run(std::size_t& i);
    void attempt(std::size_t i);
    Group gather(std::size_t begin) const;
    void settle(std::size_t& i);
    bool explained_by_request(const Group& group);
    bool moves_memory(const Group& group) const;
    void infer_calls(const Group& group, std::size_t begin);
    bool late() const { return !trace_.start.empty(); }
    bool elastic() const { return allocator_.settings().rules == Rules::elastic; }
    bool follows(const Group& group, std::size_t begin);
    PoolId request_pool(std::size_t i) const;
    PoolId failing_pool(std::size_t i);
    bool would_release(std::size_t i);
    bool served_from_cache(std::size_t i);
    bool collects_unknown() const;
    void infer_empty_cache(std::size_t i);
    bool starts_capture(std::size_t i);
    void release_private_pools(const Group& group, std::size_t begin, bool& any_default);
    PoolId pool_of(const SegmentEvent& event) const;
    void make_calls(std::size_t i);
    void compare_segments(const Group& group, std::size_t i);
    void unexpected_segments(std::size_t i);
    void diverge(std::size_t i, const std::string& what);
    void watch(std::size_t i);
    void keep_timeline();
    bool completes_at_once(std::size_t i) const;
    bool waits_for_failure(std::size_t i, const Block& block) const;

    const TraceColumns& trace_;
    ReplayOptions options_;
    RecordedDevice device_;
    Allocator allocator_;
    LateStart late_start_;
    const std::vector<Call>& calls_;
    int requests_since_call_ = 1 << 20;  // the last inferred empty_cache()
    Bytes recorded_reserved_ = 0;        // by the record's own segment events
    std::size_t end_ = 0;                // events to replay
    std::size_t next_call_ = 0;
    std::vector<Block*> live_;  // by allocation number; null: not live here
    std::vector<SegmentEvent> log_;
    Group group_;
    ReplayResult result_;
    bool stopped_ = false;
    bool resumes_ = false;  // the request at hand was searched for before the recording began
};

void Replay::restore() {
    const bool anew = elastic() && !options_.compare;
    if (anew) lay_out_anew();
    for (const auto& saved : trace_.start) {
        if (anew) break;
        if (!saved.arena && !device_.take(saved.range.size))
            throw BadInput("the state before the first event does not fit the capacity");
        for (Block* block : allocator_.restore(saved))
            live_[static_cast<std::size_t>(block->tag)] = block;
    }
    if (options_.compare && late()) late_start_.begin(trace_.slack);
    allocator_.reset_peak();
    allocator_.reset_accumulated();
    note_start();
}

// The state before the first event under other rules than the recording's: the same blocks, each
// where these rules put it. As when a recorded state is restored, no limit holds yet.
void Replay::lay_out_anew() {
    const Bytes limit = allocator_.settings().limit;
    allocator_.set_limit(unlimited);
    for (const auto& saved : trace_.start)
        for (const auto& block : saved.blocks) {
            Block* placed =
                allocator_.allocate(std::max<Bytes>(block.requested, 1), saved.stream, saved.pool);
            placed->tag = block.tag;
            live_[static_cast<std::size_t>(block.tag)] = placed;
            if (block.pending) allocator_.free_pending(placed);
        }
    allocator_.set_limit(limit);
}

void Replay::note_start() {
    const Statistics& s = allocator_.statistics();
    result_.requested.bytes = s.requested_bytes.all.current;
    result_.allocated.bytes = s.allocated_bytes.all.current;
    result_.active.bytes = s.active_bytes.all.current;
    result_.reserved.bytes = s.reserved_bytes.all.current;
    recorded_reserved_ = result_.reserved.bytes;
}

ReplayResult Replay::run() {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < end_ && !stopped_; ++i) {
        if (i < trace_.time_us.size()) device_.set_time(trace_.time_us[i]);
        if (next_call_ < calls_.size()) make_calls(i);
        const Action action = trace_.action_at(i);
        if (options_.compare && needs_settling(action)) {
            const std::size_t before = i;
            settle(i);
            if (options_.timeline)
                for (std::size_t k = before; k <= i; ++k) keep_timeline();
            continue;
        }
        switch (action) {
            case Action::alloc:
                alloc(i);
                if (!log_.empty()) unexpected_segments(i);
                break;
            case Action::free_requested:
                free(i);
                break;
            case Action::free_completed:
                complete_run(i);
                break;
            case Action::oom:
                attempt(i);
                break;
            default:
                break;
        }
        if (options_.timeline) {
            while (result_.timeline.allocated.size() <= i) keep_timeline();
        }
        result_.events = static_cast<std::int64_t>(i) + 1;
    }
    if (!stopped_) result_.events = static_cast<std::int64_t>(end_);
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    result_.statistics = allocator_.statistics();
    result_.elastic = allocator_.elastic_statistics();
    result_.blocks = allocator_.blocks();
    result_.largest_served = result_.reserved.bytes;
    result_.smallest_refused = device_.smallest_refused();
    result_.larger.assign(late_start_.larger().begin(), late_start_.larger().end());
    return std::move(result_);
}

void Replay::keep_timeline() {
    const Statistics& s = allocator_.statistics();
    result_.timeline.requested.push_back(s.requested_bytes.all.current);
    result_.timeline.allocated.push_back(s.allocated_bytes.all.current);
    result_.timeline.active.push_back(s.active_bytes.all.current);
    result_.timeline.reserved.push_back(s.reserved_bytes.all.current);
}

void Replay::watch(std::size_t i) {
    const Statistics& s = allocator_.statistics();
    auto see = [i](Peak& peak, const PoolCounter& counter) {
        if (counter.all.peak <= peak.bytes) return;
        peak = {counter.all.peak, static_cast<std::int64_t>(i)};
    };
    see(result_.requested, s.requested_bytes);
    see(result_.allocated, s.allocated_bytes);
    see(result_.active, s.active_bytes);
    see(result_.reserved, s.reserved_bytes);
}

bool Replay::alloc(std::size_t i) {
    ++requests_since_call_;
    const auto number = static_cast<std::size_t>(trace_.allocation[i]);
    const PoolId pool = request_pool(i);
    const std::int64_t retries = allocator_.statistics().num_alloc_retries;
    if (options_.compare)
        late_start_.fit(trace_.size[i], trace_.stream[i], pool, trace_.address[i]);
    try {
        Block* block = nullptr;
        if (resumes_)
            block = allocator_.allocate_new(trace_.size[i], trace_.stream[i], pool);
        else if (i == 0 && late() && options_.compare)
            block = allocator_.allocate_whole(trace_.address[i], trace_.size[i], trace_.stream[i],
                                              pool);
        if (!block) block = allocator_.allocate(trace_.size[i], trace_.stream[i], pool);
        block->tag = trace_.allocation[i];
        live_[number] = block;
        if (options_.compare && block->address != trace_.address[i]) {
            ++result_.address_mismatches;
            diverge(i, "the record puts the block at " + std::to_string(trace_.address[i]) +
                           ", the rules at " + std::to_string(block->address));
        }
    } catch (const OutOfMemory& error) {
        failed(i, error, retries);
        return false;
    }
    if (allocator_.statistics().num_alloc_retries != retries)
        result_.retries.push_back(static_cast<std::int64_t>(i));
    watch(i);
    return true;
}

void Replay::failed(std::size_t i, const OutOfMemory& error, std::int64_t retries) {
    if (options_.compare && trace_.action_at(i) != Action::oom) {
        ++result_.address_mismatches;
        diverge(i, "the record serves the request, the rules run out of memory");
    }
    if (allocator_.statistics().num_alloc_retries != retries)
        result_.retries.push_back(static_cast<std::int64_t>(i));
    watch(i);
    if (result_.first_oom.event < 0) {
        const bool fits =
            allocator_.serves_from_cache(error.requested, error.stream, request_pool(i));
        result_.first_oom = {static_cast<std::int64_t>(i),
                             error.requested,
                             error.segment,
                             error.stream,
                             allocator_.reserved(),
                             fits};
    }
    stopped_ = options_.stop_at_oom;
}

// The record's `oom` event: the same request again. Where it is served, as a what-if may, the
// recorded run did not use it, so it is given back.
void Replay::attempt(std::size_t i) {
    const std::int64_t retries = allocator_.statistics().num_alloc_retries;
    const PoolId pool = options_.compare ? failing_pool(i) : request_pool(i);
    if (options_.compare) late_start_.fit(trace_.size[i], trace_.stream[i], pool, 0);
    try {
        Block* block = allocator_.allocate(trace_.size[i], trace_.stream[i], pool);
        watch(i);
        allocator_.free(block);
        if (options_.compare) {
            ++result_.address_mismatches;
            diverge(i, "the record runs out of memory, the rules serve the request");
        }
    } catch (const OutOfMemory& error) {
        failed(i, error, retries);
    }
}

bool Replay::completes_at_once(std::size_t i) const {
    return i + 1 < trace_.length() && trace_.action_at(i + 1) == Action::free_completed &&
           trace_.allocation[i + 1] == trace_.allocation[i];
}

// A block whose wait ended in the failing retry right behind its free looks as if freed at once.
// But then it would have served the request (pytorch#189504).
bool Replay::waits_for_failure(std::size_t i, const Block& block) const {
    if (i + 2 >= end_ || !needs_settling(trace_.action_at(i + 2))) return false;
    const std::size_t owner = gather(i + 1).owner;
    if (owner >= end_ || trace_.action_at(owner) != Action::oom) return false;
    return allocator_.would_serve(block, trace_.size[owner], trace_.stream[owner]);
}

void Replay::free(std::size_t& i) {
    Block* block = live_[static_cast<std::size_t>(trace_.allocation[i])];
    if (!block || block->state != BlockState::live || block->tag != trace_.allocation[i]) {
        missing(i);
        block = nullptr;
    }
    const bool at_once = completes_at_once(i) && !(block && waits_for_failure(i, *block));
    if (block && at_once) allocator_.free(block);
    if (block && !at_once) allocator_.free_pending(block);
    if (at_once) {
        live_[static_cast<std::size_t>(trace_.allocation[i])] = nullptr;
        ++i;  // the completion was part of it
    }
}

void Replay::complete(std::size_t i) {
    Block*& block = live_[static_cast<std::size_t>(trace_.allocation[i])];
    if (!block) return missing(i);
    if (block->state == BlockState::pending && block->tag == trace_.allocation[i])
        allocator_.complete(block);
    else if (block->state == BlockState::live && block->tag == trace_.allocation[i])
        allocator_.free(block);  // a completion whose request was not recorded
    block = nullptr;
}

// The record frees a block that it never had, or frees it twice.
void Replay::missing(std::size_t i) {
    if (!options_.compare) return;
    ++result_.address_mismatches;
    diverge(i, "the record frees a block that is not live");
}

// For a what-if: one run of completions, or those that a failing request waited for with it. Leaves
// `i` at the last event handled.
void Replay::complete_run(std::size_t& i) {
    group_ = gather(i);
    const bool waited = group_.owner < end_ && trace_.action_at(group_.owner) == Action::oom &&
                        group_.completions.size() == allocator_.held();
    if (waited) attempt(group_.owner);
    for (std::size_t event : group_.completions) complete(event);
    i = waited ? group_.owner : group_.owner - 1;
}

Group Replay::gather(std::size_t begin) const {
    Group group;
    std::size_t i = begin;
    for (; i < end_; ++i) {
        const Action action = trace_.action_at(i);
        if (action == Action::free_completed) {
            group.completions.push_back(i);
        } else if (is_segment_event(action)) {
            if (is_release(action) && group.releases == group.expected.size()) {
                if (group.releases++ == 0) group.first_release = static_cast<std::int64_t>(i);
            }
            group.expected.push_back({action, trace_.address[i], trace_.size[i], trace_.stream[i]});
        } else {
            break;
        }
    }
    group.owner = i;
    return group;
}

// Handles one run of segment events and completions with the request behind it. Leaves `i` at the
// last event handled.
void Replay::settle(std::size_t& i) {
    const std::size_t begin = i;
    group_ = gather(begin);
    const bool has_owner = group_.owner < end_;
    const Action owner = has_owner ? trace_.action_at(group_.owner) : Action::other;
    const bool requests = owner == Action::alloc || owner == Action::oom;
    const bool all_pending = group_.completions.size() == allocator_.held();
    // Completions that end every wait just before a release, or before a request that failed after
    // all, belong to the retry's own wait.
    // A recording that began with releases may have begun amid a request.
    const bool cut = late() && begin == 0 && group_.releases > 0;
    const bool retried = group_.releases > 0 && !cut && !elastic();
    const bool synchronised = (retried || owner == Action::oom) && all_pending;
    group_.waited = synchronised;
    if (!synchronised)
        for (std::size_t event : group_.completions) complete(event);
    log_.clear();
    device_.expect(group_.expected, &log_, owner == Action::oom);
    late_start_.fit_releases(group_.expected);
    const auto by_rules = [&] {
        if (elastic()) return moves_memory(group_);
        return follows(group_, begin) || (requests && explained_by_request(group_));
    };
    if (group_.releases > 0 && !by_rules()) infer_calls(group_, begin);
    if (requests) {
        if (starts_capture(group_.owner)) infer_empty_cache(group_.owner);
        if (owner == Action::alloc)
            alloc(group_.owner);
        else
            attempt(group_.owner);
    }
    allocator_.pause_collection(false);
    resumes_ = false;
    if (synchronised)
        for (std::size_t event : group_.completions) complete(event);
    compare_segments(group_, begin);
    for (const SegmentEvent& event : group_.expected)
        recorded_reserved_ += is_release(event.action) ? -event.size : event.size;
    result_.inferred_refusals += device_.refusals();
    device_.expect({}, nullptr, false);
    log_.clear();
    i = requests ? group_.owner : group_.owner - 1;
}

// Whether serving the request behind the group would release memory by itself.
bool Replay::explained_by_request(const Group& group) {
    const std::size_t owner = group.owner;
    if (trace_.action_at(owner) == Action::oom) return true;
    if (would_release(owner)) return true;
    if (served_from_cache(owner)) return false;
    for (std::size_t k = 0; k < group.releases; ++k)
        if (!pool_of(group.expected[k]).is_default()) return false;
    if (group.releases == group.expected.size()) return false;  // nothing was asked of the driver
    // Did the driver refuse, at a limit that nobody named? Then the total asked for was more than
    // the recording ever got; and a retry may return less than an empty_cache() would.
    const auto& known = trace_.known_calls;
    if (std::binary_search(known.begin(), known.end(), group.first_release)) return false;
    const bool partly = allocator_.releasable().size() > group.releases;
    if (partly && collects_unknown()) return false;
    const Bytes total = allocator_.reserved() + allocator_.segment_for(trace_.size[owner]);
    return total > trace_.recorded_peak || partly;
}

// Elastic rules: whether the group moves memory rather than that somebody gave it back. Moves take
// no more than the next chunk needs and the rest of one, and nothing while new memory may be had.
// The record alone decides: where the GPU was done at another time, memory here lies elsewhere.
bool Replay::moves_memory(const Group& group) const {
    if (group.owner < end_ && trace_.action_at(group.owner) == Action::oom) return true;
    if (group.releases == group.expected.size()) return false;
    Bytes needed = group.expected[group.releases].size;
    Bytes spare = needed + elastic_rules::chunk_size(allocator_.settings(), false, unlimited);
    for (std::size_t k = 0; k < group.releases; ++k) spare -= group.expected[k].size;
    for (std::size_t k = group.releases + 1; k < group.expected.size(); ++k)
        if (!is_release(group.expected[k].action)) needed += group.expected[k].size;
    if (spare < 0 || allocator_.settings().soft_limit > 0) return spare >= 0;
    return recorded_reserved_ + needed > trace_.recorded_peak;
}

// Makes releases as recorded where the rules cannot know them: the rest of a release that was
// underway when the recording began, and a garbage collection whose ages or limit are unknown.
bool Replay::follows(const Group& group, std::size_t begin) {
    const std::span releases(group.expected.data(), group.releases);
    const std::size_t owner = group.owner;
    const bool requests = owner < end_ && (trace_.action_at(owner) == Action::alloc ||
                                           trace_.action_at(owner) == Action::oom);
    std::size_t count = 0;
    if (late() && begin == 0 && !(requests && trace_.action_at(owner) == Action::oom)) {
        const bool asks = requests && group.expected.size() > releases.size();
        const bool all = allocator_.releasable().size() == releases.size();
        if (!all || (asks && !would_release(owner))) {
            count = releases.size();
            resumes_ = asks;
        }
    }
    if (count == 0 && requests && (collects_unknown() || late()) &&
        allocator_.settings().garbage_collection_threshold > 0 && !served_from_cache(owner)) {
        const bool waited = allocator_.held() == 0 || group.waited;
        count = collected(allocator_, releases, allocator_.segment_for(trace_.size[owner]), waited);
    }
    for (const SegmentEvent& event : releases.first(count)) allocator_.release_at(event.address);
    allocator_.pause_collection(count > 0);
    return count > 0;
}

PoolId Replay::request_pool(std::size_t i) const {
    return trace_.pools[static_cast<std::size_t>(std::max(trace_.pool[i], 0))];
}

// Up to torch 2.11 a failure names neither pool nor address: it was of a pool that cannot serve it.
PoolId Replay::failing_pool(std::size_t i) {
    const PoolId named = request_pool(i);
    if (allocator_.settings().torch_version > TorchVersion{2, 11}) return named;
    for (const auto& [id, pool] : allocator_.pools()) {
        if (!served_from_cache(i)) break;
        if (!allocator_.serves_from_cache(trace_.size[i], trace_.stream[i], id)) return id;
    }
    return named;
}

bool Replay::would_release(std::size_t i) {
    return allocator_.would_release(trace_.size[i], trace_.stream[i], request_pool(i));
}

bool Replay::served_from_cache(std::size_t i) {
    return allocator_.serves_from_cache(trace_.size[i], trace_.stream[i], request_pool(i));
}

PoolId Replay::pool_of(const SegmentEvent& event) const {
    for (const auto& segment : allocator_.segments())
        if (event.address >= segment->address &&
            event.address < segment->address + static_cast<Address>(segment->size))
            return segment->home->half->pool->id;
    return {};
}

void Replay::infer_calls(const Group& group, std::size_t begin) {
    bool any_default = false;
    release_private_pools(group, begin, any_default);
    if (any_default) infer_empty_cache(begin);
}

bool Replay::collects_unknown() const {
    const Settings& settings = allocator_.settings();
    return settings.garbage_collection_threshold > 0 && settings.limit == unlimited;
}

void Replay::infer_empty_cache(std::size_t i) {
    result_.calls.push_back({static_cast<std::int64_t>(i), PoolId{}, false});
    allocator_.empty_cache();
    requests_since_call_ = 0;
}

// torch.cuda.graph() empties the cache before it captures: so it did before the first request of a
// capture's own pool, unless it is known already or would have shown.
bool Replay::starts_capture(std::size_t i) {
    if (trace_.pool[i] <= 0) return false;
    const PoolId pool = trace_.pools[static_cast<std::size_t>(trace_.pool[i])];
    if (pool.capture == 0 || allocator_.pools().contains(pool)) return false;
    constexpr int random_state_tensors = 2;  // made between the call and the capture, once
    return requests_since_call_ > random_state_tensors && allocator_.releasable().empty();
}

void Replay::release_private_pools(const Group& group, std::size_t begin, bool& any_default) {
    std::vector<PoolId> touched;
    for (std::size_t k = 0; k < group.releases; ++k) {
        const PoolId id = pool_of(group.expected[k]);
        if (id.is_default())
            any_default = true;
        else if (std::find(touched.begin(), touched.end(), id) == touched.end())
            touched.push_back(id);
    }
    any_default = any_default || (!touched.empty() && allocator_.releasable().empty());
    for (const PoolId id : touched) {
        while (allocator_.pools().at(id)->use_count > 0) {
            result_.calls.push_back({static_cast<std::int64_t>(begin), id, true});
            allocator_.release_pool(id);
        }
        if (any_default) continue;
        result_.calls.push_back({static_cast<std::int64_t>(begin), id, false});
        allocator_.empty_cache(id);
    }
}

void Replay::make_calls(std::size_t i) {
    for (; next_call_ < calls_.size() && calls_[next_call_].event <= static_cast<std::int64_t>(i);
         ++next_call_) {
        const Call& call = calls_[next_call_];
        const auto pool = allocator_.pools().find(call.pool);
        if (pool == allocator_.pools().end()) continue;
        if (!call.release_pool)
            allocator_.empty_cache(call.pool);
        else if (pool->second->use_count > 0)
            allocator_.release_pool(call.pool);
    }
}

void Replay::compare_segments(const Group& group, std::size_t i) {
    const std::size_t shared = std::min(group.expected.size(), log_.size());
    std::size_t wrong = std::max(group.expected.size(), log_.size()) - shared;
    for (std::size_t k = 0; k < shared; ++k) wrong += !(group.expected[k] == log_[k]);
    if (wrong == 0) return;
    result_.segment_mismatches += static_cast<std::int64_t>(wrong);
    diverge(i, "the record has " + std::to_string(group.expected.size()) +
                   " segment events here, the rules make " + std::to_string(log_.size()) +
                   "; different: " + std::to_string(wrong));
}

// The rules went to the driver for a request that the record served from the cache.
void Replay::unexpected_segments(std::size_t i) {
    compare_segments(Group{}, i);
    log_.clear();
}

void Replay::diverge(std::size_t i, const std::string& what) {
    if (result_.first_divergence.event < 0)
        result_.first_divergence = {static_cast<std::int64_t>(i), what};
}

}  // namespace

ReplayResult replay(const TraceColumns& trace, const Settings& settings,
                    const ReplayOptions& options, const std::vector<Call>& calls) {
    return Replay(trace, settings, options, calls).run();
}

}  // namespace tenure
