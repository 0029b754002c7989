// Tiny traces through the replay: held against a record, and under other settings.
#include "engine/replay.hpp"

#include <random>

#include "engine/tests/check.hpp"

using namespace tenure;

namespace {

constexpr Bytes nothing = 0;

// Writes a trace event by event, as PyTorch would record it.
class Tape {
  public:
    std::int64_t alloc(Bytes size, Address address = 0, Stream stream = 0, int pool = 0) {
        const std::int64_t number = allocations_++;
        add(Action::alloc, address, size, stream, pool, number);
        return number;
    }
    void free(std::int64_t number) {
        free_requested(number);
        free_completed(number);
    }
    void free_requested(std::int64_t number) { end(Action::free_requested, number); }
    void free_completed(std::int64_t number) { end(Action::free_completed, number); }
    void segment(Action action, Address address, Bytes size, Stream stream = 0) {
        add(action, address, size, stream, 0, -1);
    }
    void oom(Bytes size, Stream stream = 0) { add(Action::oom, 0, size, stream, 0, -1); }
    std::size_t length() const { return action_.size(); }

    TraceColumns columns() const {
        return {action_, address_, size_,        stream_, pool_,  allocation_,
                pools_,  {},       allocations_, {},      nothing};
    }
    ReplayResult compare(const Settings& settings = {}) const {
        return replay(columns(), settings, {}, {});
    }
    ReplayResult what_if(const Settings& settings, ReplayOptions options = {},
                         const std::vector<Call>& calls = {}) const {
        options.compare = false;
        return replay(columns(), settings, options, calls);
    }
    void name_pool(PoolId pool) { pools_.push_back(pool); }

  private:
    void add(Action action, Address address, Bytes size, Stream stream, int pool,
             std::int64_t number) {
        action_.push_back(static_cast<std::uint8_t>(action));
        address_.push_back(address);
        size_.push_back(size);
        stream_.push_back(stream);
        pool_.push_back(pool);
        allocation_.push_back(number);
    }
    void end(Action action, std::int64_t number) {
        for (std::size_t i = 0; i < action_.size(); ++i)
            if (allocation_[i] == number)
                return add(action, address_[i], size_[i], stream_[i], pool_[i], number);
    }

    std::vector<std::uint8_t> action_;
    std::vector<Address> address_;
    std::vector<Bytes> size_;
    std::vector<Stream> stream_;
    std::vector<std::int32_t> pool_;
    std::vector<std::int64_t> allocation_;
    std::vector<PoolId> pools_{PoolId{}};
    std::int64_t allocations_ = 0;
};

void check_exact(const ReplayResult& result) {
    CHECK_EQUAL(result.address_mismatches, 0);
    CHECK_EQUAL(result.segment_mismatches, 0);
    CHECK_EQUAL(result.first_divergence.event, -1);
    if (result.first_divergence.event >= 0) std::puts(result.first_divergence.what.c_str());
}

Settings limited(Bytes limit) {
    Settings settings;
    settings.limit = limit;
    return settings;
}

constexpr Address base = 0x7f00'0000'0000;

void test_exact_replay() {
    Tape tape;
    tape.segment(Action::segment_alloc, base, 2 * MiB);
    const auto first = tape.alloc(1000, base);
    const auto second = tape.alloc(3000, base + 1024);
    tape.free(first);
    tape.alloc(400, base);
    tape.segment(Action::segment_alloc, base + GiB, 20 * MiB);
    tape.alloc(5 * MiB, base + GiB);
    tape.free(second);
    const ReplayResult result = tape.compare();
    check_exact(result);
    CHECK_EQUAL(result.events, static_cast<std::int64_t>(tape.length()));
    CHECK_EQUAL(result.requested.bytes, 5 * MiB + 3000 + 400);
    CHECK_EQUAL(result.allocated.bytes, 5 * MiB + 3072 + 512);
    CHECK_EQUAL(result.reserved.bytes, 22 * MiB);
    CHECK_EQUAL(result.reserved.event, 7);  // the request behind the second segment
    CHECK_EQUAL(result.statistics.segment.all.current, 2);
    CHECK_EQUAL(result.blocks.size(), 4u);
}

void test_divergences_are_named() {
    Tape wrong_address;
    wrong_address.segment(Action::segment_alloc, base, 2 * MiB);
    wrong_address.alloc(1000, base);
    wrong_address.alloc(1000, base + 4096);
    const ReplayResult address = wrong_address.compare();
    CHECK_EQUAL(address.address_mismatches, 1);
    CHECK_EQUAL(address.first_divergence.event, 2);

    Tape wrong_segment;
    wrong_segment.segment(Action::segment_alloc, base, 4 * MiB);
    wrong_segment.alloc(1000, base);
    const ReplayResult segment = wrong_segment.compare();
    CHECK(segment.segment_mismatches > 0);
    CHECK(segment.first_divergence.event >= 0);

    Tape no_segment;  // the record serves from a cache that the rules do not have
    no_segment.alloc(1000, base);
    CHECK_EQUAL(no_segment.compare().segment_mismatches, 1);
}

void test_calls_without_an_event_are_inferred() {
    Tape tape;
    tape.segment(Action::segment_alloc, base, 30 * MiB);
    tape.free(tape.alloc(30 * MiB, base));
    const auto released = static_cast<std::int64_t>(tape.length());
    tape.segment(Action::segment_free, base, 30 * MiB);
    tape.segment(Action::snapshot, 0, 0);  // no request follows that could have caused it
    tape.segment(Action::segment_alloc, base, 2 * MiB);
    tape.alloc(1000, base);
    const ReplayResult result = tape.compare();
    check_exact(result);
    CHECK_EQUAL(result.calls.size(), 1u);
    CHECK_EQUAL(result.calls.at(0).event, released);
    CHECK(result.calls.at(0).pool.is_default());
    const ReplayResult replayed = tape.what_if({}, {}, result.calls);
    CHECK_EQUAL(replayed.statistics.reserved_bytes.all.current, 2 * MiB);
    CHECK_EQUAL(tape.what_if({}).statistics.reserved_bytes.all.current, 32 * MiB);
}

void test_retry_at_the_limit() {
    Tape tape;
    tape.segment(Action::segment_alloc, base, 30 * MiB);
    tape.free(tape.alloc(30 * MiB, base));
    tape.segment(Action::segment_free, base, 30 * MiB);
    tape.segment(Action::segment_alloc, base, 40 * MiB);
    tape.alloc(40 * MiB, base);
    const ReplayResult result = tape.compare(limited(50 * MiB));
    check_exact(result);
    CHECK(result.calls.empty());
    CHECK_EQUAL(result.retries.size(), 1u);
    CHECK_EQUAL(result.statistics.num_alloc_retries, 1);
    CHECK_EQUAL(result.first_oom.event, -1);
}

void test_smallest_refused_bounds_an_unknown_limit() {
    Tape tape;
    tape.segment(Action::segment_alloc, base, 30 * MiB);
    const auto first = tape.alloc(30 * MiB, base);
    tape.segment(Action::segment_alloc, base + GiB, 30 * MiB);
    tape.alloc(30 * MiB, base + GiB);
    tape.free(first);
    tape.segment(Action::segment_free, base, 30 * MiB);
    tape.segment(Action::segment_alloc, base, 40 * MiB);
    tape.alloc(40 * MiB, base);
    const ReplayResult result = tape.compare();
    check_exact(result);
    CHECK(result.inferred_refusals > 0);
    CHECK_EQUAL(result.largest_served, 70 * MiB);
    CHECK_EQUAL(result.smallest_refused, 100 * MiB);
}

// pytorch#189504: the retry waits for the events of a block that fits, and does not look again.
void test_out_of_memory_with_a_fitting_block(bool at_once) {
    const Bytes size = 120 * MiB;
    Tape tape;
    tape.segment(Action::segment_alloc, base - GiB, 2 * MiB);
    const auto small = tape.alloc(2000, base - GiB);
    tape.alloc(2000, base - GiB + 2048);
    tape.segment(Action::segment_alloc, base, 2 * size);
    const auto whole = tape.alloc(2 * size, base);
    tape.free(whole);
    const auto pending = tape.alloc(size, base);
    tape.alloc(size, base + static_cast<Address>(size));  // keeps the segment from being returned
    tape.free_requested(pending);                         // another stream still uses it
    if (!at_once) tape.free(small);
    tape.free_completed(pending);  // seen by the retry's own wait
    const auto failed = static_cast<std::int64_t>(tape.length());
    tape.oom(size);
    tape.alloc(size, base);  // the same request, once more
    const Settings settings = limited(2 * size + 2 * MiB);
    for (const ReplayResult& result :
         {tape.compare(settings), tape.compare(), tape.what_if(settings)}) {
        CHECK_EQUAL(result.first_oom.event, failed);
        CHECK_EQUAL(result.first_oom.requested, size);
        CHECK_EQUAL(result.first_oom.reserved, 2 * size + 2 * MiB);
        CHECK(result.first_oom.pending_would_fit);
    }
    check_exact(tape.compare(settings));
    check_exact(tape.compare());
}

void test_an_honest_out_of_memory() {
    Tape tape;
    tape.segment(Action::segment_alloc, base, 30 * MiB);
    tape.alloc(30 * MiB, base);
    tape.oom(40 * MiB);
    const ReplayResult result = tape.compare(limited(64 * MiB));
    check_exact(result);
    CHECK_EQUAL(result.first_oom.event, 2);
    CHECK_EQUAL(result.first_oom.segment, 40 * MiB);
    CHECK(!result.first_oom.pending_would_fit);
    CHECK_EQUAL(result.statistics.num_ooms, 1);
    const ReplayResult beside_others = tape.compare();  // no limit: then the device was full
    check_exact(beside_others);
    CHECK_EQUAL(beside_others.largest_served, 30 * MiB);
    CHECK_EQUAL(beside_others.smallest_refused, 70 * MiB);
    ReplayOptions stop;
    stop.stop_at_oom = true;
    CHECK_EQUAL(tape.what_if(limited(20 * MiB), stop).first_oom.event, 1);
}

// pytorch#193400: a small block that stays behind each pair of large ones, and max_split_size keeps
// the gap before it from being used again. The reporter's own figures, every 20 cycles.
void test_max_split_size_with_arenas_grows_without_bound() {
    Tape tape;
    tape.alloc(64 * MiB);
    std::vector<std::size_t> cycle_ends;
    for (int cycle = 0; cycle <= 100; ++cycle) {
        const auto a = tape.alloc(91 * MiB);
        const auto b = tape.alloc(45 * MiB + 512 * KiB);
        tape.alloc(2 * MiB);
        tape.free(a);
        tape.free(b);
        cycle_ends.push_back(tape.length() - 1);
    }
    Settings both;
    both.torch_version = {2, 12};
    both.expandable_segments = true;
    both.max_split_size = 128 * MiB;
    ReplayOptions options;
    options.timeline = true;
    const Timeline grown = tape.what_if(both, options).timeline;
    const Bytes published[6][2] = {{66, 220},   {106, 2980},  {146, 5760},
                                   {186, 8520}, {226, 11300}, {266, 14060}};  // MiB
    for (std::size_t i = 0; i < 6; ++i) {
        CHECK_EQUAL(grown.allocated.at(cycle_ends[20 * i]), published[i][0] * MiB);
        CHECK_EQUAL(grown.reserved.at(cycle_ends[20 * i]), published[i][1] * MiB);
    }
    Settings arenas_only = both;
    arenas_only.max_split_size = unlimited;
    Settings split_only = both;
    split_only.expandable_segments = false;
    for (const Settings& one : {arenas_only, split_only, Settings{}})
        CHECK(tape.what_if(one).reserved.bytes < 500 * MiB);
}

// A graph's pool goes back to the driver after its owner let go: two calls, neither recorded.
void test_the_end_of_a_private_pool_is_inferred() {
    const PoolId graph{1, 0};
    Tape tape;
    tape.name_pool(graph);
    tape.segment(Action::segment_alloc, base, 30 * MiB);
    tape.free(tape.alloc(30 * MiB, base, 0, 1));
    tape.alloc(600, base + GiB);
    Tape with_segment;  // the same with the default pool's segment in front of its request
    with_segment.name_pool(graph);
    with_segment.segment(Action::segment_alloc, base, 30 * MiB);
    with_segment.free(with_segment.alloc(30 * MiB, base, 0, 1));
    with_segment.segment(Action::segment_alloc, base + GiB, 2 * MiB);
    with_segment.alloc(600, base + GiB);
    const auto released = static_cast<std::int64_t>(with_segment.length());
    with_segment.segment(Action::segment_free, base, 30 * MiB);
    CHECK_EQUAL(tape.compare().segment_mismatches, 1);
    const ReplayResult result = with_segment.compare();
    check_exact(result);
    bool let_go = false;
    for (const Call& call : result.calls)
        let_go |= call.release_pool && call.pool == graph && call.event == released;
    CHECK(let_go);
}

void test_until_and_timeline() {
    Tape tape;
    tape.free(tape.alloc(1000));
    tape.alloc(3 * MiB);
    ReplayOptions options;
    options.until = 1;
    options.timeline = true;
    const ReplayResult part = tape.what_if({}, options);
    CHECK_EQUAL(part.events, 1);
    CHECK_EQUAL(part.timeline.requested.size(), 1u);
    CHECK_EQUAL(part.statistics.requested_bytes.all.current, 1000);
    options.until = -1;
    const ReplayResult all = tape.what_if({}, options);
    CHECK_EQUAL(all.timeline.reserved.size(), tape.length());
    CHECK_EQUAL(all.timeline.reserved.back(), 22 * MiB);
    CHECK_EQUAL(all.timeline.requested.back(), 3 * MiB);
    CHECK_EQUAL(all.timeline.requested.at(1), 0);
}

// A process under elastic rules, with its record.
class ElasticProcess {
  public:
    explicit ElasticProcess(const Settings& settings) : allocator_(settings, device_) {
        allocator_.log_to(&log_);
    }
    std::int64_t alloc(Bytes size, Stream stream = 0) {
        Block* block = allocator_.allocate(size, stream);
        write_log();
        blocks_.push_back(block);
        return tape.alloc(size, block->address, stream);
    }
    void free(std::int64_t number) {
        allocator_.free(blocks_[static_cast<std::size_t>(number)]);
        tape.free(number);
    }
    void empty_cache() {
        allocator_.empty_cache();
        write_log();
    }
    std::int64_t moves() const { return allocator_.elastic_statistics().moves; }

    Tape tape;

  private:
    void write_log() {
        for (const SegmentEvent& event : log_)
            tape.segment(event.action, event.address, event.size, event.stream);
        log_.clear();
    }
    VirtualDevice device_;
    Allocator allocator_;
    std::vector<SegmentEvent> log_;
    std::vector<Block*> blocks_;
};

Settings elastic(Bytes limit) {
    Settings settings = limited(limit);
    settings.rules = Rules::elastic;
    settings.chunk_size = 2 * MiB;
    return settings;
}

// Chunks that move look like releases, but are none; an empty_cache() is one.
void test_elastic_recordings() {
    ElasticProcess process(elastic(12 * MiB));
    std::vector<std::int64_t> numbers;
    for (int i = 0; i < 6; ++i) numbers.push_back(process.alloc(2 * MiB));
    process.free(numbers[0]);
    process.free(numbers[2]);
    const std::int64_t moved = process.alloc(4 * MiB);
    process.free(numbers[4]);
    process.alloc(2 * MiB, 7);
    CHECK_EQUAL(process.moves(), 3);
    process.free(moved);
    process.free(numbers[3]);
    process.empty_cache();
    process.alloc(3 * MiB);
    const ReplayResult again = process.tape.compare(elastic(12 * MiB));
    CHECK_EQUAL(again.address_mismatches, 0);
    CHECK_EQUAL(again.segment_mismatches, 0);
    CHECK_EQUAL(again.elastic.moves, 3);
    CHECK_EQUAL(again.calls.size(), 1u);
    CHECK_EQUAL(again.inferred_refusals, 0);
    // The limit may be the driver's own: others share the device.
    const ReplayResult unnamed = process.tape.compare(elastic(unlimited));
    CHECK_EQUAL(unnamed.address_mismatches, 0);
    CHECK_EQUAL(unnamed.segment_mismatches, 0);
    CHECK_EQUAL(unnamed.elastic.moves, 3);
    CHECK_EQUAL(unnamed.calls.size(), 1u);
    CHECK_EQUAL(unnamed.largest_served, 12 * MiB);
}

// Events that no allocator could have written: they may come from a damaged file. The replay ends,
// with whatever result, and touches no memory that is not its own.
void test_nonsense_ends() {
    constexpr std::size_t length = 400;
    constexpr std::int64_t allocations = 40;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        std::mt19937_64 random(seed);
        std::vector<std::uint8_t> action(length);
        std::vector<Address> address(length);
        std::vector<Bytes> size(length);
        std::vector<Stream> stream(length);
        std::vector<std::int32_t> pool(length);
        std::vector<std::int64_t> allocation(length);
        for (std::size_t i = 0; i < length; ++i) {
            action[i] = static_cast<std::uint8_t>(random() % 9);
            address[i] = base + 512 * (random() % 64) * (random() % 64);
            size[i] = 1 + static_cast<Bytes>(random() % (64 * MiB) >> random() % 20);
            stream[i] = random() % 2;
            pool[i] = static_cast<std::int32_t>(random() % 2);
            allocation[i] = static_cast<std::int64_t>(random() % allocations);
        }
        const TraceColumns trace{
            action, address,     size, stream, pool, allocation, {PoolId{}, {0, 1}},
            {},     allocations, {},   nothing};
        Settings arenas;
        arenas.expandable_segments = true;
        arenas.device_memory = GiB;
        ReplayOptions options;
        options.compare = false;
        for (const Settings& settings :
             {Settings{}, limited(100 * MiB), arenas, elastic(100 * MiB), elastic(unlimited)}) {
            const ReplayResult compared = replay(trace, settings, {}, {});
            CHECK(compared.first_divergence.event >= 0);
            replay(trace, settings, options, {});
        }
    }
}

}  // namespace

int main() {
    test_exact_replay();
    test_divergences_are_named();
    test_calls_without_an_event_are_inferred();
    test_retry_at_the_limit();
    test_smallest_refused_bounds_an_unknown_limit();
    test_out_of_memory_with_a_fitting_block(true);
    test_out_of_memory_with_a_fitting_block(false);
    test_an_honest_out_of_memory();
    test_max_split_size_with_arenas_grows_without_bound();
    test_the_end_of_a_private_pool_is_inferred();
    test_until_and_timeline();
    test_elastic_recordings();
    test_nonsense_ends();
    return testing::result();
}
