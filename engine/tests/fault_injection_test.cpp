// Every call to the device fails once, and from each call on all the rest: the allocator stays
// valid, a request is served or gets OutOfMemory, what follows runs, and nothing leaks.
#include <set>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/virtual_device.hpp"
#include "engine/invariants.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/watched_device.hpp"

using namespace tenure;
using testing::WatchedDevice;

namespace {

constexpr PoolId user_pool{0, 1};
constexpr PoolId graph_pool{1, 0};

// One run of the scenario; every step is followed by a check of all invariants.
class Run {
  public:
    Run(const Settings& settings, Bytes capacity)
        : virtual_device(capacity), device(virtual_device), settings_(settings) {}

    void everything() {
        Allocator allocator(settings_, device);
        allocator_ = &allocator;
        training_step();
        two_streams();
        private_pools();
        squeeze();
        empty();
        training_step();
        check(allocator);
    }

    VirtualDevice virtual_device;
    WatchedDevice device;
    int refused = 0;  // requests that got OutOfMemory

  private:
    Block* allocate(Bytes size, Stream stream = 0, PoolId pool = {}) {
        Block* block = nullptr;
        try {
            block = allocator_->allocate(size, stream, pool);
            CHECK(block->state == BlockState::live);
            CHECK(block->size >= size);
        } catch (const OutOfMemory& error) {
            ++refused;
            CHECK_EQUAL(error.requested, size);
        }
        check(*allocator_);
        return block;
    }
    void free(Block* block) {
        if (!block) return;
        allocator_->free(block);
        check(*allocator_);
    }
    void use_elsewhere(Block* block, Stream stream) {
        if (block) allocator_->record_stream(block, stream);
    }
    void empty() {
        allocator_->empty_cache();
        check(*allocator_);
    }

    void training_step() {
        std::vector<Block*> kept;
        for (const Bytes size : {600 * KiB, 3 * MiB, 24 * MiB, 5 * MiB, 700 * KiB, 41 * MiB})
            kept.push_back(allocate(size));
        free(kept[1]);
        free(kept[2]);
        kept[1] = allocate(18 * MiB);
        kept[2] = allocate(7 * MiB);
        for (Block* block : kept) free(block);
    }

    void two_streams() {
        Block* first = allocate(30 * MiB, 1);
        Block* second = allocate(6 * MiB, 1);
        use_elsewhere(first, 2);
        use_elsewhere(first, 3);
        use_elsewhere(second, 2);
        free(first);
        free(second);
        Block* third = allocate(30 * MiB, 1);
        virtual_device.finish(2);
        Block* fourth = allocate(6 * MiB, 1);
        virtual_device.finish(3);
        allocator_->begin_capture();
        use_elsewhere(third, 3);
        free(third);
        allocator_->end_capture();
        free(allocate(2 * MiB, 3));
        free(fourth);
    }

    void private_pools() {
        allocator_->create_pool(user_pool);
        allocator_->create_pool(graph_pool);
        allocator_->set_use_on_oom(user_pool, true);
        Block* lent = allocate(50 * MiB, 0, user_pool);
        allocator_->begin_capture();
        Block* captured = allocate(12 * MiB, 0, graph_pool);
        free(allocate(900 * KiB, 0, graph_pool));
        allocator_->end_capture();
        free(lent);
        free(allocate(50 * MiB));
        free(captured);
        allocator_->release_pool(graph_pool);
        allocator_->release_pool(user_pool);
        allocator_->empty_cache(user_pool);
        check(*allocator_);
    }

    // Against the limit: garbage collection, oversize blocks, the retry, a pending block in the
    // way.
    void squeeze() {
        std::vector<Block*> small;
        for (int i = 0; i < 3; ++i) small.push_back(allocate(20 * MiB));
        Block* large = allocate(130 * MiB);
        free(large);
        large = allocate(180 * MiB);
        Block* pending = allocate(22 * MiB);
        use_elsewhere(pending, 7);
        free(small[1]);
        free(pending);
        Block* last = allocate(90 * MiB);
        allocate(GiB);
        for (Block* block : {small[0], small[2], large, last}) free(block);
    }

    Settings settings_;
    Allocator* allocator_ = nullptr;
};

std::vector<Settings> some_settings() {
    Settings plain;
    Settings arenas;
    arenas.expandable_segments = true;
    arenas.device_memory = GiB;
    Settings oversize;
    oversize.max_split_size = 64 * MiB;
    oversize.limit = 300 * MiB;
    Settings collecting;
    collecting.garbage_collection_threshold = 0.5;
    collecting.limit = 280 * MiB;
    collecting.torch_version = {2, 12};
    Settings all = arenas;
    all.max_split_size = 64 * MiB;
    all.garbage_collection_threshold = 0.6;
    all.limit = 320 * MiB;
    all.torch_version = {2, 13};
    return {plain, arenas, oversize, collecting, all};
}

void test_one_failure(const Settings& settings, Bytes capacity, std::int64_t call,
                      std::int64_t how_many, std::int64_t& failed_calls) {
    Run run(settings, capacity);
    run.device.fail_from(call, how_many);
    try {
        run.everything();
    } catch (const std::exception& error) {
        testing::failed(__FILE__, __LINE__,
                        "failing call " + std::to_string(call) + ": " + error.what());
    }
    failed_calls += run.device.failures();
    CHECK(run.device.is_clean());
    CHECK_EQUAL(run.device.used(), 0);
    CHECK_EQUAL(run.virtual_device.used(), 0);
}

void test_every_call(const Settings& settings, Bytes capacity) {
    Run undisturbed(settings, capacity);
    undisturbed.everything();
    CHECK((undisturbed.refused > 0) == (capacity != unlimited || settings.limit != unlimited));
    CHECK(undisturbed.device.is_clean());
    const std::int64_t calls = undisturbed.device.calls();
    CHECK(calls > 20);
    std::int64_t failed_calls = 0;
    for (std::int64_t call = 1; call <= calls; ++call)
        for (const std::int64_t how_many : {std::int64_t{1}, std::int64_t{3}, calls * 100})
            test_one_failure(settings, capacity, call, how_many, failed_calls);
    CHECK(failed_calls >= 3 * calls);
}

// A device without events: the wait happens at the free, and nothing stays pending.
void test_no_event_to_be_had() {
    VirtualDevice virtual_device;
    WatchedDevice device(virtual_device);
    Allocator allocator(Settings{}, device);
    Block* block = allocator.allocate(30 * MiB, 0);
    allocator.record_stream(block, 1);
    allocator.record_stream(block, 2);
    device.fail_from(device.calls() + 1, 1);
    allocator.free(block);  // one event of two
    check(allocator);
    CHECK_EQUAL(allocator.statistics().active.all.current, 1);
    virtual_device.finish(2);
    CHECK(allocator.allocate(30 * MiB, 0) == block);
    allocator.record_stream(block, 1);
    device.fail_from(device.calls() + 1, 1);
    allocator.free(block);
    check(allocator);
    CHECK(block->state == BlockState::cached);
    CHECK_EQUAL(allocator.statistics().active.all.current, 0);
}

}  // namespace

int main() {
    for (const Settings& settings : some_settings())
        for (const Bytes capacity : {unlimited, 400 * MiB}) test_every_call(settings, capacity);
    test_no_event_to_be_had();
    return testing::result();
}
