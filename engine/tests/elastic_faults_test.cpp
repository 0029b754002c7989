// Under elastic rules every call to the device is refused in turn, once, three times, and from
// there on: the allocator stays valid, a request is served or gets OutOfMemory, nothing leaks, and
// no two uses of a byte meet.
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/virtual_device.hpp"
#include "engine/invariants.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/physical_map.hpp"
#include "engine/tests/watched_device.hpp"

using namespace tenure;
using testing::PhysicalMap;
using testing::WatchedDevice;

namespace {

constexpr PoolId user_pool{0, 1};

struct Setup {
    Settings settings;
    Bytes capacity;
    bool can_alias;
};

// One run of the scenario; every step is followed by a check of all invariants.
class Run {
  public:
    explicit Run(const Setup& setup)
        : memory_(setup.capacity), map(memory_, setup.can_alias), device(map), setup_(setup) {}

    void everything() {
        allocator_ = std::make_unique<Allocator>(setup_.settings, device);
        Allocator& allocator = *allocator_;
        allocator.create_pool(user_pool);
        steps_of_changing_size();
        hand_over_between_streams();
        pending_blocks();
        allocator.empty_cache();
        check(allocator);
        steps_of_changing_size();
        for (Held& held : live_) release(held);
        allocator.release_pool(user_pool);
        allocator.empty_cache();
        check(allocator);
        CHECK_EQUAL(allocator.reserved(), device.used());
        allocator_.reset();
    }

  private:
    struct Held {
        Block* block = nullptr;
        Address address = 0;
        Bytes size = 0;
        Stream stream = 0;
    };

    std::size_t allocate(Bytes size, Stream stream = 0, PoolId pool = {}) {
        Held held;
        try {
            Block* block = allocator_->allocate(size, stream, pool);
            map.handed_out(block->address, block->size, stream);
            held = {block, block->address, block->size, stream};
        } catch (const OutOfMemory&) {
            ++refused;
        }
        check(*allocator_);
        live_.push_back(held);
        return live_.size() - 1;
    }
    void release(Held& held) {
        if (!held.block) return;
        map.freed(held.address, held.size, held.stream);
        allocator_->free(held.block);
        held.block = nullptr;
        check(*allocator_);
    }
    void free(std::size_t i) { release(live_[i]); }
    void use(std::size_t i, Stream stream) {
        if (!live_[i].block) return;
        map.used(live_[i].address, live_[i].size, stream);
        allocator_->record_stream(live_[i].block, stream);
    }

    void steps_of_changing_size() {
        for (const Bytes unit : {3 * MiB, 5 * MiB, 4 * MiB, 7 * MiB}) {
            std::vector<std::size_t> step;
            for (int i = 0; i < 5; ++i) {
                step.push_back(allocate(unit));
                allocate(300 * KiB);
            }
            free(step[1]);
            free(step[3]);
            step.push_back(allocate(2 * unit));
            for (const std::size_t i : step) free(i);
        }
    }
    void hand_over_between_streams() {
        for (const Stream stream : {1u, 2u, 1u, 3u}) {
            const std::size_t first = allocate(14 * MiB, stream);
            const std::size_t second = allocate(9 * MiB, stream);
            free(first);
            free(second);
        }
        map.finish(1);
        const std::size_t pooled = allocate(6 * MiB, 1, user_pool);
        free(allocate(12 * MiB, 2));
        free(pooled);
    }
    void pending_blocks() {
        const std::size_t first = allocate(8 * MiB, 1);
        const std::size_t second = allocate(6 * MiB, 1);
        use(first, 2);
        use(second, 3);
        free(first);
        free(second);
        free(allocate(20 * MiB, 1));
        allocator_->begin_capture();
        free(allocate(10 * MiB, 2));
        allocator_->end_capture();
        free(allocate(16 * MiB, 2));
    }

    VirtualDevice memory_;

  public:
    PhysicalMap map;
    WatchedDevice device;
    int refused = 0;

  private:
    Setup setup_;
    std::unique_ptr<Allocator> allocator_;
    std::vector<Held> live_;
};

std::vector<Setup> setups() {
    Settings limited;
    limited.rules = Rules::elastic;
    limited.device_memory = GiB;
    limited.limit = 44 * MiB;
    Settings larger_chunks = limited;
    larger_chunks.chunk_size = 6 * MiB;
    Settings open = limited;
    open.limit = unlimited;
    Settings soft = open;
    soft.soft_limit = 1.05;
    std::vector<Setup> all;
    for (const bool can_alias : {true, false}) {
        for (const Settings& settings : {limited, larger_chunks})
            all.push_back({settings, unlimited, can_alias});
        all.push_back({open, 44 * MiB, can_alias});
        all.push_back({soft, unlimited, can_alias});
    }
    return all;
}

void test_one_failure(const Setup& setup, std::int64_t call, std::int64_t how_many,
                      std::int64_t& failed_calls) {
    auto run = std::make_unique<Run>(setup);
    run->device.fail_from(call, how_many);
    try {
        run->everything();
    } catch (const std::exception& error) {
        testing::failed(__FILE__, __LINE__,
                        "failing call " + std::to_string(call) + ": " + error.what());
        (void)run.release();  // in no state to be taken down
        return;
    }
    failed_calls += run->device.failures();
    CHECK(run->device.is_clean());
    CHECK_EQUAL(run->device.used(), 0);
}

void test_every_call(const Setup& setup) {
    Run undisturbed(setup);
    undisturbed.everything();
    CHECK(undisturbed.device.is_clean());
    const std::int64_t calls = undisturbed.device.calls();
    CHECK(calls > 50);
    std::int64_t failed_calls = 0;
    for (std::int64_t call = 1; call <= calls; ++call)
        for (const std::int64_t how_many : {std::int64_t{1}, std::int64_t{3}, calls * 100})
            test_one_failure(setup, call, how_many, failed_calls);
    CHECK(failed_calls >= 3 * calls);
}

}  // namespace

int main() {
    for (const Setup& setup : setups()) test_every_call(setup);
    return testing::result();
}
