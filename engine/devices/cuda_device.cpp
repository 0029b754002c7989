#include "engine/devices/cuda_device.hpp"

#include <algorithm>
#include <string>

#include "engine/errors.hpp"

namespace tenure {

using namespace driver;

namespace {

constexpr std::size_t page = 2 * static_cast<std::size_t>(MiB);

// Inside one, the device's context is current and calls are allowed while a stream is captured.
class Entered {
  public:
    explicit Entered(const Functions& driver, Context context) : driver_(driver) {
        Context current = nullptr;
        driver_.context_get_current(&current);
        if (current != context) pushed_ = driver_.context_push_current(context) == success;
        driver_.exchange_capture_mode(&mode_);
    }
    ~Entered() {
        driver_.exchange_capture_mode(&mode_);
        Context popped = nullptr;
        if (pushed_) driver_.context_pop_current(&popped);
    }
    Entered(const Entered&) = delete;

  private:
    const Functions& driver_;
    bool pushed_ = false;
    int mode_ = capture_mode_relaxed;  // the thread's own one, while inside
};

StreamPointer pointer(Stream stream) { return reinterpret_cast<StreamPointer>(stream); }
EventPointer event_pointer(EventHandle event) { return reinterpret_cast<EventPointer>(event); }

void require(Result result, const std::string& what) {
    if (result == success) return;
    const std::string& loading = load_error();
    throw UsageError(what + (loading.empty() ? ": " + name_of(result)
                                             : ": no NVIDIA driver here (" + loading + ")"));
}

}  // namespace

int CudaDevice::count() {
    int devices = 0;
    if (functions().init(0) != success) return 0;
    return functions().device_count(&devices) == success ? devices : 0;
}

bool CudaDevice::can_map(int number) {
    const Functions& driver = functions();
    DeviceNumber device = 0;
    int supported = 0;
    return driver.init(0) == success && driver.device_get(&device, number) == success &&
           driver.device_attribute(&supported, attribute_virtual_memory, device) == success &&
           supported != 0;
}

CudaDevice::CudaDevice(int number) : driver_(functions()), number_(number) {
    const std::string what = "cannot use GPU " + std::to_string(number);
    require(driver_.init(0), what);
    require(driver_.device_get(&device_, number), what);
    require(driver_.primary_context_retain(&context_, device_), what);
    std::size_t total = 0;
    require(driver_.device_total_memory(&total, device_), what);
    total_ = static_cast<Bytes>(total);
    has_peers_ = count() > 1;
    access_.push_back({{location_device, number_}, access_read_write});
    std::size_t granularity = 0;
    const AllocationProperties wanted = properties();
    virtual_memory_ =
        can_map(number) &&
        driver_.memory_granularity(&granularity, &wanted, granularity_minimum) == success &&
        granularity != 0 && page % granularity == 0;
}

// Remembers how a call that gives memory ended.
bool CudaDevice::note(Result result) {
    last_result_ = result;
    return result == success;
}

AllocationProperties CudaDevice::properties() const {
    AllocationProperties wanted{};
    wanted.type = allocation_pinned;
    wanted.location = {location_device, number_};
    return wanted;
}

Address CudaDevice::create_segment(Bytes size) {
    const Entered entered(driver_, context_);
    DevicePointer address = 0;
    return note(driver_.memory_allocate(&address, static_cast<std::size_t>(size))) ? address : 0;
}

void CudaDevice::destroy_segment(Address address, Bytes) {
    const Entered entered(driver_, context_);
    driver_.memory_free(address);
}

Address CudaDevice::reserve(Bytes size, Bytes) {
    if (!virtual_memory_) return 0;
    const Entered entered(driver_, context_);
    DevicePointer address = 0;
    const auto bytes = static_cast<std::size_t>(size);
    return note(driver_.address_reserve(&address, bytes, 0, 0, 0)) ? address : 0;
}

void CudaDevice::unreserve(Address address, Bytes size) {
    const Entered entered(driver_, context_);
    driver_.address_free(address, static_cast<std::size_t>(size));
}

ChunkHandle CudaDevice::create_chunk(Bytes size) {
    const Entered entered(driver_, context_);
    AllocationHandle handle = 0;
    const AllocationProperties wanted = properties();
    if (!note(driver_.memory_create(&handle, static_cast<std::size_t>(size), &wanted, 0))) return 0;
    return handle + 1;  // the driver's handles may be 0
}

void CudaDevice::destroy_chunk(ChunkHandle chunk, Bytes) {
    const Entered entered(driver_, context_);
    driver_.memory_release(chunk - 1);
}

Result CudaDevice::set_access(Address address, Bytes size) const {
    return driver_.memory_set_access(address, static_cast<std::size_t>(size), access_.data(),
                                     access_.size());
}

bool CudaDevice::map_chunk(Address address, ChunkHandle chunk, Bytes size) {
    const Entered entered(driver_, context_);
    const auto bytes = static_cast<std::size_t>(size);
    if (!note(driver_.memory_map(address, bytes, 0, chunk - 1, 0))) return false;
    if (!note(set_access(address, size))) {
        driver_.memory_unmap(address, bytes);
        return false;
    }
    if (has_peers_) mapped_[address] = size;
    return true;
}

void CudaDevice::unmap_chunk(Address address, Bytes size) {
    const Entered entered(driver_, context_);
    driver_.memory_unmap(address, static_cast<std::size_t>(size));
    if (has_peers_) mapped_.erase(address);
}

bool CudaDevice::export_segment(Address address, IpcHandle& handle) const {
    const Entered entered(driver_, context_);
    return driver_.ipc_handle(&handle, address) == success;
}

Address CudaDevice::open_segment(const IpcHandle& handle) {
    const Entered entered(driver_, context_);
    DevicePointer address = 0;
    return driver_.ipc_open(&address, handle, ipc_lazy_peer_access) == success ? address : 0;
}

void CudaDevice::close_segment(Address address) {
    const Entered entered(driver_, context_);
    driver_.ipc_close(address);
}

void CudaDevice::synchronize_all() const {
    const Entered entered(driver_, context_);
    driver_.context_synchronize();
}

bool CudaDevice::grant_access(int peer) {
    DeviceNumber other = 0;
    int reachable = 0;
    if (driver_.device_get(&other, peer) != success) return false;
    if (driver_.device_can_access_peer(&reachable, other, device_) != success || !reachable)
        return false;
    for (const AccessDescription& granted : access_)
        if (granted.location.id == peer) return true;
    const Entered entered(driver_, context_);
    access_.push_back({{location_device, peer}, access_read_write});
    for (const auto& [address, size] : mapped_)
        if (set_access(address, size) != success) {
            access_.pop_back();  // what it may reach already it keeps; the next call begins anew
            return false;
        }
    return true;
}

EventHandle CudaDevice::record_event(Stream stream) {
    const Entered entered(driver_, context_);
    EventPointer event = nullptr;
    if (spare_events_.empty()) {
        if (driver_.event_create(&event, event_without_timing) != success) return 0;
    } else {
        event = spare_events_.back();
        spare_events_.pop_back();
    }
    if (driver_.event_record(event, pointer(stream)) == success)
        return reinterpret_cast<EventHandle>(event);
    spare_events_.push_back(event);
    return record_elsewhere(stream);
}

// Another device's stream that used memory of this one: only an event of that device's can be
// recorded on it.
EventHandle CudaDevice::record_elsewhere(Stream stream) {
    Context other = nullptr;
    if (driver_.stream_context(pointer(stream), &other) != success || other == context_) return 0;
    const Entered entered(driver_, other);
    EventPointer event = nullptr;
    if (driver_.event_create(&event, event_without_timing) != success) return 0;
    if (driver_.event_record(event, pointer(stream)) == success) {
        foreign_events_.insert(event);
        return reinterpret_cast<EventHandle>(event);
    }
    driver_.event_destroy(event);
    return 0;
}

// An event of a device in trouble is done: nothing behind it will run any more.
bool CudaDevice::is_done(EventHandle event) {
    const Entered entered(driver_, context_);
    return driver_.event_query(event_pointer(event)) != not_ready;
}

void CudaDevice::wait(EventHandle event) {
    const Entered entered(driver_, context_);
    driver_.event_synchronize(event_pointer(event));
}

void CudaDevice::release_event(EventHandle event) {
    if (!foreign_events_.empty() && foreign_events_.erase(event_pointer(event)) > 0) {
        driver_.event_destroy(event_pointer(event));
        return;
    }
    spare_events_.push_back(event_pointer(event));
}

void CudaDevice::synchronize(Stream stream) {
    const Entered entered(driver_, context_);
    driver_.stream_synchronize(pointer(stream));
}

bool CudaDevice::make_stream_wait(Stream stream, EventHandle event) {
    const Entered entered(driver_, context_);
    return driver_.stream_wait_event(pointer(stream), event_pointer(event), 0) == success;
}

Bytes CudaDevice::free_memory() const {
    const Entered entered(driver_, context_);
    std::size_t free = 0;
    std::size_t total = 0;
    return driver_.memory_info(&free, &total) == success ? static_cast<Bytes>(free) : 0;
}

std::string CudaDevice::pci_bus_id() const {
    char text[32] = "";
    return driver_.device_pci_bus_id(text, sizeof text, device_) == success ? text : "";
}

}  // namespace tenure
