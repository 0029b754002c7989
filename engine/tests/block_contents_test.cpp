// Random requests on real memory: a pattern at both ends of each block is intact at its free, and
// while the block waits for other streams.
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/host_device.hpp"
#include "engine/invariants.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/watched_device.hpp"

using namespace tenure;
using testing::WatchedDevice;

namespace {

constexpr Stream streams = 3;
constexpr std::size_t most_live = 60;

// One block that was handed out, with the bytes written to it.
struct Held {
    Block* block;
    Address address;
    Bytes requested;
    std::uint64_t pattern;
};

char* bytes(Address address) { return reinterpret_cast<char*>(address); }

void write(const Held& held) {
    const auto size = static_cast<std::size_t>(held.requested);
    const std::size_t length = std::min(sizeof held.pattern, size);
    std::memcpy(bytes(held.address), &held.pattern, length);
    std::memcpy(bytes(held.address) + size - length, &held.pattern, length);
}

bool is_intact(const Held& held) {
    const auto size = static_cast<std::size_t>(held.requested);
    const std::size_t length = std::min(sizeof held.pattern, size);
    // The two ends of a request below 16 bytes overlap; the second one is whole.
    if (size >= 2 * length && std::memcmp(bytes(held.address), &held.pattern, length) != 0)
        return false;
    return std::memcmp(bytes(held.address) + size - length, &held.pattern, length) == 0;
}

class RandomRun {
  public:
    RandomRun(const Settings& settings, Bytes capacity, std::uint64_t seed)
        : random_(seed), host_(capacity), device_(host_), allocator_(settings, device_) {
        allocator_.create_pool(graph_pool_);
        allocator_.create_pool(user_pool_);
        allocator_.set_use_on_oom(user_pool_, true);
    }

    void steps(int count) {
        for (int step = 0; step < count; ++step) {
            one_step();
            check(allocator_);
            CHECK_EQUAL(allocator_.reserved(), device_.used());
            forget_completed();
        }
        while (!live_.empty()) free(live_.size() - 1);
        for (; captures_ > 0; --captures_) allocator_.end_capture();
        allocator_.release_pool(graph_pool_);
        allocator_.release_pool(user_pool_);
        allocator_.empty_cache();
        check(allocator_);
        CHECK_EQUAL(device_.used(), 0);
        for (auto& segment : allocator_.segments())  // an arena whose first mapping was refused
            CHECK(segment->is_arena() && !segment->first->is_mapped() && !segment->first->next);
        CHECK_EQUAL(allocator_.statistics().active.all.current, 0);
        CHECK_EQUAL(allocator_.statistics().reserved_bytes.all.current, 0);
    }

    std::int64_t served = 0;
    std::int64_t refused = 0;

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }

    void one_step() {
        const std::uint64_t dice = below(100);
        if (dice < 48) {
            if (live_.size() < most_live) allocate();
        } else if (dice < 84) {
            if (!live_.empty()) free(below(live_.size()));
        } else if (dice < 92) {
            if (!live_.empty())
                allocator_.record_stream(live_[below(live_.size())].block, below(streams));
        } else if (dice < 97) {
            finish(below(streams));
        } else if (dice < 98) {
            allocator_.empty_cache();
        } else if (captures_ < 1) {
            allocator_.begin_capture();
            ++captures_;
        } else {
            allocator_.end_capture();
            --captures_;
        }
    }

    Bytes some_size() {
        const Bytes scale[] = {600, 40'000, MiB, 4 * MiB, 12 * MiB, 60 * MiB};
        return 1 + static_cast<Bytes>(below(static_cast<std::uint64_t>(scale[below(6)])));
    }

    void allocate() {
        const PoolId pools[] = {{}, {}, {}, {}, graph_pool_, user_pool_};
        const Bytes size = some_size();
        try {
            Block* block = allocator_.allocate(size, below(streams), pools[below(6)]);
            CHECK(block->size >= size);
            live_.push_back({block, block->address, size, random_()});
            write(live_.back());
            ++served;
        } catch (const OutOfMemory&) {
            ++refused;
        }
    }

    void free(std::size_t index) {
        const Held held = live_[index];
        live_[index] = live_.back();
        live_.pop_back();
        CHECK(is_intact(held));
        allocator_.free(held.block);
        if (held.block->state == BlockState::pending) pending_[held.address] = held;
    }

    void finish(Stream stream) {
        for (const auto& [address, held] : pending_) CHECK(is_intact(held));
        host_.finish(stream);
    }

    // Drops the blocks that no longer wait: their memory may be anything now, or gone.
    void forget_completed() {
        std::map<Address, Held> still;
        for (const BlockView& view : allocator_.blocks())
            if (view.state == BlockState::pending) still[view.address] = pending_.at(view.address);
        pending_.swap(still);
    }

    static constexpr PoolId graph_pool_{7, 0};
    static constexpr PoolId user_pool_{0, 3};
    std::mt19937_64 random_;
    HostDevice host_;
    WatchedDevice device_;
    Allocator allocator_;
    std::vector<Held> live_;
    std::map<Address, Held> pending_;
    int captures_ = 0;
};

std::vector<Settings> some_settings() {
    std::vector<Settings> all;
    for (const TorchVersion version : {TorchVersion{2, 11}, {2, 12}, {2, 13}})
        for (const bool expandable : {false, true})
            for (const Bytes max_split : {unlimited, 32 * MiB})
                for (const double threshold : {0.0, 0.6}) {
                    Settings settings;
                    settings.torch_version = version;
                    settings.expandable_segments = expandable;
                    settings.max_split_size = max_split;
                    settings.garbage_collection_threshold = threshold;
                    settings.limit = threshold > 0 ? 400 * MiB : unlimited;
                    settings.device_memory = GiB;
                    settings.roundup_power2_divisions.fill(threshold > 0 ? 4 : 0);
                    all.push_back(settings);
                }
    return all;
}

}  // namespace

int main() {
    std::int64_t served = 0;
    std::int64_t refused = 0;
    std::uint64_t seed = 1;
    for (const Settings& settings : some_settings())
        for (const Bytes capacity : {500 * MiB, 4 * GiB}) {
            RandomRun run(settings, capacity, ++seed);
            run.steps(800);
            served += run.served;
            refused += run.refused;
        }
    CHECK(served > 5000);
    CHECK(refused > 100);
    return testing::result();
}
