// Requests and frees of a running process; pools.cpp has the rest.
#include "engine/live/front.hpp"

#include <pthread.h>
#include <time.h>

#include <mutex>
#include <stdexcept>

#include "engine/live/notes.hpp"

namespace tenure::live {

namespace {

using Held = std::lock_guard<Lock>;

std::atomic<Front*> the_front{nullptr};
std::atomic<bool> devices_in_use{false};
std::atomic<bool> forked{false};

void after_fork_in_child() {
    if (devices_in_use.load()) forked.store(true);
}

std::int64_t coarse_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// Without virtual memory there are no arenas: PyTorch's default rules are what is left.
Settings fitted(Settings settings, const CudaDevice& device) {
    settings.device_memory = device.total_memory();
    if (device.has_virtual_memory()) return settings;
    settings.rules = Rules::torch;
    settings.expandable_segments = false;
    return settings;
}

}  // namespace

DeviceFront::DeviceFront(int number, const Settings& settings)
    : number(number), device(number), allocator(fitted(settings, device), device) {}

PoolId DeviceFront::pool_for(Stream stream) const {
    for (const Route& route : routes)
        if (route.filter(reinterpret_cast<CUstream_st*>(stream))) return route.pool;
    return {};
}

Front::Front(const Options& options, const Host& host)
    : options_(options),
      stack_(host.stack),
      collect_(host.collect),
      explain_(host.explain),
      made_at_ms_(coarse_ms()) {}

std::uint32_t Front::now_ms() const {
    return static_cast<std::uint32_t>(coarse_ms() - made_at_ms_);
}

StackId Front::stack(bool wanted) const {
    const auto capture = wanted ? stack_.load(std::memory_order_relaxed) : nullptr;
    return capture ? capture() : 0;
}

// --- devices -------------------------------------------------------------------------------------

DeviceFront* Front::find(int device) const {
    if (device < 0 || device >= most_devices) return nullptr;
    return devices_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

DeviceFront& Front::device(int device) {
    if (DeviceFront* front = find(device)) return *front;
    return make(device);
}

DeviceFront& Front::make(int device) {
    if (device < 0 || device >= most_devices)
        throw UsageError("there is no GPU " + std::to_string(device));
    const Held held(devices_lock_);
    if (DeviceFront* front = find(device)) return *front;
    auto* front = new DeviceFront(device, options_.settings);
    devices_in_use.store(true);
    front->capacity = options_.settings.limit;
    front->history = history_;
    keep_log(*front, history_.events);
    front->ring.set_limit(history_.max_events);
    set_fraction(*front, options_.memory_fraction);
    for (int other = 0; other < most_devices; ++other) {
        DeviceFront* peer = find(other);
        if (!peer) continue;
        const Held peer_held(peer->lock);
        peer->device.grant_access(device);
        front->device.grant_access(other);
    }
    devices_[static_cast<std::size_t>(device)].store(front, std::memory_order_release);
    return *front;
}

DeviceFront* Front::owner(Address address) const {
    for (int device = 0; device < most_devices; ++device) {
        DeviceFront* front = find(device);
        if (!front) continue;
        const Held held(front->lock);
        if (front->live.find(address)) return front;
    }
    return nullptr;
}

// --- requests ------------------------------------------------------------------------------------

void* Front::allocate(Bytes size, int device, Stream stream) {
    if (size == 0) return nullptr;
    if (is_forked())
        throw std::runtime_error(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method");
    DeviceFront& front = this->device(device);
    const StackId stack = this->stack(alloc_stacks_.load(std::memory_order_relaxed));
    if (Block* block = try_allocate(front, size, stream, stack))
        return reinterpret_cast<void*>(block->address);
    return retry_or_fail(front, size, stream, stack);
}

// Null if there is no memory; whatever else is thrown has nothing to do with how much there is.
Block* Front::try_allocate(DeviceFront& front, Bytes size, Stream stream, StackId stack) {
    const Held held(front.lock);
    Block* block = nullptr;
    const PoolId pool = front.routes.empty() ? PoolId{} : front.pool_for(stream);
    try {
        block = front.allocator.allocate(size, stream, pool);
    } catch (const OutOfMemory&) {
        if (front.history.events) note_changes(front, stack);
        return nullptr;
    }
    block->tag = BlockNote{stack, now_ms()}.tag();
    front.live.insert(block);
    if (front.history.events) note_allocation(front, *block, pool, stack);
    return block;
}

// Objects that only dead cycles hold are collected once, outside every lock.
void* Front::retry_or_fail(DeviceFront& front, Bytes size, Stream stream, StackId stack) {
    const auto collect = collect_.load();
    if (collect && collect()) {
        Block* block = try_allocate(front, size, stream, stack);
        const Held held(front.lock);
        ++front.rescued;
        if (block) return reinterpret_cast<void*>(block->address);
    }
    fail(front, size, stream, stack);
}

void Front::fail(DeviceFront& front, Bytes size, Stream stream, StackId stack) {
    Shortage shortage;
    shortage.device = front.number;
    shortage.requested = size;
    shortage.stream = stream;
    {
        const Held held(front.lock);
        const driver::Result result = front.device.last_result();
        if (result != driver::success && result != driver::out_of_memory)
            throw std::runtime_error("CUDA error: " + driver::name_of(result) +
                                     ", met when memory was asked for");
        shortage.pool = front.routes.empty() ? PoolId{} : front.pool_for(stream);
        shortage.segment = front.allocator.segment_for(size);
        shortage.total = front.device.total_memory();
        shortage.free = front.device.free_memory();
        shortage.pci_bus_id = front.device.pci_bus_id();
        describe(front.allocator, shortage);
        if (front.history.events) note_shortage(front, shortage, stack);
    }
    std::string text = first_line(shortage) + causes(shortage);
    if (const auto explain = explain_.load()) text += explain(shortage);
    throw OutOfMemory(text, size, shortage.segment, stream);
}

// --- frees and uses ------------------------------------------------------------------------------

void Front::free(void* pointer, int device) noexcept {
    if (!pointer || is_forked()) return;
    const auto address = reinterpret_cast<Address>(pointer);
    try {
        const StackId stack = this->stack(free_stacks_.load(std::memory_order_relaxed));
        DeviceFront* front = find(device);
        if (front && free_from(*front, address, stack)) return;
        front = owner(address);
        if (front) free_from(*front, address, stack);
    } catch (...) {  // the block stays where it is: lost, but nothing is broken
    }
}

bool Front::free_from(DeviceFront& front, Address address, StackId stack) {
    const Held held(front.lock);
    Block* block = front.live.take(address);
    if (!block) return false;
    if (front.history.events) note_free(front, *block, stack);
    front.allocator.free(block);
    if (front.history.events) note_changes(front, stack);
    return true;
}

void Front::record_stream(void* pointer, Stream stream) noexcept {
    if (!pointer || is_forked()) return;
    const auto address = reinterpret_cast<Address>(pointer);
    try {
        DeviceFront* front = owner(address);
        if (!front) return;
        const Held held(front->lock);
        if (Block* block = front->live.find(address)) front->allocator.record_stream(block, stream);
    } catch (...) {
    }
}

// --- the process ---------------------------------------------------------------------------------

Front* installed() { return the_front.load(std::memory_order_acquire); }

Front& install(const Options& options, const Host& host) {
    if (installed()) throw UsageError("tenure is already installed in this process");
    auto* front = new Front(options, host);
    Front* none = nullptr;
    if (!the_front.compare_exchange_strong(none, front)) {
        delete front;
        throw UsageError("tenure is already installed in this process");
    }
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    return *front;
}

bool is_forked() { return forked.load(std::memory_order_relaxed); }

}  // namespace tenure::live
