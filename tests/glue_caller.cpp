// Calls PyTorch's current allocator as PyTorch's own C++ does; needs no device of CUDA's.
#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <unordered_set>

namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

std::shared_ptr<caching::AllocatorState> checkpoint;
caching::CheckpointDelta delta;

}  // namespace

extern "C" {

size_t caller_cache_info(int device) {
    size_t largest = 0;
    caching::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
    return largest;
}

void caller_begin(int device, uint64_t pool) {
    caching::beginAllocateToPool(static_cast<c10::DeviceIndex>(device), {pool, 0},
                                 [](cudaStream_t) { return true; });
}
void caller_end(int device, uint64_t pool) {
    caching::endAllocateToPool(static_cast<c10::DeviceIndex>(device), {pool, 0});
}

void caller_checkpoint(int device, uint64_t pool) {
    checkpoint = caching::getCheckpointState(static_cast<c10::DeviceIndex>(device), {pool, 0});
}
// How many were freed; and how many made live, by the second of the two.
size_t caller_restore(int device) {
    delta = caching::setCheckpointPoolState(static_cast<c10::DeviceIndex>(device), checkpoint);
    return delta.ptrs_freed.size();
}
size_t caller_made() { return delta.dataptrs_allocd.size(); }
// Whoever dies with the delta's pointers frees them, as a tensor would.
void caller_forget() {
    delta = {};
    checkpoint.reset();
}

int caller_is_live(int device, uint64_t pool, void** pointers, size_t count) {
    return caching::checkPoolLiveAllocations(static_cast<c10::DeviceIndex>(device), {pool, 0},
                                             std::unordered_set<void*>(pointers, pointers + count));
}

void caller_delete(void* pointer) { caching::raw_delete(pointer); }

}  // extern "C"
