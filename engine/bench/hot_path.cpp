// Nanoseconds of the common path on a device of addresses only: one JSON line per case, with one
// figure per repetition. `python -m benchmarks` builds and runs it, and reads the lines.
//
//   hot_path [REPETITIONS [CASE]]    all cases, or those that begin with CASE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/virtual_device.hpp"

using namespace tenure;

namespace {

using Clock = std::chrono::steady_clock;

double nanoseconds_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

void report(const std::string& name, const std::vector<double>& figures) {
    std::printf("{\"case\": \"%s\", \"nanoseconds\": [", name.c_str());
    for (std::size_t i = 0; i < figures.size(); ++i)
        std::printf("%s%.3f", i ? ", " : "", figures[i]);
    std::puts("]}");
}

// Several cases in turn, round after round, so that the machine's moods meet all of them alike.
struct Case {
    std::string name;
    std::function<double()> run;  // nanoseconds an operation
    std::vector<double> figures;
};

Settings plain() { return {}; }
Settings arenas() {
    Settings settings;
    settings.expandable_segments = true;
    return settings;
}

Settings elastic() {
    Settings settings;
    settings.rules = Rules::elastic;
    return settings;
}

// The same request again and again: the block just freed serves it.
class SamePair {
  public:
    SamePair(const Settings& settings, Bytes size) : allocator_(settings, device_), size_(size) {
        keep_ = allocator_.allocate(size_, 0);
    }
    double operator()() {
        constexpr int pairs = 200'000;
        const auto begin = Clock::now();
        for (int i = 0; i < pairs; ++i) allocator_.free(allocator_.allocate(size_, 0));
        return nanoseconds_since(begin) / pairs;
    }

  private:
    VirtualDevice device_;
    Allocator allocator_;
    Bytes size_;
    Block* keep_;
};

// A working set of blocks of many sizes, one replaced at a time, in random order.
class RandomPair {
  public:
    RandomPair(const Settings& settings, std::size_t live) : allocator_(settings, device_) {
        std::mt19937_64 random(1);
        for (int i = 0; i < steps; ++i) {
            const Bytes scale = Bytes{512} << (random() % 16);
            sizes_.push_back(scale + static_cast<Bytes>(random() % static_cast<unsigned>(scale)));
            victims_.push_back(random() % live);
        }
        for (std::size_t i = 0; i < live; ++i)
            live_.push_back(allocator_.allocate(sizes_[i % steps], 0));
    }
    double operator()() {
        const auto begin = Clock::now();
        for (std::size_t i = 0; i < steps; ++i) {
            Block*& block = live_[victims_[i]];
            allocator_.free(block);
            block = allocator_.allocate(sizes_[i], 0);
        }
        return nanoseconds_since(begin) / steps;
    }

  private:
    static constexpr int steps = 100'000;
    VirtualDevice device_;
    Allocator allocator_;
    std::vector<Bytes> sizes_;
    std::vector<std::size_t> victims_;
    std::vector<Block*> live_;
};

// As many equal free blocks, none beside another; each pair takes one and puts it back.
class AmongFreeBlocks {
  public:
    AmongFreeBlocks(const Settings& settings, std::size_t count) : allocator_(settings, device_) {
        std::vector<Block*> blocks;
        for (std::size_t i = 0; i < 2 * count; ++i) blocks.push_back(allocator_.allocate(512, 0));
        for (std::size_t i = 0; i < blocks.size(); i += 2) allocator_.free(blocks[i]);
    }
    double operator()() {
        constexpr int batch = 500;
        constexpr int rounds = 40;
        std::vector<Block*> taken(batch);
        const auto begin = Clock::now();
        for (int i = 0; i < rounds; ++i) {
            for (Block*& block : taken) block = allocator_.allocate(512, 0);
            for (Block* block : taken) allocator_.free(block);
        }
        return nanoseconds_since(begin) / (batch * rounds);
    }

  private:
    VirtualDevice device_;
    Allocator allocator_;
};

// A use on another stream: an event at the free, noticed at the next request.
class CrossStreamPair {
  public:
    CrossStreamPair() : allocator_(plain(), device_) {}
    double operator()() {
        constexpr int pairs = 50'000;
        const auto begin = Clock::now();
        for (int i = 0; i < pairs; ++i) {
            Block* block = allocator_.allocate(3 * MiB, 0);
            allocator_.record_stream(block, 1);
            allocator_.free(block);
            device_.finish(1);
        }
        return nanoseconds_since(begin) / pairs;
    }

  private:
    VirtualDevice device_;
    Allocator allocator_;
};

template <typename Benchmark, typename... Arguments>
Case make_case(const char* name, Arguments&&... arguments) {
    auto benchmark = std::make_shared<Benchmark>(std::forward<Arguments>(arguments)...);
    return {name, [benchmark] { return (*benchmark)(); }, {}};
}

}  // namespace

int main(int count, char** arguments) {
    const int repetitions = count > 1 ? std::atoi(arguments[1]) : 15;
    const std::string wanted = count > 2 ? arguments[2] : "";
    std::vector<Case> cases = {
        make_case<SamePair>("pair.small", plain(), 1000),
        make_case<SamePair>("pair.large", plain(), 3 * MiB),
        make_case<SamePair>("pair.arena", arenas(), 3 * MiB),
        make_case<SamePair>("pair.elastic", elastic(), 3 * MiB),
        make_case<RandomPair>("random.plain", plain(), 1000),
        make_case<RandomPair>("random.arena", arenas(), 1000),
        make_case<RandomPair>("random.elastic", elastic(), 1000),
        make_case<AmongFreeBlocks>("free_blocks.1000", plain(), 1000),
        make_case<AmongFreeBlocks>("free_blocks.10000", plain(), 10'000),
        make_case<AmongFreeBlocks>("free_blocks.100000", plain(), 100'000),
        make_case<AmongFreeBlocks>("free_blocks.100000.arena", arenas(), 100'000),
        make_case<CrossStreamPair>("pair.cross_stream"),
    };
    std::erase_if(cases, [&](const Case& each) { return !each.name.starts_with(wanted); });
    for (Case& each : cases) each.run();  // warm: segments, slabs, caches
    for (int i = 0; i < repetitions; ++i)
        for (Case& each : cases) each.figures.push_back(each.run());
    for (const Case& each : cases) report(each.name, each.figures);
}
