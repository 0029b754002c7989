// The front serves threads, streams and devices at once: contents stay, counters add up, and every
// error is the caller's to see.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "engine/invariants.hpp"
#include "engine/live/front.hpp"
#include "engine/tests/check.hpp"
#include "engine/tests/fake_driver/fake_driver.hpp"

using namespace tenure;
using namespace tenure::live;

namespace {

constexpr Bytes memory = GiB;

std::atomic<int> collections{0};
std::vector<void*> dead;  // what a collection would free
Front* the_front = nullptr;

bool collect() {
    ++collections;
    const bool any = !dead.empty();
    for (void* pointer : dead) the_front->free(pointer, 0);
    dead.clear();
    return any;
}

std::string explain(const Shortage& shortage) {
    return "\nheld by " + std::to_string(shortage.holders.size());
}

StackId stack() { return 7; }

void test_the_map_equals_a_plain_one() {
    std::mt19937_64 random(1);
    BlockMap map;
    std::map<Address, Block*> plain;
    std::vector<Block> blocks(20000);
    for (int step = 0; step < 200'000; ++step) {
        Block& block = blocks[random() % blocks.size()];
        if (block.address == 0) {
            do block.address = random() % (1u << 20) * 512 + 512;
            while (plain.contains(block.address));
            map.insert(&block);
            plain[block.address] = &block;
        } else {
            CHECK(map.take(block.address) == &block);
            plain.erase(block.address);
            CHECK(map.find(block.address) == nullptr);
            block.address = 0;
        }
    }
    CHECK_EQUAL(map.size(), plain.size());
    for (const auto& [address, block] : plain) CHECK(map.find(address) == block);
    CHECK(map.take(511) == nullptr);
}

void test_the_ring_keeps_the_newest() {
    EventRing ring;
    auto add = [&](Address from, Address to) {
        for (Address i = from; i < to; ++i) ring.add({i, 1, 0, 0, {}, 0, Action::alloc});
    };
    add(0, 5);
    CHECK_EQUAL(ring.size(), 0u);
    ring.set_limit(10'000);
    add(0, 12'345);
    auto events = ring.events();
    CHECK_EQUAL(events.size(), 10'000u);
    CHECK_EQUAL(events.front().address, 2'345u);
    CHECK_EQUAL(events.back().address, 12'344u);
    ring.set_limit(20'000);
    add(12'345, 12'347);
    CHECK_EQUAL(ring.events().front().address, 2'345u);
    CHECK_EQUAL(ring.events().back().address, 12'346u);
    ring.set_limit(3);
    CHECK_EQUAL(ring.events().front().address, 12'344u);
    ring.clear();
    CHECK_EQUAL(ring.events().size(), 0u);
}

struct Tensor {
    unsigned char* pointer;
    Bytes size;
    unsigned char mark;
};

// Writes the mark over a block's two ends and middle; or checks it there.
void fill(const Tensor& held) {
    for (const Bytes at : {Bytes{0}, held.size / 2, held.size - 1}) held.pointer[at] = held.mark;
}
void verify(const Tensor& held) {
    for (const Bytes at : {Bytes{0}, held.size / 2, held.size - 1})
        CHECK_EQUAL(static_cast<int>(held.pointer[at]), static_cast<int>(held.mark));
}

// Each thread on its own stream and some shared ones; blocks change hands through `exchange`.
void stress(Front& front, int seed, int device, std::vector<std::atomic<Tensor*>>& exchange) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<Tensor*> own;
    for (int step = 0; step < 3000; ++step) {
        const bool large = random() % 10 == 0;
        const Bytes size = 1 + static_cast<Bytes>(random() % (large ? 12 * MiB : 200 * KiB));
        const Stream stream = 16 * (random() % 3 ? static_cast<Stream>(seed) : random() % 4);
        try {
            auto* pointer = static_cast<unsigned char*>(front.allocate(size, device, stream));
            own.push_back(new Tensor{pointer, size, static_cast<unsigned char>(random())});
            fill(*own.back());
            if (random() % 5 == 0) front.record_stream(pointer, 16 * (random() % 4));
        } catch (const OutOfMemory& error) {
            CHECK(std::string(error.what()).rfind("CUDA out of memory. Tried to allocate ", 0) ==
                  0);
        }
        if (own.empty()) continue;
        Tensor*& some = own[random() % own.size()];
        some = exchange[random() % exchange.size()].exchange(some);  // another thread may free it
        if (!some) {
            some = own.back();
            own.pop_back();
        }
        while (own.size() > random() % 40) {
            verify(*own.back());
            front.free(own.back()->pointer, device);
            delete own.back();
            own.pop_back();
        }
        if (random() % 500 == 0) front.empty_cache();
    }
    for (Tensor* held : own) {
        verify(*held);
        front.free(held->pointer, device);
        delete held;
    }
}

void test_threads(Front& front, int device) {
    std::vector<std::atomic<Tensor*>> exchange(64);
    std::vector<std::thread> threads;
    for (int seed = 1; seed <= 4; ++seed)
        threads.emplace_back([&, seed] { stress(front, seed, device, exchange); });
    for (std::thread& thread : threads) thread.join();
    for (auto& slot : exchange)
        if (Tensor* held = slot.load()) {
            verify(*held);
            front.free(held->pointer, device);
            delete held;
        }
    front.empty_cache();
    DeviceFront& state = *front.find(device);
    check(state.allocator);
    CHECK_EQUAL(state.live_blocks(), 0u);
    CHECK_EQUAL(state.allocator.statistics().active_bytes.all.current, 0);
    CHECK_EQUAL(fake_driver_used(device), 0);
    CHECK_EQUAL(fake_driver_violations(), 0);
}

// What streams count for themselves is what one allocator without any front counts, peaks included;
// and they are served the same blocks.
void test_streams_count_as_one_allocator(Front& front, const Settings& settings) {
    DeviceFront& state = front.device(0);
    CudaDevice device(1);
    Settings same = settings;
    same.device_memory = device.total_memory();
    Allocator plain(same, device);
    std::mt19937 random(3);
    struct Pair {
        void* pointer;
        Block* block;
    };
    std::vector<Pair> live;
    state.allocator.reset_peak();
    state.allocator.reset_accumulated();
    for (int step = 0; step < 20'000; ++step) {
        if (live.size() > 200 || (!live.empty() && random() % 2)) {
            const std::size_t chosen = random() % live.size();
            front.free(live[chosen].pointer, random() % 8 ? 0 : 1);  // a wrong hint now and then
            plain.free(live[chosen].block);
            live[chosen] = live.back();
            live.pop_back();
        } else {
            const Stream stream = 16 * (random() % 5);
            const Bytes size =
                1 + static_cast<Bytes>(random() % 100 ? random() % 200'000 : random() % (4 * MiB));
            live.push_back({front.allocate(size, 0, stream), plain.allocate(size, stream)});
            CHECK_EQUAL(state.find_live(reinterpret_cast<Address>(live.back().pointer))->size,
                        live.back().block->size);
        }
        if (random() % 300) continue;
        const Held held(state);
        check(state.allocator);
        CHECK(state.allocator.statistics() == plain.statistics());
        CHECK_EQUAL(state.live_blocks(), live.size());
    }
    for (const Pair& pair : live) {
        front.free(pair.pointer, 0);
        plain.free(pair.block);
    }
    front.empty_cache();
    plain.empty_cache();
    CHECK(state.allocator.statistics() == plain.statistics());
}

// Threads that meet between their steps, so that the peak is known: all that all of them hold.
void test_peaks_over_threads(Front& front) {
    constexpr int threads = 4, rounds = 300, most = 12;
    DeviceFront& state = front.device(0);
    front.empty_cache();
    {
        const Held held(state);
        state.allocator.reset_peak();
    }
    std::barrier meet(threads);
    std::atomic<int> wrong{0};
    auto work = [&](int thread) {
        std::mt19937 random(static_cast<unsigned>(thread));
        std::vector<void*> own;
        for (int round = 1; round <= rounds; ++round) {
            // Round by round up to `most` blocks more than before, and down again.
            const int count = 1 + round * most / rounds;
            for (int i = 0; i < count; ++i)
                own.push_back(front.allocate(3 * 512, 0, 16 * static_cast<Stream>(thread)));
            meet.arrive_and_wait();
            if (thread == 0) {
                const Held held(state);
                const PoolCounter& bytes = state.allocator.statistics().allocated_bytes;
                wrong += bytes.all.peak != Bytes{threads} * count * 3 * 512;
                wrong += bytes.all.current != bytes.all.peak;
                check(state.allocator);
            }
            meet.arrive_and_wait();
            std::shuffle(own.begin(), own.end(), random);
            for (void* pointer : own) front.free(pointer, 0);
            own.clear();
            meet.arrive_and_wait();
        }
    };
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
    for (std::thread& thread : running) thread.join();
    CHECK_EQUAL(wrong.load(), 0);
    CHECK_EQUAL(state.live_blocks(), 0u);
}

// More streams than have a front of their own, and blocks freed by whoever is about.
void test_many_streams(Front& front) {
    std::vector<void*> live;
    for (Stream stream = 1; stream <= 2 * DeviceFront::most_streams; ++stream)
        for (int i = 0; i < 4; ++i) live.push_back(front.allocate(5000, 0, 0x1000 * stream));
    CHECK_EQUAL(front.find(0)->live_blocks(), live.size());
    for (std::size_t i = 0; i < live.size(); ++i) front.free(live[i], static_cast<int>(i % 3));
    CHECK_EQUAL(front.find(0)->live_blocks(), 0u);
    front.empty_cache();
    check(front.find(0)->allocator);
}

void test_sizes_and_unknown_pointers(Front& front) {
    CHECK(front.allocate(0, 0, 0) == nullptr);
    front.free(nullptr, 0);
    int nothing = 0;
    front.free(&nothing, 0);  // not ours
    front.record_stream(&nothing, 16);
    void* one = front.allocate(1, 0, 0);
    CHECK(reinterpret_cast<Address>(one) % 512 == 0);
    front.free(one, 1);  // a caller that names another device
    CHECK_EQUAL(front.find(0)->live_blocks(), 0u);
    CHECK_THROWS(front.allocate(1, 64, 0), UsageError, "no GPU 64");
}

void test_failing_and_collecting(Front& front) {
    const std::int64_t failed_before = front.find(0)->allocator.statistics().num_ooms;
    std::vector<void*> held;
    for (int i = 0; i < 10; ++i) held.push_back(front.allocate(100 * MiB, 0, 0));
    collections = 0;
    try {
        front.allocate(100 * MiB, 0, 0);
        CHECK(false);
    } catch (const OutOfMemory& error) {
        const std::string text = error.what();
        CHECK(text.find("GPU 0 has a total capacity of 1024.00 MiB of which ") !=
              std::string::npos);
        CHECK(text.find("held by 1") != std::string::npos);
        CHECK_EQUAL(error.requested, 100 * MiB);
    }
    CHECK_EQUAL(collections.load(), 1);
    CHECK_EQUAL(
        front.find(0)->allocator.statistics().num_ooms - front.find(0)->rescued - failed_before, 1);
    dead = {held.back()};
    held.back() = front.allocate(100 * MiB, 0, 0);  // in place of what was dead
    CHECK_EQUAL(collections.load(), 2);
    for (void* pointer : held) front.free(pointer, 0);
    front.empty_cache();
}

void test_pools(Front& front) {
    const PoolId pool{3, 0};
    front.begin_allocate_to_pool(
        0, pool, [](CUstream_st* stream) { return reinterpret_cast<Stream>(stream) == 16; });
    void* captured = front.allocate(MiB, 0, 16);
    void* other = front.allocate(MiB, 0, 32);
    front.end_allocate_to_pool(0, pool);
    const auto pool_of = [&](void* pointer) {
        const Block* block = front.find(0)->find_live(reinterpret_cast<Address>(pointer));
        return block->segment->home->half->pool->id;
    };
    CHECK(pool_of(captured) == pool);
    CHECK(pool_of(other) == PoolId{});
    front.free(captured, 0);
    front.free(other, 0);
    front.release_pool(0, pool);
    front.release_pool(0, pool);  // once too often: nothing to release
    front.empty_cache();
    CHECK_EQUAL(fake_driver_used(0), 0);
}

void test_limits(Front& front) {
    front.set_memory_fraction(0.25, 0);
    CHECK_EQUAL(front.find(0)->allocator.settings().limit, 256 * MiB);
    CHECK_THROWS(front.allocate(300 * MiB, 0, 0), OutOfMemory, "256.00 MiB allowed; ");
    front.set_memory_fraction(1.0, 0);
    CHECK_EQUAL(front.find(0)->allocator.settings().limit, unlimited);
}

// What a snapshot would show: taken with the device at rest, when streams have told all.
std::vector<Event> recorded(DeviceFront& state) {
    const Held held(state);
    return state.ring.events();
}

void test_history(Front& front) {
    front.set_history({true, true, true, true, 1000}, true);
    void* pointer = front.allocate(3 * MiB, 0, 0);
    front.free(pointer, 0);
    DeviceFront& state = *front.find(0);
    std::vector<Action> actions;
    for (const Event& event : recorded(state)) actions.push_back(event.action);
    CHECK(actions.size() >= 4);
    CHECK(actions[actions.size() - 3] == Action::alloc);
    CHECK(actions[actions.size() - 2] == Action::free_requested);
    CHECK(actions.back() == Action::free_completed);
    CHECK_EQUAL(recorded(state).back().stack, 7u);
    CHECK_EQUAL(recorded(state).back().size, 3 * MiB);
    fake_driver_hold(48);  // a free that waits for another stream is completed later
    pointer = front.allocate(3 * MiB, 0, 0);
    front.record_stream(pointer, 48);
    front.free(pointer, 0);
    CHECK(recorded(state).back().action == Action::free_requested);
    fake_driver_finish(48);
    std::vector<void*> later;  // noticed at once, or after so many requests that need nothing more
    for (int i = 0; i <= Lane::most_unasked; ++i) later.push_back(front.allocate(1, 0, 0));
    int completed = 0;
    for (const Event& event : recorded(state))
        completed += event.action == Action::free_completed &&
                     event.address == reinterpret_cast<Address>(pointer);
    CHECK_EQUAL(completed, 2);
    for (void* small : later) front.free(small, 0);
    front.set_history({}, false);
    state.ring.clear();
}

// Threads on streams of their own and on shared ones, all recorded: each address is handed out and
// freed by turns, nothing that is handed out overlaps what is, and nothing is lost.
void test_recording_over_threads(Front& front) {
    constexpr int threads = 4, steps = 6000;
    front.set_history({true, false, true, true, 1'000'000}, true);
    auto work = [&](int thread) {
        std::mt19937 random(static_cast<unsigned>(thread));
        std::vector<void*> own;
        for (int step = 0; step < steps; ++step) {
            const Stream stream = 16 * static_cast<Stream>(random() % 4 ? thread : 7);
            const Bytes size = 1 + static_cast<Bytes>(random() % 100 ? random() % 20'000 : 3 * MiB);
            own.push_back(front.allocate(size, 0, stream));
            if (own.size() < 30 && random() % 2) continue;
            std::swap(own[random() % own.size()], own.back());
            front.free(own.back(), 0);
            own.pop_back();
        }
        for (void* pointer : own) front.free(pointer, 0);
    };
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
    for (std::thread& thread : running) thread.join();
    std::map<Address, Bytes> live;
    std::map<Action, int> seen;
    std::int64_t time = 0;
    int wrong = 0;
    for (const Event& event : recorded(*front.find(0))) {
        ++seen[event.action];
        wrong += event.time_us < time;
        time = event.time_us;
        if (event.action == Action::alloc) {
            const auto next = live.lower_bound(event.address);
            const bool meets_next = next != live.end() &&
                                    next->first < event.address + static_cast<Address>(event.size);
            const bool meets_previous =
                next != live.begin() &&
                std::prev(next)->first + static_cast<Address>(std::prev(next)->second) >
                    event.address;
            wrong += meets_next || meets_previous || event.stack != 7;
            live[event.address] = event.size;
        } else if (event.action == Action::free_requested) {
            const auto freed = live.find(event.address);
            wrong += freed == live.end() || freed->second != event.size || event.stack != 7;
            live.erase(event.address);
        }
    }
    CHECK_EQUAL(wrong, 0);
    CHECK(live.empty());
    for (const Action action : {Action::alloc, Action::free_requested, Action::free_completed})
        CHECK_EQUAL(seen[action], threads * steps);
    front.set_history({}, true);
    front.empty_cache();
}

// A few requests of all kinds on both devices; what fails is told, and all the rest goes on.
void work_with_failures(Front& front) {
    std::vector<Tensor> live;
    auto take = [&](Bytes size, int device, Stream stream) {
        try {
            auto* pointer = static_cast<unsigned char*>(front.allocate(size, device, stream));
            live.push_back({pointer, size, static_cast<unsigned char>(live.size() + 1)});
            fill(live.back());
        } catch (const OutOfMemory&) {
        }
    };
    const PoolId pool{9, 0};
    for (int i = 0; i < 12; ++i) take((i % 4 + 1) * 3 * MiB, i % 2, i % 3 ? 16 : 32);
    for (std::size_t i = 0; i < live.size(); i += 2) {
        front.record_stream(live[i].pointer, 48);
        verify(live[i]);
        front.free(live[i].pointer, 0);
        live[i].pointer = nullptr;
    }
    front.begin_allocate_to_pool(0, pool, [](CUstream_st*) { return true; });
    take(5 * MiB, 0, 16);
    front.end_allocate_to_pool(0, pool);
    front.set_memory_fraction(0.05, 0);  // from here on chunks have to move
    for (int i = 0; i < 6; ++i) take(7 * MiB, 0, 64);
    front.set_memory_fraction(1, 0);
    for (const Tensor& held : live) {
        if (!held.pointer) continue;
        verify(held);
        front.free(held.pointer, 1);
    }
    front.release_pool(0, pool);
    front.empty_cache();
    for (const int device : {0, 1}) {
        DeviceFront& state = front.device(device);
        const Held held(state);
        check(state.allocator);
        CHECK_EQUAL(state.live_blocks(), 0u);
    }
}

void test_every_call_may_fail(Front& front) {
    fake_driver_fail(0, 0);
    work_with_failures(front);
    const std::int64_t calls = fake_driver_calls();
    CHECK(calls > 10);
    for (std::int64_t call = 1; call <= calls; ++call)
        for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}}) {
            fake_driver_fail(call, count);
            work_with_failures(front);
            fake_driver_fail(0, 0);
        }
    work_with_failures(front);
    for (const int device : {0, 1}) CHECK_EQUAL(fake_driver_used(device), 0);
    CHECK_EQUAL(fake_driver_violations(), 0);
}

void test_fork(Front& front) {
    const pid_t child = fork();
    if (child == 0) {
        int wrong = 0;
        try {
            front.allocate(1, 0, 0);
            wrong = 1;
        } catch (const std::runtime_error& error) {
            if (std::string(error.what()).find("forked subprocess") == std::string::npos) wrong = 2;
        }
        front.free(&wrong, 0);
        front.empty_cache();
        _exit(wrong);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(WEXITSTATUS(status), 0);
    CHECK(!is_forked());
}

}  // namespace

// The rules are an argument, since a process has one front.
int run(Rules rules) {
    Options options;
    options.settings.rules = rules;
    the_front = &install(options, {stack, collect, explain});
    Front& front = *the_front;
    CHECK_THROWS(install(options, {}), UsageError, "already installed");
    CHECK(front.find(0) == nullptr);
    test_threads(front, 0);
    test_threads(front, 1);
    test_streams_count_as_one_allocator(front, options.settings);
    test_peaks_over_threads(front);
    test_many_streams(front);
    test_sizes_and_unknown_pointers(front);
    test_failing_and_collecting(front);
    test_pools(front);
    test_limits(front);
    test_history(front);
    test_recording_over_threads(front);
    test_every_call_may_fail(front);
    test_fork(front);
    fake_driver_shut_down();  // frees at exit: the driver is gone, the front is not
    front.free(front.find(0), 0);
    return testing::result();
}

int main() {
    setenv("TENURE_DRIVER_LIBRARY", FAKE_DRIVER_LIBRARY, 1);
    setenv("FAKE_DRIVER_DEVICES", "2", 1);
    fake_driver_set_memory(memory);
    test_the_map_equals_a_plain_one();
    test_the_ring_keeps_the_newest();
    const pid_t child = fork();
    if (child == 0) {
        const int result = run(Rules::torch);
        std::fflush(stdout);
        _exit(result);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQUAL(WEXITSTATUS(status), 0);
    return run(Rules::elastic);
}
