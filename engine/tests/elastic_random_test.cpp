// Elastic rules under random requests, uses, limits, captures, pins and failing calls, on real
// memory: physical_map.hpp watches bytes and the order of work, watched_device.hpp the contract of
// the device, check() the allocator's own books, and the contents of live blocks never change.
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/host_device.hpp"
#include "engine/invariants.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/physical_map.hpp"
#include "engine/tests/watched_device.hpp"

using namespace tenure;
using testing::PhysicalMap;
using testing::WatchedDevice;

namespace {

constexpr Stream streams = 3;
constexpr std::size_t most_live = 50;
constexpr Bytes page = 2 * MiB;

struct Setup {
    Bytes capacity;  // of the device
    Bytes limit;
    Bytes chunk_size;
    double soft_limit;
    bool can_alias;
    int failing;  // one call in so many is refused; 0: none
};

struct Held {
    Block* block;
    Address address;
    Bytes requested;
    Bytes size;
    Stream stream;
    std::uint64_t pattern;
};

// Where the pattern is written: both ends, and once in every page.
std::vector<Bytes> places(const Held& held) {
    constexpr auto length = static_cast<Bytes>(sizeof held.pattern);
    std::vector<Bytes> at;
    if (held.requested < 2 * length) return at;
    for (Bytes offset = 0; offset + length < held.requested; offset += page) at.push_back(offset);
    at.push_back(held.requested - length);
    return at;
}

char* bytes(Address address, Bytes offset) {
    return reinterpret_cast<char*>(address + static_cast<Address>(offset));
}

void write(const Held& held) {
    for (const Bytes offset : places(held))
        std::memcpy(bytes(held.address, offset), &held.pattern, sizeof held.pattern);
}

bool is_intact(const Held& held) {
    for (const Bytes offset : places(held))
        if (std::memcmp(bytes(held.address, offset), &held.pattern, sizeof held.pattern) != 0)
            return false;
    return true;
}

Settings settings_of(const Setup& setup) {
    Settings settings;
    settings.rules = Rules::elastic;
    settings.limit = setup.limit;
    settings.chunk_size = setup.chunk_size;
    settings.soft_limit = setup.soft_limit;
    settings.device_memory = GiB;
    return settings;
}

class RandomRun {
  public:
    RandomRun(const Setup& setup, std::uint64_t seed)
        : setup_(setup),
          random_(seed),
          host_(setup.capacity),
          map_(host_, setup.can_alias),
          device_(map_),
          allocator_(std::make_unique<Allocator>(settings_of(setup), device_)) {
        allocator_->create_pool(graph_pool_);
        allocator_->create_pool(user_pool_);
        allocator_->set_use_on_oom(user_pool_, true);
        if (seed % 2 == 0) map_.end_work_every(5);
        allocator_->on_last_resort([this] { return collect(); });
    }

    void steps(int count) {
        for (int step = 0; step < count; ++step) {
            device_.fail_from(-1, 0);
            if (setup_.failing > 0 && below(static_cast<std::uint64_t>(setup_.failing)) == 0)
                device_.fail_from(device_.calls() + 1, 1 + static_cast<std::int64_t>(below(3)));
            one_step();
            check(*allocator_);
            CHECK_EQUAL(allocator_->reserved(), device_.used());
        }
        finish_all();
    }

    std::int64_t served = 0;
    std::int64_t refused = 0;
    std::int64_t collected = 0;
    ElasticStatistics counts;

  private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    Held& any() { return live_[below(live_.size())]; }

    void one_step() {
        const std::uint64_t dice = below(1000);
        if (dice < 470) {
            if (live_.size() < most_live) allocate();
        } else if (dice < 830) {
            if (!live_.empty()) free(below(live_.size()));
        } else if (dice < 900) {
            if (!live_.empty()) use_elsewhere(any(), below(streams));
        } else if (dice < 930) {
            map_.finish(below(streams));
        } else if (dice < 960) {
            map_.finish_one_event();
        } else if (dice < 970) {
            allocator_->empty_cache();
        } else if (dice < 980) {
            toggle_capture();
        } else if (dice < 990) {
            toggle_pin();
        } else {
            change_limit();
        }
    }

    void allocate() {
        const Bytes scale[] = {600, 40'000, MiB, 4 * MiB, 12 * MiB, 60 * MiB};
        const PoolId pools[] = {{}, {}, {}, {}, {}, {}, graph_pool_, user_pool_};
        const Bytes requested =
            1 + static_cast<Bytes>(below(static_cast<std::uint64_t>(scale[below(6)])));
        const Stream stream = below(streams);
        try {
            Block* block = allocator_->allocate(requested, stream, pools[below(8)]);
            CHECK(block->size >= requested);
            map_.handed_out(block->address, block->size, stream);
            live_.push_back({block, block->address, requested, block->size, stream, random_()});
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
        map_.freed(held.address, held.size, held.stream);
        allocator_->free(held.block);
    }

    void use_elsewhere(const Held& held, Stream stream) {
        map_.used(held.address, held.size, stream);
        allocator_->record_stream(held.block, stream);
    }

    // As dead cycles would: called in the middle of a request.
    bool collect() {
        if (live_.empty() || below(2) == 0) return false;
        ++collected;
        free(below(live_.size()));
        return true;
    }

    void toggle_capture() {
        if (capturing_)
            allocator_->end_capture();
        else
            allocator_->begin_capture();
        capturing_ = !capturing_;
    }

    void toggle_pin() {
        if (pinned_.second > 0) {
            allocator_->unpin(pinned_.first, pinned_.second);
            pinned_ = {0, 0};
        } else if (!live_.empty()) {
            pinned_ = {any().address, 7 * MiB};
            allocator_->pin(pinned_.first, pinned_.second);
        }
    }

    void change_limit() {
        if (setup_.limit == unlimited) return;
        allocator_->set_limit(setup_.limit / 4 * (2 + static_cast<Bytes>(below(3))));
    }

    void finish_all() {
        device_.fail_from(-1, 0);
        if (capturing_) toggle_capture();
        if (pinned_.second > 0) toggle_pin();
        while (!live_.empty()) free(live_.size() - 1);
        allocator_->release_pool(graph_pool_);
        allocator_->release_pool(user_pool_);
        allocator_->empty_cache();
        check(*allocator_);
        CHECK_EQUAL(device_.used(), 0);
        CHECK_EQUAL(allocator_->statistics().reserved_bytes.all.current, 0);
        CHECK_EQUAL(allocator_->statistics().active.all.current, 0);
        CHECK(allocator_->segments().empty());
        counts = allocator_->elastic_statistics();
        allocator_.reset();
        CHECK(device_.is_clean());
    }

    static constexpr PoolId graph_pool_{7, 0};
    static constexpr PoolId user_pool_{0, 3};
    Setup setup_;
    std::mt19937_64 random_;
    HostDevice host_;
    PhysicalMap map_;
    WatchedDevice device_;
    std::unique_ptr<Allocator> allocator_;
    std::vector<Held> live_;
    std::pair<Address, Bytes> pinned_{0, 0};
    bool capturing_ = false;
};

std::vector<Setup> setups() {
    std::vector<Setup> all;
    for (const bool can_alias : {true, false})
        for (const int failing : {0, 25})
            for (const Bytes chunk : {Bytes{0}, 8 * MiB, 20 * MiB}) {
                all.push_back({unlimited, 300 * MiB, chunk, 0, can_alias, failing});
                all.push_back({260 * MiB, unlimited, chunk, 0, can_alias, failing});
                all.push_back({2 * GiB, unlimited, chunk, 1.05, can_alias, failing});
            }
    return all;
}

}  // namespace

int main() {
    std::uint64_t seed = 1;
    std::int64_t served = 0, refused = 0, collected = 0;
    ElasticStatistics sum;
    for (const Setup& setup : setups())
        for (int round = 0; round < 4; ++round) {
            auto whole = std::make_unique<RandomRun>(setup, ++seed);
            RandomRun& run = *whole;
            try {
                run.steps(700);
            } catch (const std::exception& error) {
                testing::failed(__FILE__, __LINE__,
                                "seed " + std::to_string(seed) + ": " + error.what());
                (void)whole.release();  // in no state to be taken down
            }
            served += run.served;
            refused += run.refused;
            collected += run.collected;
            sum.moves += run.counts.moves;
            sum.aliased += run.counts.aliased;
            sum.other_stream += run.counts.other_stream;
            sum.stream_waits += run.counts.stream_waits;
            sum.host_waits += run.counts.host_waits;
        }
    std::printf("served %lld refused %lld collected %lld\n", static_cast<long long>(served),
                static_cast<long long>(refused), static_cast<long long>(collected));
    std::printf("moves %lld aliased %lld other %lld stream waits %lld host waits %lld\n",
                static_cast<long long>(sum.moves), static_cast<long long>(sum.aliased),
                static_cast<long long>(sum.other_stream), static_cast<long long>(sum.stream_waits),
                static_cast<long long>(sum.host_waits));
    CHECK(served > 10000);
    CHECK(refused > 100);
    CHECK(collected > 10);
    CHECK(sum.moves > 5000);
    CHECK(sum.aliased > 1000);
    CHECK(sum.stream_waits > 100);
    CHECK(sum.host_waits > 100);
    return testing::result();
}
