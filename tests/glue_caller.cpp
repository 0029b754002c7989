// Calls PyTorch's current allocator as PyTorch's own C++ does; needs no device of CUDA's.
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

std::shared_ptr<caching::AllocatorState> checkpoint;
caching::CheckpointDelta delta;
caching::ShareableHandle shared;
std::vector<std::shared_ptr<void>> received;

// The first line of what was thrown; empty for nothing. Until the next call.
template <typename Call>
const char* error_of(Call call) {
    static std::string error;
    error.clear();
    try {
        call();
    } catch (const std::exception& caught) {
        error = caught.what();
        error.resize(std::min(error.find('\n'), error.size()));
    }
    return error.c_str();
}

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

// What was in the way of one device's reaching another's memory; empty for nothing.
const char* caller_enable_peer_access(int reader, int owner) {
    return error_of([=] {
        caching::enablePeerAccess(static_cast<c10::DeviceIndex>(reader),
                                  static_cast<c10::DeviceIndex>(owner));
    });
}

// Sending, receiving, and what NCCL's registration begins with.
const char* caller_share(void* pointer) {
    return error_of([=] { shared = caching::shareIpcHandle(pointer); });
}
const char* caller_shared_name() { return shared.handle.c_str(); }
size_t caller_shared_offset() { return static_cast<size_t>(shared.offset); }
const char* caller_receive(const char* name) {
    return error_of([=] { received.push_back(caching::getIpcDevPtr(name)); });
}
void* caller_received(size_t i) { return received.at(i).get(); }
void caller_let_go() { received.clear(); }
const char* caller_track() {
    return error_of([] { caching::attachAllocatorTraceTracker([](const auto&) {}); });
}

// What a profiler hears of a block that is made and freed: "1024 of 1024, -1024 of 0".
const char* caller_profiled(size_t size) {
    static std::string heard;
    heard.clear();
    struct Profiler final : c10::MemoryReportingInfoBase {
        void reportMemoryUsage(void*, int64_t change, size_t allocated, size_t,
                               c10::Device device) override {
            if (!heard.empty()) heard += ", ";
            heard += std::to_string(change) + " of " + std::to_string(allocated);
            if (!device.is_cuda()) heard += "?";
        }
        bool memoryProfilingEnabled() const override { return true; }
    };
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE,
                                    std::make_shared<Profiler>());
    caching::raw_delete(caching::raw_alloc_with_stream(size, nullptr));
    return heard.c_str();
}

void* caller_take(size_t size) { return caching::raw_alloc_with_stream(size, nullptr); }
void caller_delete(void* pointer) { caching::raw_delete(pointer); }

}  // extern "C"
