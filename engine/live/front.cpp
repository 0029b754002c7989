// Requests and frees of a running process; pools.cpp has the rest.
#include "engine/live/front.hpp"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "engine/live/notes.hpp"

namespace tenure::live {

namespace {

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

Held::Held(DeviceFront& front) : front_(front) {
    front.lock.lock();
    for (StreamFront* stream : front.active) {
        stream->lock.lock();
        front.allocator.count(stream->lane);
    }
    front.gather_events();
}

Held::~Held() {
    front_.open = front_.routes.empty() && front_.allocator.serves_lanes();
    front_.park_idle();
    front_.lanes.clear();
    for (StreamFront* stream : front_.active) front_.lanes.push_back(&stream->lane);
    front_.allocator.deal(front_.lanes);
    front_.learn_arenas();
    for (StreamFront* stream : front_.active) {
        stream->set_open(true);
        stream->lock.unlock();
    }
    front_.lock.unlock();
}

// A stream that has not been used for a while serves nothing until it is, nor does any while the
// device is not open: then nobody has to take their locks either.
void DeviceFront::park_idle() {
    std::erase_if(active, [&](StreamFront* stream) {
        if (open && stream->lane.idle <= Lane::most_idle) return false;
        stream->set_open(false);
        stream->is_active = false;
        stream->lock.unlock();
        return true;
    });
}

// What streams kept since the device was last at rest, by time. Memory changes streams only while
// the device is at rest, so that between streams nothing depends on the order.
void DeviceFront::gather_events() {
    std::vector<Event> all;
    for (StreamFront* stream : active) {
        const auto middle = static_cast<std::ptrdiff_t>(all.size());
        all.insert(all.end(), stream->events.begin(), stream->events.end());
        stream->events.clear();
        std::inplace_merge(all.begin(), all.begin() + middle, all.end(),
                           [](const Event& a, const Event& b) { return a.time_us < b.time_us; });
    }
    for (Event& event : all) {
        ring.add(event);
        if (event.action != Action::free_requested) continue;
        event.action = Action::free_completed;
        ring.add(event);
    }
}

void DeviceFront::learn_arenas() {
    const std::uint64_t changes = allocator.segment_changes();
    if (std::exchange(segments_known, changes) == changes) return;
    for (std::size_t i = 0; i < stream_count; ++i) streams[i]->learn_arenas();
}

StreamFront* DeviceFront::make_stream(Stream stream) {
    const std::size_t index = stream_count;
    if (allocator.settings().rules != Rules::elastic || index == most_streams) return nullptr;
    streams[index] = std::make_unique<StreamFront>(allocator, stream, history);
    StreamFront* made = streams[index].get();
    made->learn_arenas();
    std::size_t place = place_of(stream);
    while (stream_table[place].load()) place = (place + 1) % stream_table.size();
    stream_table[place].store(made, std::memory_order_release);
    stream_count.store(index + 1, std::memory_order_release);
    return made;
}

Block* DeviceFront::find_live(Address address) const {
    Block* block = live.find(address);
    for (std::size_t i = 0; !block && i < stream_count; ++i) block = streams[i]->live.find(address);
    return block;
}

Block* DeviceFront::take_live(Address address) {
    Block* block = live.take(address);
    for (std::size_t i = 0; !block && i < stream_count; ++i) block = streams[i]->live.take(address);
    return block;
}

void DeviceFront::add_live(Block* block, Stream stream) {
    StreamFront* own = this->stream(stream);
    if (!own) own = make_stream(stream);
    if (own) wake(*own);
    (own ? own->live : live).insert(block);
}

void DeviceFront::wake(StreamFront& stream) {
    stream.lane.idle = 0;
    if (!open || stream.is_active) return;
    stream.lock.lock();  // as those of all active ones are
    stream.is_active = true;
    active.push_back(&stream);
}

std::size_t DeviceFront::live_blocks() const {
    std::size_t blocks = live.size();
    for (std::size_t i = 0; i < stream_count; ++i) blocks += streams[i]->live.size();
    return blocks;
}

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
    const std::lock_guard held(devices_lock_);
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
        const Held peer_held(*peer);
        peer->device.grant_access(device);
        front->device.grant_access(other);
    }
    devices_[static_cast<std::size_t>(device)].store(front, std::memory_order_release);
    return *front;
}

// --- requests ------------------------------------------------------------------------------------

void* Front::allocate(Bytes size, int device, Stream stream) {
    if (size == 0) return nullptr;
    if (is_forked())
        throw std::runtime_error(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method");
    const StackId stack = this->stack(alloc_stacks_.load(std::memory_order_relaxed));
    const BlockNote note{stack, now_ms()};
    DeviceFront& front = this->device(device);
    Block* block = nullptr;
    if (StreamFront* own = front.stream(stream)) block = own->allocate(size, note);
    if (!block) block = try_allocate(front, size, stream, note);
    return block ? reinterpret_cast<void*>(block->address)
                 : retry_or_fail(front, size, stream, note);
}

// Null if there is no memory; whatever else is thrown has nothing to do with how much there is.
Block* Front::try_allocate(DeviceFront& front, Bytes size, Stream stream, BlockNote note) {
    const Held held(front);
    Block* block = nullptr;
    const PoolId pool = front.routes.empty() ? PoolId{} : front.pool_for(stream);
    try {
        block = front.allocator.allocate(size, stream, pool);
    } catch (const OutOfMemory&) {
        if (front.history.events) note_changes(front, note.stack);
        return nullptr;
    }
    block->tag = note.tag();
    front.add_live(block, stream);
    if (front.history.events) note_allocation(front, *block, pool, note.stack);
    return block;
}

// Objects that only dead cycles hold are collected once, outside every lock.
void* Front::retry_or_fail(DeviceFront& front, Bytes size, Stream stream, BlockNote note) {
    const auto collect = collect_.load();
    if (collect && collect()) {
        Block* block = try_allocate(front, size, stream, note);
        const Held held(front);
        ++front.rescued;
        if (block) return reinterpret_cast<void*>(block->address);
    }
    fail(front, size, stream, note.stack);
}

void Front::fail(DeviceFront& front, Bytes size, Stream stream, StackId stack) {
    Shortage shortage;
    shortage.device = front.number;
    shortage.requested = size;
    shortage.stream = stream;
    {
        const Held held(front);
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
        auto by_stream = [&](DeviceFront* front) {
            StreamFront* own = front ? front->stream_holding(address) : nullptr;
            return own && own->free(address, stack);
        };
        DeviceFront* hint = find(device);
        if (by_stream(hint)) return;
        if (hint && free_from(*hint, address, stack)) return;
        for (int other = 0; other < most_devices; ++other)
            if (by_stream(find(other))) return;
        for (int other = 0; other < most_devices; ++other)
            if (DeviceFront* front = find(other); front && free_from(*front, address, stack))
                return;
    } catch (...) {  // the block stays where it is: lost, but nothing is broken
    }
}

bool Front::free_from(DeviceFront& front, Address address, StackId stack) {
    const Held held(front);
    Block* block = front.take_live(address);
    if (!block) return false;
    if (StreamFront* own = front.stream(block->segment->home->stream)) front.wake(*own);
    if (front.history.events) note_free(front, *block, stack);
    front.allocator.free(block);
    if (front.history.events) note_changes(front, stack);
    return true;
}

void Front::record_stream(void* pointer, Stream stream) noexcept {
    if (!pointer || is_forked()) return;
    const auto address = reinterpret_cast<Address>(pointer);
    try {
        with_live(address, [&](DeviceFront& front, Block* block) {
            front.allocator.record_stream(block, stream);
        });
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
