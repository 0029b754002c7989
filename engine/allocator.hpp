// The one public class: requests in, blocks out, by PyTorch's rules (torch_rules.hpp).
//
// Under elastic rules (elastic_rules.hpp) a request that no mapped block serves goes to
// elastic.cpp.
//
// One allocator manages one device. It is not thread safe; front ends lock around it.
// A request takes these steps, each a function below: notice done events, search the free list,
// collect garbage, ask the device, borrow from a use-on-OOM pool, return oversize blocks, return
// everything cached and try once more; then split what was found, or throw OutOfMemory.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/chunks.hpp"
#include "engine/errors.hpp"
#include "engine/pool.hpp"
#include "engine/settings.hpp"
#include "engine/statistics.hpp"
#include "engine/torch_rules.hpp"
#include "engine/trace.hpp"

namespace tenure {

// One change of what the driver gave, as PyTorch records it.
struct SegmentEvent {
    Action action;
    Address address;
    Bytes size;
    Stream stream;
    bool operator==(const SegmentEvent&) const = default;
};

// A block went back to its pool: at its free, or once the events that it waited for were done.
struct CompletedFree {
    Address address;
    Bytes requested;
    Stream stream;
    PoolId pool;
};

// A block as it stands in a segment; used to start from, and to show, a state.
struct BlockView {
    Address segment;  // first address of the cudaMalloc, or of the mapped run of an arena
    Address address;
    Bytes size;
    Bytes requested;
    BlockState state;
    Stream stream;
    PoolId pool;
    bool small;
    bool in_arena;
    std::int64_t tag;
};

class Allocator {
  public:
    Allocator(const Settings& settings, Device& device);
    ~Allocator();
    Allocator(const Allocator&) = delete;

    // A block of at least `requested` bytes (> 0), live, for work on `stream`.
    // Throws OutOfMemory; the allocator is then as PyTorch's would be: the cache is empty.
    Block* allocate(Bytes requested, Stream stream, PoolId pool = {});

    // The tensor died. The block is cached at once, or pending while other streams' uses last.
    void free(Block* block);
    void record_stream(Block* block, Stream stream);

    // For replay, where the record says when a pending block was done: free_pending leaves the
    // block pending on no event of the device, complete returns it; a wait for all events completes
    // it too.
    void free_pending(Block* block);
    void complete(Block* block);

    void empty_cache();
    void empty_cache(PoolId pool);  // only that pool, and only once nobody holds it

    void set_limit(Bytes limit) { settings_.limit = limit; }  // on reserved bytes; or unlimited
    void create_pool(PoolId pool);                            // or hold it once more
    void release_pool(PoolId pool);  // hold it once less; at zero its memory can be returned
    void set_no_split(PoolId pool) { pool_at(pool).no_split = true; }
    void set_use_on_oom(PoolId pool, bool on) { pool_at(pool).use_on_oom = on; }
    void begin_capture() { ++captures_; }
    void end_capture();

    // Elastic rules. Chunks in a pinned range stay: somebody outside knows them by address. Pins
    // may overlap, and each is undone by itself.
    void pin(Address address, Bytes size);
    void unpin(Address address, Bytes size);
    // Called, at most once a request, before it fails: frees what unreachable objects hold, by
    // calls of free(), and says whether there was anything.
    void on_last_resort(std::function<bool()> collect) { elastic_.collect = std::move(collect); }
    const ElasticStatistics& elastic_statistics() const { return elastic_.chunks.meter.counts; }

    // Elastic rules, for callers that let streams be served side by side (lane.hpp). allocate_in
    // and free_in may run for several lanes at once; nothing else may run beside them.
    Lane lane(Stream stream);
    bool serves_lanes() const;                        // else lanes have to wait, for a capture
    Block* allocate_in(Lane& lane, Bytes requested);  // null: takes more than the lane has
    bool free_in(Lane& lane, Block* block);           // false likewise
    // While nothing moves, each lane is counted; before lanes go on, they are dealt their room.
    void count(Lane& lane);
    void deal(std::span<Lane* const> lanes);

    // What is live in a private pool; and live again, in this order, once all that is live in it
    // was freed. Throws UsageError where memory that a block had is no longer the pool's.
    struct Checkpointed {
        Address address;
        Bytes size;
        Bytes requested;
        std::int64_t tag;
    };
    std::vector<Checkpointed> checkpoint(PoolId pool) const;
    std::vector<Block*> restore_checkpoint(PoolId pool, std::span<const Checkpointed> blocks);

    // Places a segment as some earlier run left it: its live and pending blocks, ascending; the
    // gaps are cached (or unmapped, where `mapped` says so). Throws BadInput if they do not fit,
    // and UsageError for a cudaMalloc under elastic rules, which have arenas only.
    struct Range {
        Address address;
        Bytes size;
    };
    struct SavedBlock {
        Range range;
        Bytes requested;
        bool pending;
        std::int64_t tag;
    };
    struct SavedSegment {
        Range range;  // of the cudaMalloc, or of the whole arena
        Stream stream;
        PoolId pool;
        bool small;
        bool arena;
        std::vector<Range> mapped;  // arenas: mapped runs, ascending
        std::vector<SavedBlock> blocks;
    };
    std::vector<Block*> restore(const SavedSegment& saved);

    const Settings& settings() const { return settings_; }
    Device& device() { return device_; }
    const Statistics& statistics() const { return statistics_; }
    Bytes reserved() const { return reserved_; }
    void reset_peak();         // every peak becomes its current value
    void reset_accumulated();  // every sum and call count becomes zero

    // True if serving the request would begin by giving memory back to the driver.
    bool would_release(Bytes requested, Stream stream, PoolId pool);
    // The segments that a garbage collection would return now, in order.
    std::vector<Address> collectable() const;
    // What empty_cache() would return of the default pool now, were every event done.
    std::vector<SegmentEvent> releasable() const;
    // True if a free block serves the request as things stand.
    bool serves_from_cache(Bytes requested, Stream stream, PoolId pool);
    // True if the block, once cached, would serve such a request of its own pool.
    bool would_serve(const Block& block, Bytes requested, Stream stream) const;
    // Bytes of the segment that the request would ask of the driver.
    Bytes segment_for(Bytes requested) const {
        return torch_rules::segment_size(settings_, torch_rules::round_size(settings_, requested));
    }
    // Blocks that free_pending left waiting.
    std::size_t held() const { return held_.size(); }

    // For replay, where the record knows what a state that began late does not tell: see
    // following.cpp. Each is false, or null, where the record cannot be right.
    bool release_at(Address address);  // a cached segment, or an arena's chunks around the address
    Block* allocate_whole(Address address, Bytes requested, Stream stream, PoolId pool);
    Block* allocate_new(Bytes requested, Stream stream, PoolId pool);
    void pause_collection(bool paused) { collection_paused_ = paused; }

    // Every block, mapped or pending or live, by ascending address.
    std::vector<BlockView> blocks() const;
    // Where segment events are appended; null to stop.
    void log_to(std::vector<SegmentEvent>* log) { log_ = log; }
    // Where blocks that went back to their pools are appended; null to stop.
    void log_completed_to(std::vector<CompletedFree>* completed) { completed_ = completed; }

    const std::map<PoolId, std::unique_ptr<Pool>>& pools() const { return pools_; }
    // Of each private pool that ever had memory, also of those that are gone.
    const std::map<PoolId, PoolCounter>& private_reserved() const { return private_reserved_; }
    const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
    // Grows with each segment that comes or goes.
    std::uint64_t segment_changes() const { return segment_changes_; }

  private:
    friend void check(const Allocator& allocator);
    friend class LateStart;  // bends what is only guessed of a state

    struct Request {
        Bytes requested;
        Bytes rounded;
        Bytes segment;  // bytes that a new segment would have
        Home* home;
        bool expandable;
        PoolHalf& half() const { return *home->half; }
    };
    struct PendingEvent {
        EventHandle event;
        Block* block;
        std::uint64_t order;  // among all streams
    };

    // A position in an arena for a request that no mapped block serves.
    struct Window {
        Segment* arena = nullptr;
        Address begin = 0;
        Bytes size = 0;
        Bytes missing = 0;  // to be mapped
        Bytes touched = 0;  // whole free pages that it takes, mapped or not
        Bytes range = 0;    // size of the free range around it
        Address end() const { return begin + static_cast<Address>(size); }
    };
    struct FreeRun {
        Segment* arena;
        Address begin;
        Address end;
        bool mapped;
        Bytes size() const { return static_cast<Bytes>(end - begin); }
    };
    // A chunk that lies wholly in free space.
    struct Victim {
        ChunkIndex chunk;
        Home* home;
        std::uint64_t stamp;
        Bytes size;
        Bytes hole;      // size of the cached block around it
        Bytes distance;  // from the window; in other arenas more than any
    };
    enum class Price { move, release, alias, alias_part, wait, never };
    // What one window is filled from.
    struct Supply {
        Home* home;
        Window window;
        Bytes limit;  // on reserved; tightened where the device refuses
        Bytes soft_limit;
        bool may_wait;  // on the host
        bool gathered;  // whether `victims` was filled
        std::vector<Victim> victims;
    };

    // allocator.cpp: the common path
    Home& home_of(PoolHalf& half, Stream stream);
    Request plan(Bytes requested, Stream stream, PoolId pool);
    Block* best_block(const Request& request) const;
    Block* take_free(const Request& request);
    Block* search_harder(Request& request);
    Block* borrow(Request& request);
    Block* hand_out(Block* block, const Request& request);
    void make_live(Block* block, Bytes requested);
    Block* split_front(Block* block, Bytes size);
    Block* grow(const Request& request, bool last_attempt);
    Block* new_segment(const Request& request);
    bool over_limit(const Request& request) const;
    bool collects_garbage() const;
    [[noreturn]] void fail(const Request& request);
    Pool& pool_at(PoolId id) { return id.is_default() ? *default_pool_ : named_pool(id); }
    Pool& named_pool(PoolId id);
    Block* new_block(Segment* segment, Address address, Bytes size);
    std::uint64_t new_block_order() const;  // for a segment's first block
    std::uint64_t part_order(const Block& whole) const;
    Segment* add_segment(Address address, Bytes size, Home& home, Bytes granule);
    void drop_segment(Segment* segment);
    void count_reserved(Home& home, Bytes change);
    void log(Action action, Address address, Bytes size, const Home& home);

    // lanes.cpp
    Block* split_in_place(Home& home, Block* rest, Bytes size);
    void join_in_place(Home& home, Block* block);

    // streams.cpp: free, uses, events
    void start_waiting(Block* block);
    void record_events(Block* block);
    struct Merged {  // with a block that was put back
        std::int64_t neighbours = 0;
        Bytes bytes = 0;
    };
    void make_cached(Block* block);
    Merged put_back(Block* block);
    Bytes merge(Block* block, Block* neighbour);
    void poll_events();
    void wait_for_all_events();
    void wait_for_events(const Pool& pool);
    void retire(PendingEvent pending);
    void resume_deferred();

    // release.cpp: giving memory back
    std::vector<Block*> garbage() const;
    void collect_garbage();
    bool release_oversize(const Request& request);
    void release_cached();
    void release_freeable_pools();
    void release_half(PoolHalf& half);
    void release_in_arena(Block* block);
    void drop_arena(Block* block);
    void release_pool_memory(Pool& pool);
    void release_segment(Block* block);

    // states.cpp: from and to a listing of blocks
    void count_restored(const Segment& segment);

    // checkpoints.cpp
    Block* cached_around(PoolId pool, Address address, Bytes size) const;
    Block* carve(Block* block, const Checkpointed& range);

    // arena.cpp: expandable segments
    Block* grow_arena(const Request& request);
    Block* find_room(const Request& request);
    Block* new_arena(const Request& request);
    bool map(Block* block, Bytes size);
    bool map_chunks(Segment& arena, Address address, Bytes size);
    void unmap_chunks(Segment& arena, Address address, Bytes size);
    void unmap(Block* block);

    // elastic.cpp: where a request goes
    bool is_elastic() const { return settings_.rules == Rules::elastic; }
    Block* allocate_elastic(Request& request);
    Block* grow_elastic(Request& request);
    Block* take_mapped(const Request& request);
    Block* map_window(const Request& request, bool may_wait);
    bool find_windows(const Request& request, Window& fewest_missing, Window& fewest_touched) const;
    bool add_arena(const Request& request);
    Block* fill(const Request& request, const Window& window, bool may_wait);
    std::vector<FreeRun> free_runs(const Home& home) const;
    std::vector<FreeRun> missing_runs(const Request& request, const Window& window,
                                      const Supply& supply) const;
    Block* cut_out(const Window& window);
    std::vector<const OldMapping*> old_mappings_in(const Block& block) const;
    Block* cached_at(const Home& home, Address address, Bytes size) const;
    Block* unmapped_at(const Home& home, Address address) const;
    Block* remap(Block* block, Address begin, Bytes size, BlockState state, std::uint64_t stamp);

    // moves.cpp: where its memory comes from
    Bytes limit_in_force() const;
    Bytes soft_target(Bytes rounded) const;
    bool may_create(const Supply& supply, Bytes size) const;
    bool is_pinned(const Chunk& chunk) const;
    Supply supply_for(const Request& request, const Window& window, bool may_wait);
    void gather_victims(Supply& supply) const;
    void gather_victims(Home& home, const Window& window, std::vector<Victim>& victims) const;
    bool is_releasable(const Victim& victim) const;
    Price price(const Supply& supply, const Victim& victim, Bytes size) const;
    bool suffices(const Supply& supply, Bytes missing) const;
    std::size_t best_victim(const Supply& supply, Bytes size) const;
    Bytes supply_chunk(Supply& supply, Address address, Bytes size);
    ChunkIndex create(Supply& supply, Bytes size);
    Bytes place_new(ChunkIndex chunk, Home& home, Address address);
    Bytes place_idle(ChunkIndex chunk, Home& home, Address address);
    bool map_saved(Segment& arena, const Range& run);
    bool place(ChunkIndex chunk, Home& home, Address address, std::uint64_t stamp);
    void settle_in(ChunkIndex index, Block* block, std::uint64_t stamp);
    void let_go(Home& home, Address address, Bytes size);
    Bytes take(const Victim& victim, Price cost, Home& home, Address address);
    bool alias(const Victim& victim, Home& home, Address address);

    // waits.cpp: when work on free memory is over; giving memory back
    bool is_mark_due(const StreamClock& clock) const;
    void note_free(StreamClock& clock, Block* block);
    const StreamClock::Mark* mark(StreamClock& clock, std::uint64_t stamp);
    void finish_marks(StreamClock& clock, std::uint64_t stamp);
    void wait_until(StreamClock& clock, std::uint64_t stamp);
    void begin_slow_path(const Request& request);
    void drain_old_mappings();
    void wait_for(const Victim& victim);
    bool wait_for_old_mappings();
    bool wait_for_oldest_pending();
    void count_idle(Bytes change);
    void destroy(ChunkIndex chunk);
    void release_idle(ChunkIndex chunk);
    void release_elastic(PoolHalf& half);
    void drop_empty_arenas(const PoolHalf& half);
    void release_all_chunks();

    Settings settings_;
    Device& device_;
    Statistics statistics_;
    torch_rules::TieRule tie_rule_;
    Bytes reserved_ = 0;  // what the limit is compared with: bytes of segments and mapped chunks
    int captures_ = 0;
    bool collection_paused_ = false;
    mutable std::uint64_t next_order_ = 1;
    std::uint64_t next_event_ = 0;

    std::map<PoolId, std::unique_ptr<Pool>> pools_;
    std::map<PoolId, PoolCounter> private_reserved_;
    Pool* default_pool_;
    std::vector<std::unique_ptr<Segment>> segments_;
    std::uint64_t segment_changes_ = 0;
    std::map<Stream, std::deque<PendingEvent>> events_;
    std::vector<Block*> held_;      // pending by the record's word, see free_pending
    std::vector<Block*> deferred_;  // freed during a capture while other streams used them
    std::vector<SegmentEvent>* log_ = nullptr;
    std::vector<CompletedFree>* completed_ = nullptr;
    bool asked_ = false;  // whether events are done, since lanes were dealt to
    ElasticState elastic_;
};

}  // namespace tenure
