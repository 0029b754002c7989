// PyTorch's interface for allocators, served by tenure's engine. Its own plug-in class leaves calls
// out (the largest free block, checkpoints of pools) and keeps a list of pointers under a lock of
// its own; this subclass answers the calls and needs no list.
//
// Compiled on the user's machine against the torch that is installed there (glue.py), since the
// classes differ by version. Methods that some version lacks have no `override`.
#include <dlfcn.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using Pool = c10::cuda::MempoolId_t;
using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;
using StreamFilter = std::function<bool(cudaStream_t)>;

// The engine's functions, by name: engine/python/entry_points.cpp.
struct Engine {
    void* (*allocate)(size_t, int, cudaStream_t) = nullptr;
    void (*free)(void*, size_t, int, cudaStream_t) = nullptr;
    void (*record_stream)(void*, cudaStream_t) = nullptr;
    void (*empty_cache)() = nullptr;
    void (*set_memory_fraction)(double, int) = nullptr;
    void* (*base_address)(void*, size_t*) = nullptr;
    void (*begin_allocate_to_pool)(int, Pool, StreamFilter) = nullptr;
    void (*end_allocate_to_pool)(int, Pool) = nullptr;
    void (*release_pool)(int, Pool) = nullptr;
    size_t (*largest_free)(int) = nullptr;
    void (*create_pool)(int, Pool) = nullptr;
    void* (*checkpoint)(int, Pool) = nullptr;
    void (*drop_checkpoint)(void*) = nullptr;
    void (*restore_checkpoint)(int, void*, void*, void (*)(void*, void*, int)) = nullptr;
    void (*see_pool)(int, Pool, void*, void (*)(void*, void*)) = nullptr;
    bool (*grant_access)(int, int) = nullptr;
    bool (*account)(void*, int*, size_t*, size_t*, size_t*) = nullptr;
    ptrdiff_t (*share)(void*, void*, void (*)(void*, const char*)) = nullptr;
    void* (*borrow)(const char*, int, void**) = nullptr;
    void (*give_back)(void*) = nullptr;

    void find_all(const char* path) {
        void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (!library) throw std::runtime_error("the engine is not loaded");
        auto find = [&](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (!function) throw std::runtime_error(std::string("the engine has no ") + name);
        };
        find(allocate, "tenure_allocate");
        find(free, "tenure_free");
        find(record_stream, "tenure_record_stream");
        find(empty_cache, "tenure_empty_cache");
        find(set_memory_fraction, "tenure_set_memory_fraction");
        find(base_address, "tenure_base_address");
        find(begin_allocate_to_pool, "tenure_begin_allocate_to_pool");
        find(end_allocate_to_pool, "tenure_end_allocate_to_pool");
        find(release_pool, "tenure_release_pool");
        find(largest_free, "tenure_largest_free");
        find(create_pool, "tenure_create_pool");
        find(checkpoint, "tenure_checkpoint");
        find(drop_checkpoint, "tenure_drop_checkpoint");
        find(restore_checkpoint, "tenure_restore_checkpoint");
        find(see_pool, "tenure_see_pool");
        find(grant_access, "tenure_grant_access");
        find(account, "tenure_account");
        find(share, "tenure_share");
        find(borrow, "tenure_borrow");
        find(give_back, "tenure_give_back");
    }
};

Engine engine;

// Whether some profiler runs: asking PyTorch at each call would cost a fifth of an allocation.
std::atomic<bool> profiled{false};

// Tells a profiler that listens to this thread of a block that was made, or is about to be freed.
void report(void* pointer, bool made) {
    if (!c10::memoryProfilingEnabled()) return;
    int device = 0;
    size_t size = 0;
    size_t allocated = 0;
    size_t reserved = 0;
    if (!engine.account(pointer, &device, &size, &allocated, &reserved)) return;
    const auto change = static_cast<int64_t>(size);
    const c10::Device on(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    c10::reportMemoryUsageToProfiler(pointer, made ? change : -change,
                                     made ? allocated : allocated - size, reserved, on);
}

void* take_block(size_t size, c10::DeviceIndex device, cudaStream_t stream) {
    void* pointer = engine.allocate(size, device, stream);
    if (profiled.load(std::memory_order_relaxed)) report(pointer, true);
    return pointer;
}

// Tensors may die after everything else, so this is a plain function of plain pointers. The engine
// finds the device by the address.
void free_block(void* pointer) {
    if (profiled.load(std::memory_order_relaxed)) report(pointer, false);
    engine.free(pointer, 0, -1, nullptr);
}

struct Checkpoint final : caching::AllocatorState {
    explicit Checkpoint(void* saved) : saved(saved) {}
    ~Checkpoint() override { engine.drop_checkpoint(saved); }
    void* const saved;
};

// What other processes sent: mapped once, however many tensors lie in it.
class BorrowedBlocks {
  public:
    std::shared_ptr<void> borrow(const std::string& name, int device) {
        const std::lock_guard<std::mutex> held(lock_);
        if (auto known = blocks_[name].lock()) return known;
        void* data = nullptr;
        void* borrowed = engine.borrow(name.c_str(), device, &data);
        auto give_back = [this, name, borrowed](void*) {
            const std::lock_guard<std::mutex> held(lock_);
            engine.give_back(borrowed);
            if (const auto known = blocks_.find(name);
                known != blocks_.end() && known->second.expired())
                blocks_.erase(known);
        };
        std::shared_ptr<void> block(data, std::move(give_back));
        blocks_[name] = block;
        return block;
    }

  private:
    std::mutex lock_;
    std::unordered_map<std::string, std::weak_ptr<void>> blocks_;
};

class Allocator final : public Pluggable {
  public:
    Allocator() : Pluggable(engine.allocate, engine.free) {
        set_record_stream_fn(engine.record_stream);
        set_reset_fn(engine.empty_cache);
        set_memory_fraction_fn(engine.set_memory_fraction);
        set_base_alloc_fn(engine.base_address);
        set_begin_allocate_to_pool(engine.begin_allocate_to_pool);
        set_end_allocate_to_pool_fn(engine.end_allocate_to_pool);
        set_release_pool(engine.release_pool);
    }

    c10::DataPtr allocate(size_t size) override {
        const c10::DeviceIndex device = current_device();
        void* pointer = take_block(size, device, c10::cuda::getCurrentCUDAStream(device));
        return {pointer, pointer, &free_block, c10::Device(c10::DeviceType::CUDA, device)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
    void* raw_alloc(size_t size) override {
        const c10::DeviceIndex device = current_device();
        return take_block(size, device, c10::cuda::getCurrentCUDAStream(device));
    }
    void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
        return take_block(size, current_device(), stream);
    }
    void raw_delete(void* pointer) override { free_block(pointer); }

    void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
        *largest = engine.largest_free(device);
    }

    std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                                Pool pool) override {
        return std::make_shared<Checkpoint>(engine.checkpoint(device, pool));
    }
    caching::CheckpointDelta setCheckpointPoolState(
        c10::DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
        const auto* checkpoint = dynamic_cast<Checkpoint*>(state.get());
        TORCH_CHECK(checkpoint, "tenure: this is not a checkpoint of tenure's");
        struct Seen {
            caching::CheckpointDelta delta;
            c10::DeviceIndex device;
        } seen{{}, device};
        engine.restore_checkpoint(
            device, checkpoint->saved, &seen, [](void* caller, void* pointer, int made) {
                auto& [delta, device] = *static_cast<Seen*>(caller);
                if (made)
                    delta.dataptrs_allocd.emplace_back(pointer, pointer, &free_block,
                                                       c10::Device(c10::DeviceType::CUDA, device));
                else
                    delta.ptrs_freed.push_back(pointer);
            });
        return std::move(seen.delta);
    }
    bool checkPoolLiveAllocations(c10::DeviceIndex device, Pool pool,
                                  const std::unordered_set<void*>& expected) override {
        std::unordered_set<void*> live;
        engine.see_pool(device, pool, &live, [](void* caller, void* pointer) {
            static_cast<std::unordered_set<void*>*>(caller)->insert(pointer);
        });
        return live == expected;
    }

    // Called before the first copy between two devices. Mapped memory has to be told of each device
    // that reaches it; PyTorch's own call is for what cudaMalloc gave.
    void enablePeerAccess(c10::DeviceIndex reader, c10::DeviceIndex owner) override {
        TORCH_CHECK(engine.grant_access(owner, reader), "tenure: GPU ", int{reader},
                    " cannot be given access to the memory of GPU ", int{owner});
        Pluggable::enablePeerAccess(reader, owner);
    }
    // Without peer access only the call for peers copies what was not made by cudaMalloc.
    cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                            size_t bytes, cudaStream_t stream, bool has_access) override {
        if (to_device != from_device && !has_access)
            return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }

    // Tensors for other processes that run tenure as well; engine/live/sharing.hpp.
    caching::ShareableHandle shareIpcHandle(void* pointer) override {
        caching::ShareableHandle shared{};
        shared.offset = engine.share(pointer, &shared.handle, [](void* caller, const char* name) {
            *static_cast<std::string*>(caller) = name;
        });
        return shared;
    }
    std::shared_ptr<void> getIpcDevPtr(std::string name) override {
        static auto* borrowed = new BorrowedBlocks;  // tensors may outlive every static object
        return borrowed->borrow(name, current_device());
    }

    // What cannot be had, in words that say what to do.
    void attachAllocatorTraceTracker(caching::AllocatorTraceTracker) override {
        TORCH_CHECK(false,
                    "tenure: its memory cannot be registered with NCCL; run without "
                    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK, or without tenure");
    }

    // A pool's memory always comes from the engine.
    void createOrIncrefPool(c10::DeviceIndex device, Pool pool,
                            std::shared_ptr<caching::CUDAAllocator> allocator) {
        require_none(allocator != nullptr);
        engine.create_pool(device, pool);
    }
    void createOrIncrefPool(c10::DeviceIndex device, Pool pool, caching::CUDAAllocator* allocator) {
        require_none(allocator != nullptr);
        engine.create_pool(device, pool);
    }

  private:
    static c10::DeviceIndex current_device() {
        static const bool only_one = c10::cuda::device_count() <= 1;
        c10::DeviceIndex device = 0;
        if (only_one) return device;  // the runtime's own answer takes as long as an allocation
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        return device;
    }
    static void require_none(bool has_allocator) {
        TORCH_CHECK(!has_allocator,
                    "tenure: a MemPool with an allocator of its own cannot be made");
    }
};

}  // namespace

// A profiler begins, or the last one ends.
extern "C" void tenure_glue_profile(int on) { profiled.store(on != 0); }

// Makes the engine PyTorch's allocator; what stood in the way, or null.
extern "C" const char* tenure_glue_install(const char* path_of_engine) {
    static std::string error;
    try {
        engine.find_all(path_of_engine);
        // Never destroyed: tensors may outlive every static object.
        const auto* allocator =
            new std::shared_ptr<caching::CUDAAllocator>(std::make_shared<Allocator>());
        torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(*allocator);
        return nullptr;
    } catch (const std::exception& caught) {
        error = caught.what();
        return error.c_str();
    }
}
