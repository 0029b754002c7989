// The CUDA device keeps the contract of device.hpp, on a driver of host memory that checks how it
// is called.
#include <cstdlib>
#include <thread>

#include "engine/allocator.hpp"
#include "engine/devices/cuda_device.hpp"
#include "engine/invariants.hpp"
#include "engine/tests/device_contract.hpp"
#include "engine/tests/fake_driver/fake_driver.hpp"

using namespace tenure;
using testing::Subject;

namespace {

constexpr Bytes memory = 4 * GiB;

Subject cuda_subject() {
    Subject subject{};
    subject.name = "cuda, on the fake driver";
    subject.make = [](Bytes capacity) {
        fake_driver_set_memory(capacity == unlimited ? memory : capacity);
        return std::make_unique<CudaDevice>(0);
    };
    subject.write = [](Address at, unsigned char value) {
        *reinterpret_cast<volatile unsigned char*>(at) = value;
    };
    subject.read = [](Address at) { return *reinterpret_cast<volatile unsigned char*>(at); };
    subject.start_work = [](Device&, Stream stream) { fake_driver_hold(stream); };
    subject.finish_work = [](Device&, Stream stream) { fake_driver_finish(stream); };
    return subject;
}

// The thread's own context is back after every call, whichever it was.
void test_contexts_stay() {
    const driver::Functions& functions = driver::functions();
    driver::Context one = nullptr;
    driver::Context now = nullptr;
    functions.primary_context_retain(&one, 1);
    functions.context_push_current(one);
    CudaDevice device(0);
    const Address segment = device.create_segment(2 * MiB);
    CHECK(segment != 0);
    CHECK(device.is_done(device.record_event(128)));
    CHECK(device.free_memory() <= memory - 2 * MiB);
    functions.context_get_current(&now);
    CHECK(now == one);
    std::thread([&] {  // a thread without any
        device.destroy_segment(segment, 2 * MiB);
        functions.context_get_current(&now);
        CHECK(now == nullptr);
    })
        .join();
    functions.context_pop_current(&now);
    CHECK_EQUAL(fake_driver_used(0), 0);
}

void test_what_is_not_there() {
    CHECK_THROWS(CudaDevice(7), UsageError, "cannot use GPU 7");
    fake_driver_set_virtual_memory(0);
    CudaDevice device(0);
    CHECK(!device.has_virtual_memory());
    CHECK_EQUAL(device.reserve(2 * MiB, 2 * MiB), 0u);
    Settings settings;
    Allocator allocator(settings, device);
    Block* block = allocator.allocate(3 * MiB, 0);
    allocator.free(block);
    check(allocator);
    fake_driver_set_virtual_memory(1);
}

void test_failures_say_why() {
    CudaDevice device(0);
    fake_driver_set_memory(MiB);
    CHECK_EQUAL(device.create_segment(2 * MiB), 0u);
    CHECK_EQUAL(device.last_result(), driver::out_of_memory);
    fake_driver_set_memory(memory);
    const Address arena = device.reserve(4 * MiB, 2 * MiB);
    const ChunkHandle chunk = device.create_chunk(2 * MiB);
    fake_driver_fail(2, 1);  // the access, after the mapping
    CHECK(!device.map_chunk(arena, chunk, 2 * MiB));
    fake_driver_fail(0, 0);
    CHECK(device.map_chunk(arena, chunk, 2 * MiB));  // nothing was left there
    device.unmap_chunk(arena, 2 * MiB);
    device.destroy_chunk(chunk, 2 * MiB);
    device.unreserve(arena, 4 * MiB);
}

void test_peers() {
    CudaDevice device(0);
    const Address arena = device.reserve(4 * MiB, 2 * MiB);
    const ChunkHandle chunk = device.create_chunk(2 * MiB);
    CHECK(device.map_chunk(arena, chunk, 2 * MiB));
    CHECK(!fake_driver_may_reach(arena, 1));
    fake_driver_fail(1, 1);
    CHECK(!device.grant_access(1));  // and is asked again, not taken for done
    fake_driver_fail(0, 0);
    CHECK(device.grant_access(1));
    CHECK(device.grant_access(1));
    CHECK(fake_driver_may_reach(arena, 1));
    CHECK(!device.grant_access(7));
    device.unmap_chunk(arena, 2 * MiB);
    CHECK(device.map_chunk(arena + 2 * MiB, chunk, 2 * MiB));
    CHECK(fake_driver_may_reach(arena + 2 * MiB, 0));
    CHECK(fake_driver_may_reach(arena + 2 * MiB, 1));
    device.unmap_chunk(arena + 2 * MiB, 2 * MiB);
    device.destroy_chunk(chunk, 2 * MiB);
    device.unreserve(arena, 4 * MiB);
}

// Memory of one device that a stream of another one uses: its free waits for that stream's event.
void test_streams_of_another_device() {
    constexpr Stream foreign = 0x9900;
    fake_driver_set_stream_device(foreign, 1);
    fake_driver_hold(foreign);
    CudaDevice device(0);
    const EventHandle own = device.record_event(128);
    for (int i = 0; i < 2; ++i) {
        const EventHandle event = device.record_event(foreign);
        CHECK(event != 0);
        CHECK(!device.is_done(event));
        CHECK(device.make_stream_wait(128, event));
        fake_driver_finish(foreign);
        CHECK(device.is_done(event));
        device.release_event(event);
    }
    device.release_event(own);
    for (std::int64_t call = 1; call <= 4; ++call) {  // record here; make, record there
        fake_driver_fail(call, 1);
        const EventHandle event = device.record_event(foreign);
        if (event != 0) device.release_event(event);
        fake_driver_fail(0, 0);
        CHECK_EQUAL(device.record_event(128), own);  // in no other's place
        device.release_event(own);
    }
}

// One run of an allocator, with a failure at each call in turn.
void run(Rules rules) {
    CudaDevice device(0);
    Settings settings;
    settings.rules = rules;
    settings.device_memory = device.total_memory();
    settings.limit = 96 * MiB;
    {
        Allocator allocator(settings, device);
        std::vector<Block*> blocks;
        auto take = [&](Bytes size, Stream stream) {
            try {
                blocks.push_back(allocator.allocate(size, stream));
                *reinterpret_cast<volatile char*>(blocks.back()->address) = 1;
                *reinterpret_cast<volatile char*>(blocks.back()->end() - 1) = 1;
            } catch (const OutOfMemory&) {
            }
            check(allocator);
        };
        for (int i = 0; i < 8; ++i) take((i % 3 + 1) * 5 * MiB, i % 2 ? 16 : 32);
        for (std::size_t i = 0; i < blocks.size(); i += 2) {
            allocator.record_stream(blocks[i], 48);
            allocator.free(blocks[i]);
            check(allocator);
        }
        for (int i = 0; i < 4; ++i) take(9 * MiB, 64);
        allocator.empty_cache();
        check(allocator);
    }
    CHECK_EQUAL(fake_driver_used(0), 0);
    CHECK_EQUAL(fake_driver_objects(), 0);
}

void test_every_call_may_fail(Rules rules) {
    fake_driver_fail(0, 0);
    run(rules);
    const std::int64_t calls = fake_driver_calls();
    CHECK(calls > 10);
    for (std::int64_t call = 1; call <= calls; ++call)
        for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}}) {
            fake_driver_fail(call, count);
            run(rules);
        }
    fake_driver_fail(0, 0);
}

}  // namespace

int main() {
    setenv("TENURE_DRIVER_LIBRARY", FAKE_DRIVER_LIBRARY, 1);
    setenv("FAKE_DRIVER_DEVICES", "2", 1);
    CHECK_EQUAL(CudaDevice::count(), 2);
    testing::check_device_contract(cuda_subject());
    fake_driver_set_memory(memory);
    test_contexts_stay();
    test_what_is_not_there();
    test_failures_say_why();
    test_peers();
    test_streams_of_another_device();
    test_every_call_may_fail(Rules::torch);
    test_every_call_may_fail(Rules::elastic);
    CHECK_EQUAL(fake_driver_violations(), 0);
    return testing::result();
}
