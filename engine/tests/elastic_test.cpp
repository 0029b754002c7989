// Elastic rules, step by step: chunk sizes, growth, where a request goes, which chunk it takes, in
// which order it waits, and what is never touched.
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/virtual_device.hpp"
#include "engine/elastic_rules.hpp"
#include "engine/invariants.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/physical_map.hpp"
#include "engine/tests/watched_device.hpp"

using namespace tenure;
using testing::WatchedDevice;

namespace {

constexpr PoolId user_pool{0, 1};

Settings elastic(Bytes limit = unlimited, Bytes chunk = 0) {
    Settings settings;
    settings.rules = Rules::elastic;
    settings.limit = limit;
    settings.chunk_size = chunk;
    settings.device_memory = 8 * GiB;  // chunks of 4 MiB
    return settings;
}

// A device that can do less than others.
class NoAliases final : public VirtualDevice {
  public:
    using VirtualDevice::VirtualDevice;
    bool can_alias() const override { return false; }
};

struct Engine {
    explicit Engine(const Settings& settings, Bytes capacity = unlimited)
        : device(capacity), watched(device), allocator(settings, watched) {
        allocator.log_to(&log);
    }
    Block* allocate(Bytes size, Stream stream = 0, PoolId pool = {}) {
        Block* block = allocator.allocate(size, stream, pool);
        check(allocator);
        return block;
    }
    void free(Block* block) {
        allocator.free(block);
        check(allocator);
    }
    bool fails(Bytes size, Stream stream = 0, PoolId pool = {}) {
        try {
            allocate(size, stream, pool);
        } catch (const OutOfMemory&) {
            check(allocator);
            return true;
        }
        return false;
    }
    const ElasticStatistics& counts() const { return allocator.elastic_statistics(); }

    VirtualDevice device;
    WatchedDevice watched;
    Allocator allocator;
    std::vector<SegmentEvent> log;
};

void test_chunk_sizes() {
    auto size = [](Bytes limit, int divisor = 2000) {
        Settings settings = elastic(limit);
        settings.device_memory = 141 * GiB;
        settings.chunk_divisor = divisor;
        return elastic_rules::chunk_size(settings, false, unlimited);
    };
    CHECK_EQUAL(size(1 * GiB), 2 * MiB);
    CHECK_EQUAL(size(8 * GiB), 4 * MiB);
    CHECK_EQUAL(size(15 * GiB), 6 * MiB);  // 7.68 rounded down to whole pages
    CHECK_EQUAL(size(80 * GiB), 40 * MiB);
    CHECK_EQUAL(size(unlimited), 64 * MiB);
    CHECK_EQUAL(size(500 * GiB), 64 * MiB);  // a limit above the card is none
    CHECK_EQUAL(size(8 * GiB, 500), 16 * MiB);
    CHECK_EQUAL(elastic_rules::chunk_size(elastic(), true, unlimited), 2 * MiB);
    CHECK_EQUAL(elastic_rules::chunk_size(elastic(unlimited, 6 * MiB), false, unlimited), 6 * MiB);
    CHECK_EQUAL(elastic_rules::growth(3 * MiB, 64 * MiB), 20 * MiB);
    CHECK_EQUAL(elastic_rules::growth(41 * MiB, 64 * MiB), 60 * MiB);
    CHECK_EQUAL(elastic_rules::growth(5 * MiB, 4 * MiB), 8 * MiB);
    CHECK(!elastic_rules::is_scarce(95 * MiB, 100 * MiB));
    CHECK(elastic_rules::is_scarce(96 * MiB, 100 * MiB));
    CHECK(!elastic_rules::is_scarce(GiB, unlimited));
}

void test_settings() {
    auto make = [](auto&& change) {
        Settings settings = elastic();
        change(settings);
        VirtualDevice device;
        Allocator allocator(settings, device);
    };
    CHECK_THROWS(make([](Settings& s) { s.chunk_divisor = 0; }), UsageError, "chunk_divisor");
    CHECK_THROWS(make([](Settings& s) { s.chunk_size = MiB; }), UsageError, "2 MiB");
    CHECK_THROWS(make([](Settings& s) { s.soft_limit = 0.5; }), UsageError, "soft_limit");
    Settings torch_only = elastic();
    torch_only.max_split_size = 32 * MiB;
    torch_only.roundup_power2_divisions.fill(4);
    torch_only.torch_version = {2, 13};
    Engine engine(torch_only);
    CHECK_EQUAL(engine.allocate(5 * MiB + 1)->size, 5 * MiB + 512);
    CHECK_EQUAL(engine.allocate(33 * MiB)->size, 33 * MiB);
}

void test_growth() {
    Engine engine(elastic());
    Block* first = engine.allocate(3 * MiB);  // a chunk of 4 MiB
    CHECK_EQUAL(engine.allocator.reserved(), 4 * MiB);
    Block* second = engine.allocate(5 * MiB);  // begins in the rest of the first
    CHECK_EQUAL(second->address, first->end());
    CHECK_EQUAL(engine.allocator.reserved(), 8 * MiB);
    Block* small = engine.allocate(100 * KiB);  // its own arena, in steps of 2 MiB
    CHECK_EQUAL(engine.allocator.reserved(), 10 * MiB);
    CHECK(small->segment != first->segment);
    engine.free(first);
    CHECK(engine.allocate(3 * MiB) == first);
    CHECK_EQUAL(engine.counts().requests_grown, 3);
    CHECK_EQUAL(engine.counts().moves, 0);
    CHECK_EQUAL(engine.counts().creates, 3);
    CHECK_EQUAL(engine.allocator.statistics().num_device_alloc, 3);
    CHECK_EQUAL(engine.log.size(), 3u);
    for (const SegmentEvent& event : engine.log) CHECK(event.action == Action::segment_map);
    CHECK_EQUAL(engine.counts().stall_us, 0.0);
    CHECK_EQUAL(engine.counts().growth_us, 3 * 45.0);
}

// Fewest pages to map, then the smallest range, then the lowest address.
void test_window() {
    Engine engine(elastic(unlimited, 2 * MiB));
    std::vector<Block*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(engine.allocate(4 * MiB));
    const Address base = blocks[0]->address;
    engine.free(blocks[1]);
    engine.free(blocks[7]);  // at the end: 4 MiB mapped, then open
    Block* next = engine.allocate(6 * MiB);
    CHECK_EQUAL(next->address, base + 28 * MiB);  // 2 MiB missing there, 6 elsewhere
    CHECK_EQUAL(engine.allocator.reserved(), 34 * MiB);
    Block* fits = engine.allocate(4 * MiB);
    CHECK_EQUAL(fits->address, base + 4 * MiB);
}

// At the limit a chunk moves out of free space; nothing waits, nothing is given back.
void test_move() {
    Engine engine(elastic(16 * MiB, 2 * MiB));
    engine.device.finish_at_once();
    std::vector<Block*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(engine.allocate(2 * MiB));
    for (const int i : {1, 3, 5}) engine.free(blocks[static_cast<std::size_t>(i)]);
    Block* block = engine.allocate(6 * MiB);
    CHECK_EQUAL(block->address, blocks[7]->end());
    CHECK_EQUAL(engine.counts().moves, 3);
    CHECK_EQUAL(engine.counts().aliased, 0);
    CHECK_EQUAL(engine.counts().host_waits, 0);
    CHECK_EQUAL(engine.counts().creates, 8);
    CHECK_EQUAL(engine.counts().releases, 0);
    CHECK(engine.counts().stall_us >= 3 * 51.0);
    CHECK(engine.counts().stall_us < 3 * 51.0 + 2);
    CHECK_EQUAL(engine.allocator.reserved(), 16 * MiB);
    CHECK_EQUAL(engine.allocator.statistics().num_alloc_retries, 0);
    int unmapped = 0;
    for (const SegmentEvent& event : engine.log) unmapped += event.action == Action::segment_unmap;
    CHECK_EQUAL(unmapped, 3);
    CHECK(engine.fails(2 * MiB));
    CHECK_EQUAL(engine.allocator.statistics().num_ooms, 1);
}

// Nearest in the window's own arena first; elsewhere from the smallest hole.
void test_victims() {
    Engine engine(elastic(24 * MiB, 2 * MiB));
    engine.device.finish_at_once();
    std::vector<Block*> here, there;
    for (int i = 0; i < 6; ++i) here.push_back(engine.allocate(2 * MiB, 0));
    for (int i = 0; i < 6; ++i) there.push_back(engine.allocate(2 * MiB, 1));
    const Address far = here[0]->address, near = here[4]->address;
    for (const std::size_t i : {0u, 4u}) engine.free(here[i]);
    for (const std::size_t i : {0u, 1u, 4u}) engine.free(there[i]);
    const Address hole = there[4]->address;
    engine.log.clear();
    engine.allocate(6 * MiB, 0);
    CHECK_EQUAL(engine.log[0].address, near);
    CHECK_EQUAL(engine.log[2].address, far);
    CHECK_EQUAL(engine.log[4].address, hole);
    CHECK_EQUAL(engine.counts().other_stream, 1);
}

// Exact sizes are mapped again; others are released, and the size that is wanted created.
void test_sizes() {
    Settings settings = elastic(24 * MiB, 4 * MiB);
    Engine engine(settings);
    engine.device.finish_at_once();
    Block* two = engine.allocate(2 * MiB);  // 4 MiB chunks, while memory is plenty
    Block* four = engine.allocate(4 * MiB);
    Block* rest = engine.allocate(10 * MiB);
    Block* last = engine.allocate(8 * MiB);
    CHECK_EQUAL(engine.allocator.reserved(), 24 * MiB);
    engine.free(rest);
    const std::int64_t creates = engine.counts().creates;
    Block* other = engine.allocate(4 * MiB, 1);
    CHECK_EQUAL(engine.counts().creates, creates);
    CHECK_EQUAL(engine.counts().releases, 0);
    CHECK_EQUAL(engine.counts().moves, 1);
    Block* small = engine.allocate(100 * KiB, 1);  // 2 MiB from one of 4 MiB
    CHECK_EQUAL(engine.counts().releases, 1);
    CHECK_EQUAL(engine.counts().creates, creates + 1);
    CHECK_EQUAL(engine.allocator.reserved(), 22 * MiB);
    for (Block* block : {two, four, last, other, small}) engine.free(block);
}

// Work on the freed block still runs, on the same stream: mapped anew at once, unmapped later.
void test_alias() {
    Engine engine(elastic(12 * MiB, 2 * MiB));
    std::vector<Block*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(engine.allocate(2 * MiB));
    const Address first = blocks[0]->address;
    for (const std::size_t i : {0u, 2u}) engine.free(blocks[i]);
    Block* moved = engine.allocate(4 * MiB);
    CHECK_EQUAL(engine.counts().aliased, 2);
    CHECK_EQUAL(engine.counts().unmaps, 0);
    CHECK_EQUAL(engine.counts().host_waits, 0);
    CHECK_EQUAL(engine.counts().stream_waits, 0);
    CHECK_EQUAL(engine.counts().events, 1);
    CHECK_EQUAL(engine.allocator.reserved(), 12 * MiB);
    // The old places hold nothing else until the work on them is over, even where that would need
    // least: one page is missing at either end of the freed block, none at the end of the arena.
    engine.free(blocks[1]);
    engine.free(blocks[4]);
    Block* beyond = engine.allocate(4 * MiB);
    CHECK(beyond->address >= moved->end());
    CHECK_EQUAL(engine.counts().unmaps, 0);
    engine.device.finish(0);
    engine.free(blocks[3]);
    engine.free(blocks[5]);
    Block* last = engine.allocate(4 * MiB);
    CHECK(engine.counts().unmaps >= 4);
    CHECK_EQUAL(last->address, first + 4 * MiB);
}

// Another stream takes memory whose work still runs: it waits on the device, the host does not.
void test_stream_wait() {
    Engine engine(elastic(4 * MiB, 2 * MiB));
    Block* here = engine.allocate(2 * MiB, 1);
    engine.allocate(2 * MiB, 1);
    engine.free(here);
    engine.allocate(2 * MiB, 2);
    CHECK_EQUAL(engine.counts().other_stream, 1);
    CHECK_EQUAL(engine.counts().aliased, 1);
    CHECK_EQUAL(engine.counts().host_waits, 0);
    CHECK_EQUAL(engine.device.stream_waits(), 1);
    CHECK_EQUAL(engine.device.last_stream_wait().waiting, 2u);
    CHECK_EQUAL(engine.device.last_stream_wait().stream, 1u);
}

// Without aliasing the host waits, on that one event; and so it does for a chunk of another size.
void test_host_wait() {
    NoAliases device;
    Allocator allocator(elastic(4 * MiB, 2 * MiB), device);
    Block* here = allocator.allocate(2 * MiB, 1);
    allocator.allocate(2 * MiB, 1);
    allocator.free(here);
    allocator.allocate(2 * MiB, 2);
    check(allocator);
    CHECK_EQUAL(allocator.elastic_statistics().aliased, 0);
    CHECK_EQUAL(allocator.elastic_statistics().host_waits, 1);

    Engine engine(elastic(12 * MiB, 4 * MiB));
    Block* large = engine.allocate(8 * MiB, 1);
    engine.allocate(4 * MiB, 1);
    engine.free(large);
    engine.allocate(100 * KiB, 1);
    CHECK_EQUAL(engine.counts().host_waits, 1);
    CHECK_EQUAL(engine.counts().releases, 1);
}

// A chunk under a pending block stays; its events are waited for when nothing else is left, the
// oldest first and no more of them than needed.
void test_pending() {
    Engine engine(elastic(6 * MiB, 2 * MiB));
    std::vector<Block*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(engine.allocate(2 * MiB, 0));
    for (const std::size_t i : {1u, 0u, 2u}) {
        engine.allocator.record_stream(blocks[i], i == 0 ? 5 : 4);
        engine.free(blocks[i]);
    }
    const Address oldest = blocks[1]->address;
    CHECK_EQUAL(engine.counts().moves, 0);
    Block* block = engine.allocate(2 * MiB, 0);
    CHECK_EQUAL(block->address, oldest);
    CHECK_EQUAL(engine.counts().host_waits, 1);
    CHECK_EQUAL(engine.allocator.statistics().num_alloc_retries, 1);
    CHECK(blocks[0]->state == BlockState::pending);
    CHECK_EQUAL(engine.allocator.statistics().num_sync_all_streams, 0);
}

void test_pins_and_pools() {
    Engine engine(elastic(8 * MiB, 2 * MiB));
    engine.device.finish_at_once();
    engine.allocator.create_pool(user_pool);
    Block* pinned = engine.allocate(2 * MiB);
    engine.allocate(2 * MiB);
    Block* pooled = engine.allocate(2 * MiB, 0, user_pool);
    engine.allocate(2 * MiB, 0, user_pool);
    const Address address = pinned->address;
    engine.allocator.pin(address + 4096, 8192);
    engine.allocator.pin(address, MiB);
    engine.free(pinned);
    engine.free(pooled);
    CHECK(engine.fails(2 * MiB, 1));
    engine.allocator.unpin(address + 4096, 8192);
    CHECK(engine.fails(2 * MiB, 1));
    engine.allocator.empty_cache();
    CHECK_EQUAL(engine.allocator.reserved(), 8 * MiB);
    engine.allocator.unpin(address, MiB);
    engine.allocate(2 * MiB, 1);
    CHECK_EQUAL(engine.counts().moves, 1);
    CHECK_THROWS(engine.allocator.unpin(address, MiB), UsageError, "pinned");
    engine.allocator.release_pool(user_pool);  // nobody holds it: what it has cached goes back
    engine.allocate(2 * MiB, 1);
    CHECK_EQUAL(engine.counts().moves, 1);
    CHECK_EQUAL(engine.counts().releases, 1);
}

void test_borrowing() {
    Engine engine(elastic(4 * MiB, 2 * MiB));
    engine.allocator.create_pool(user_pool);
    engine.allocator.set_use_on_oom(user_pool, true);
    Block* lent = engine.allocate(4 * MiB, 0, user_pool);
    engine.free(lent);
    CHECK(engine.allocate(3 * MiB)->segment->home->half->pool->id == user_pool);
}

// During a capture no event is recorded, asked about or waited for: only what is known to be over
// moves.
void test_capture() {
    Engine engine(elastic(4 * MiB, 2 * MiB));
    Block* here = engine.allocate(2 * MiB, 1);
    engine.allocate(2 * MiB, 1);
    engine.free(here);
    engine.allocator.begin_capture();
    CHECK(engine.fails(2 * MiB, 2));
    CHECK_EQUAL(engine.counts().events, 0);
    engine.allocator.end_capture();
    engine.allocate(2 * MiB, 2);
    CHECK_EQUAL(engine.counts().moves, 1);
}

void test_last_resort() {
    Engine engine(elastic(4 * MiB, 2 * MiB));
    Block* dead = engine.allocate(2 * MiB);
    engine.allocate(2 * MiB);
    int asked = 0;
    engine.allocator.on_last_resort([&] {
        if (++asked > 1) return false;
        engine.allocator.free(dead);
        return true;
    });
    engine.allocate(2 * MiB, 3);
    CHECK_EQUAL(asked, 1);
    CHECK(engine.fails(2 * MiB));
    CHECK_EQUAL(asked, 2);
}

// Above the soft limit chunks move though there is room; where nothing can move, it gives way.
void test_soft_limit() {
    Settings settings = elastic(unlimited, 2 * MiB);
    settings.soft_limit = 1.25;
    Engine engine(settings);
    engine.device.finish_at_once();
    std::vector<Block*> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(engine.allocate(2 * MiB));
    for (const std::size_t i : {1u, 3u, 5u, 7u}) engine.free(blocks[i]);
    engine.allocate(4 * MiB);  // 24 of 25 MiB
    CHECK_EQUAL(engine.counts().moves, 0);
    CHECK_EQUAL(engine.allocator.reserved(), 24 * MiB);
    engine.allocate(4 * MiB);
    CHECK_EQUAL(engine.counts().moves, 2);
    CHECK_EQUAL(engine.allocator.reserved(), 24 * MiB);
    for (const std::size_t i : {0u, 2u, 4u}) engine.free(blocks[i]);
    engine.allocate(10 * MiB, 1);  // up to 30 MiB now
    CHECK_EQUAL(engine.counts().moves, 4);
    CHECK_EQUAL(engine.allocator.reserved(), 30 * MiB);
    settings.soft_limit = 1.0;
    Engine tight(settings);
    tight.allocate(3 * MiB);
    CHECK_EQUAL(tight.allocator.reserved(), 4 * MiB);
}

// The device has less than the limit says: as if the limit were there.
void test_refusal() {
    Engine engine(elastic(unlimited, 2 * MiB), 8 * MiB);
    std::vector<Block*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(engine.allocate(2 * MiB));
    engine.free(blocks[0]);
    engine.free(blocks[2]);
    engine.allocate(4 * MiB);
    CHECK_EQUAL(engine.counts().moves, 2);
    CHECK(engine.fails(2 * MiB));
    CHECK_EQUAL(engine.device.used(), 8 * MiB);
}

// An arena that is full is followed by another; a request beyond any arena fails.
void test_second_arena() {
    Settings settings = elastic(unlimited, 2 * MiB);
    settings.device_memory = 8 * MiB;
    Engine engine(settings);
    for (int i = 0; i < 6; ++i) engine.allocate(4 * MiB);
    CHECK_EQUAL(engine.allocator.segments().size(), 2u);
    CHECK(engine.fails(17 * MiB));
}

// A saved arena comes back with its blocks, its gaps and chunks that can move.
void test_restore() {
    VirtualDevice device;
    Allocator allocator(elastic(12 * MiB, 4 * MiB), device);
    constexpr Address base = 0x40'0000;
    Allocator::SavedSegment saved{{base, 64 * MiB}, 0, {}, false, true, {}, {}};
    saved.mapped = {{base, 6 * MiB}, {base + 8 * MiB, 6 * MiB}};
    saved.blocks = {{{base, 5 * MiB}, 5 * MiB, false, 0}, {{base + 10 * MiB, MiB}, MiB, true, 1}};
    const std::vector<Block*> blocks = allocator.restore(saved);
    CHECK_EQUAL(blocks.size(), 2u);
    check(allocator);
    CHECK_EQUAL(device.used(), 12 * MiB);
    allocator.complete(blocks[1]);
    allocator.free(blocks[0]);
    CHECK_EQUAL(allocator.allocate(7 * MiB, 0)->address, base);  // a chunk moved behind the run
    CHECK_EQUAL(allocator.elastic_statistics().moves, 1);
    CHECK_EQUAL(device.used(), 12 * MiB);
    check(allocator);

    CHECK_THROWS(allocator.restore({}), UsageError, "arenas only");
    saved.mapped = {{base, MiB}};
    saved.blocks = {};
    CHECK_THROWS(allocator.restore(saved), BadInput, "whole pages");
}

void test_empty_cache() {
    Engine engine(elastic(unlimited, 2 * MiB));
    std::vector<Block*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(engine.allocate(3 * MiB));
    for (const std::size_t i : {0u, 1u, 3u, 4u}) engine.free(blocks[i]);
    engine.log.clear();
    engine.allocator.empty_cache();
    check(engine.allocator);
    CHECK_EQUAL(engine.allocator.reserved(), 4 * MiB);  // two pages under the middle block
    CHECK_EQUAL(engine.counts().host_waits, 1);
    Bytes unmapped = 0;
    for (const SegmentEvent& event : engine.log) unmapped += event.size;
    CHECK_EQUAL(unmapped, 12 * MiB);
    engine.free(blocks[2]);
    engine.allocator.empty_cache();
    CHECK_EQUAL(engine.device.used(), 0);
    CHECK(engine.allocator.segments().empty());
    engine.allocate(3 * MiB);
}

// With the order of work watched, where random runs hardly come.
struct Ordered {
    explicit Ordered(const Settings& settings) : map(memory), device(map) {
        allocator = std::make_unique<Allocator>(settings, device);
    }
    Block* allocate(Bytes size, Stream stream) {
        Block* block = allocator->allocate(size, stream);
        map.handed_out(block->address, block->size, stream);
        check(*allocator);
        return block;
    }
    void free(Block* block) {
        map.freed(block->address, block->size, block->segment->home->stream);
        allocator->free(block);
        check(*allocator);
    }
    const ElasticStatistics& counts() const { return allocator->elastic_statistics(); }

    VirtualDevice memory;
    testing::PhysicalMap map;
    WatchedDevice device;
    std::unique_ptr<Allocator> allocator;
};

// A chunk that moved for a request which then failed still carries the work of its former place.
void test_order_after_failure() {
    Ordered engine(elastic(8 * MiB, 2 * MiB));
    std::vector<Block*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(engine.allocate(2 * MiB, 1));
    engine.free(blocks[0]);
    engine.free(blocks[2]);
    engine.device.fail_from(engine.device.calls() + 3, 100);  // event, map, and no second map
    CHECK_THROWS(engine.allocator->allocate(4 * MiB, 1), OutOfMemory, "");
    engine.device.fail_from(-1, 0);
    CHECK(engine.counts().aliased >= 1);
    Block* first = engine.allocate(2 * MiB, 2);
    Block* second = engine.allocate(2 * MiB, 3);
    for (Block* block : {first, second, blocks[1], blocks[3]}) engine.free(block);
}

}  // namespace

int main() {
    test_chunk_sizes();
    test_settings();
    test_growth();
    test_window();
    test_move();
    test_victims();
    test_sizes();
    test_alias();
    test_stream_wait();
    test_host_wait();
    test_pending();
    test_pins_and_pools();
    test_borrowing();
    test_capture();
    test_last_resort();
    test_soft_limit();
    test_refusal();
    test_second_arena();
    test_restore();
    test_empty_cache();
    test_order_after_failure();
    return testing::result();
}
