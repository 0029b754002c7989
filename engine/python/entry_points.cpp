// What PyTorch calls: plain functions whose addresses tenure.install() hands over. Calls come from
// any thread, mostly without the interpreter's lock, and during exit too.
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "engine/live/front.hpp"
#include "engine/live/sharing.hpp"
#include "engine/live/torch_error.hpp"
#include "engine/python/bindings.hpp"

using tenure::PoolId;
using tenure::Stream;
using tenure::live::Front;

namespace {

using PoolPair = std::pair<std::uint64_t, std::uint64_t>;  // c10::cuda::MempoolId_t

// CUDA names the default stream 1 as well as 0.
Stream handle(CUstream_st* stream) {
    const auto value = reinterpret_cast<Stream>(stream);
    return value == 1 ? 0 : value;
}

PoolId pool_id(PoolPair pair) { return {pair.first, pair.second}; }

struct Checkpoint {
    PoolId pool;
    std::vector<tenure::Allocator::Checkpointed> blocks;
};

Front& front() {
    Front* front = tenure::live::installed();
    if (!front) throw std::runtime_error("tenure was never installed in this process");
    return *front;
}

}  // namespace

#define EXPORTED [[gnu::visibility("default")]]

extern "C" {

EXPORTED void* tenure_allocate(std::size_t size, int device, CUstream_st* stream) {
    try {
        return front().allocate(static_cast<tenure::Bytes>(size), device, handle(stream));
    } catch (const tenure::OutOfMemory& error) {
        tenure::live::throw_torch_out_of_memory(error.what());
    }
}

EXPORTED void tenure_free(void* pointer, std::size_t, int device, CUstream_st*) {
    if (Front* front = tenure::live::installed()) front->free(pointer, device);
}

EXPORTED void tenure_record_stream(void* pointer, CUstream_st* stream) {
    if (Front* front = tenure::live::installed()) front->record_stream(pointer, handle(stream));
}

EXPORTED void tenure_empty_cache() { front().empty_cache(); }

EXPORTED void tenure_set_memory_fraction(double fraction, int device) {
    front().set_memory_fraction(fraction, device);
}

EXPORTED void* tenure_base_address(void* pointer, std::size_t* size) {
    return front().base_of(pointer, size);
}

EXPORTED void tenure_begin_allocate_to_pool(int device, PoolPair pool,
                                            std::function<bool(CUstream_st*)> filter) {
    front().begin_allocate_to_pool(device, pool_id(pool), std::move(filter));
}

EXPORTED void tenure_end_allocate_to_pool(int device, PoolPair pool) {
    front().end_allocate_to_pool(device, pool_id(pool));
}

EXPORTED void tenure_release_pool(int device, PoolPair pool) {
    front().release_pool(device, pool_id(pool));
}

// What PyTorch's plug-in interface leaves out; src/tenure/live/glue.cpp finds these by name.

EXPORTED std::size_t tenure_largest_free(int device) {
    return static_cast<std::size_t>(front().largest_free(device));
}

EXPORTED void tenure_create_pool(int device, PoolPair pool) {
    front().create_memory_pool(device, pool_id(pool));
}

EXPORTED void* tenure_checkpoint(int device, PoolPair pool) {
    return new Checkpoint{pool_id(pool), front().checkpoint(device, pool_id(pool))};
}

EXPORTED void tenure_drop_checkpoint(void* checkpoint) {
    delete static_cast<Checkpoint*>(checkpoint);
}

// Calls `see` with each address that was freed (0), then with each that was made live (1).
EXPORTED void tenure_restore_checkpoint(int device, void* checkpoint, void* caller,
                                        void (*see)(void* caller, void* pointer, int made)) {
    const auto& saved = *static_cast<Checkpoint*>(checkpoint);
    const auto restored = front().restore_checkpoint(device, saved.pool, saved.blocks);
    for (const tenure::Address address : restored.freed)
        see(caller, reinterpret_cast<void*>(address), 0);
    for (const tenure::Address address : restored.made)
        see(caller, reinterpret_cast<void*>(address), 1);
}

// Calls `see` with each address that is live in the pool.
EXPORTED void tenure_see_pool(int device, PoolPair pool, void* caller,
                              void (*see)(void* caller, void* pointer)) {
    for (const auto& block : front().checkpoint(device, pool_id(pool)))
        see(caller, reinterpret_cast<void*>(block.address));
}

// Whether the device `reader` reaches what `owner` maps, from now on.
EXPORTED bool tenure_grant_access(int owner, int reader) {
    return front().grant_access(owner, reader);
}

// What a profiler is told of a live block: its device and size, and the device's bytes allocated
// and reserved. False if there is no such block.
EXPORTED bool tenure_account(void* pointer, int* device, std::size_t* size, std::size_t* allocated,
                             std::size_t* reserved) {
    const auto address = reinterpret_cast<tenure::Address>(pointer);
    return front().with_live(address, [&](tenure::live::DeviceFront& on, tenure::Block* block) {
        const tenure::Statistics& statistics = on.allocator.statistics();
        *device = on.number;
        *size = static_cast<std::size_t>(block->size);
        *allocated = static_cast<std::size_t>(statistics.allocated_bytes.all.current);
        *reserved = static_cast<std::size_t>(statistics.reserved_bytes.all.current);
    });
}

// The name under which another process may borrow a live block, told to `see`; where the block
// begins in what is borrowed.
EXPORTED std::ptrdiff_t tenure_share(void* pointer, void* caller,
                                     void (*see)(void* caller, const char* name)) {
    const auto shared = tenure::live::share(front(), pointer);
    see(caller, shared.name.c_str());
    return static_cast<std::ptrdiff_t>(shared.offset);
}

EXPORTED void* tenure_borrow(const char* name, int device, void** data) {
    auto borrowed = std::make_unique<tenure::live::BorrowedBlock>(front(), name, device);
    *data = borrowed->data();
    return borrowed.release();
}

EXPORTED void tenure_give_back(void* borrowed) {
    delete static_cast<tenure::live::BorrowedBlock*>(borrowed);
}

}  // extern "C"

namespace tenure {

std::vector<std::pair<const char*, std::uintptr_t>> entry_points() {
    auto address = [](auto* function) { return reinterpret_cast<std::uintptr_t>(function); };
    return {{"allocate", address(tenure_allocate)},
            {"free", address(tenure_free)},
            {"record_stream", address(tenure_record_stream)},
            {"empty_cache", address(tenure_empty_cache)},
            {"set_memory_fraction", address(tenure_set_memory_fraction)},
            {"base_address", address(tenure_base_address)},
            {"begin_allocate_to_pool", address(tenure_begin_allocate_to_pool)},
            {"end_allocate_to_pool", address(tenure_end_allocate_to_pool)},
            {"release_pool", address(tenure_release_pool)}};
}

}  // namespace tenure
