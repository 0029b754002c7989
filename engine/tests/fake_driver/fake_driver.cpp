// NVIDIA's driver as far as tenure uses it, over host memory: a library to load in its place.
//
// It holds its callers to the rules: calls that need a current context fail without one, mapped
// memory faults until access is set, and every handle must be one it gave out. The environment sets
// FAKE_DRIVER_MEMORY (bytes of a device, 1 GiB by default), FAKE_DRIVER_DEVICES (1), and with 0
// FAKE_DRIVER_VIRTUAL_MEMORY (whether they map memory) and FAKE_DRIVER_PEERS (reach each other).
#include "engine/tests/fake_driver/fake_driver.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/devices/driver_api.hpp"

using namespace tenure::driver;

namespace {

constexpr Result invalid_value = 1;
constexpr Result invalid_context = 201;
constexpr Result invalid_handle = 400;
constexpr std::size_t page = 2u << 20;

struct Range {
    std::size_t size;
    int device;
    int file;
};
struct Chunk {
    std::size_t size;
    int device;
    int mappings = 0;
};
struct Opened {  // what lies in an IpcHandle
    int process;
    int file;
    std::size_t size;
};
struct Event {
    Context context = nullptr;
    StreamPointer stream = nullptr;
    std::uint64_t number = 0;  // 0: never recorded
};

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::atoll(text) : otherwise;
}

struct Machine {
    std::mutex mutex;
    std::int64_t memory = from_environment("FAKE_DRIVER_MEMORY", 1 << 30);
    int devices = static_cast<int>(from_environment("FAKE_DRIVER_DEVICES", 1));
    bool virtual_memory = from_environment("FAKE_DRIVER_VIRTUAL_MEMORY", 1) != 0;
    bool peers = from_environment("FAKE_DRIVER_PEERS", 1) != 0;
    bool down = false;
    std::int64_t calls = 0;
    std::int64_t first_failure = 0;
    std::int64_t end_of_failures = 0;
    std::int64_t violations = 0;
    std::map<int, std::int64_t> used;
    std::map<DevicePointer, Range> segments;
    std::map<DevicePointer, std::size_t> opened;  // segments of other processes
    std::map<DevicePointer, std::size_t> reservations;
    std::map<AllocationHandle, Chunk> chunks;
    std::map<DevicePointer, std::pair<AllocationHandle, std::size_t>> mappings;
    std::map<DevicePointer, std::uint64_t> access;  // of a mapping: a bit for each device
    std::set<EventPointer> events;
    std::map<StreamPointer, Context> contexts;  // of streams that were told of
    std::set<StreamPointer> held;
    std::set<StreamPointer> capturing;
    std::map<StreamPointer, std::uint64_t> finished;
    std::uint64_t next_event = 1;

    bool fails() {
        ++calls;
        return calls >= first_failure && calls < end_of_failures;
    }
    Result wrong(Result result) {
        ++violations;
        return result;
    }
    bool take(int device, std::size_t size) {
        if (used[device] + static_cast<std::int64_t>(size) > memory) return false;
        used[device] += static_cast<std::int64_t>(size);
        return true;
    }
    bool is_done(const Event& event) {
        if (event.number == 0 || !held.contains(event.stream)) return true;
        return event.number <= finished[event.stream];
    }
};

Machine& machine() {
    static auto* one = new Machine;  // outlives every caller
    return *one;
}

char contexts[64];  // the address of entry i is the primary context of device i
thread_local std::vector<Context> current;

Context context_of(int device) { return reinterpret_cast<Context>(&contexts[device]); }
int current_device() {
    return current.empty() ? -1
                           : static_cast<int>(reinterpret_cast<char*>(current.back()) - contexts);
}
Event* event_at(EventPointer event) { return reinterpret_cast<Event*>(event); }
DevicePointer map_host(std::size_t size, int protection) {
    void* range =
        mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? 0 : reinterpret_cast<DevicePointer>(range);
}
int new_file(std::size_t size) {
    const int file = memfd_create("fake-chunk", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) == 0) return file;
    close(file);
    return -1;
}
DevicePointer map_file(int file, std::size_t size) {
    if (file < 0) return 0;
    void* range = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return range == MAP_FAILED ? 0 : reinterpret_cast<DevicePointer>(range);
}
void* host(DevicePointer address) { return reinterpret_cast<void*>(address); }

}  // namespace

// Every function below begins so: one call at a time, and none after the end.
#define ENTER()                                        \
    Machine& m = machine();                            \
    const std::lock_guard<std::mutex> locked(m.mutex); \
    if (m.down) return shut_down
#define ENTER_WITH_CONTEXT() \
    ENTER();                 \
    if (current.empty()) return m.wrong(invalid_context)

extern "C" {

// --- devices and contexts ------------------------------------------------------------------------

Result cuInit(unsigned) {
    ENTER();
    return success;
}
Result cuDriverGetVersion(int* version) {
    *version = 13000;
    return success;
}
Result cuDeviceGetCount(int* count) {
    ENTER();
    *count = m.devices;
    return success;
}
Result cuDeviceGet(DeviceNumber* device, int number) {
    ENTER();
    *device = number;
    return number >= 0 && number < m.devices ? success : 101;
}
Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
    ENTER();
    *value = attribute == attribute_virtual_memory && m.virtual_memory ? 1 : 0;
    return success;
}
Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceNumber) {
    ENTER();
    *bytes = static_cast<std::size_t>(m.memory);
    return success;
}
Result cuDeviceGetPCIBusId(char* text, int length, DeviceNumber device) {
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device);
    return success;
}
Result cuDeviceCanAccessPeer(int* can, DeviceNumber one, DeviceNumber other) {
    ENTER();
    *can = one != other && m.peers;
    return success;
}
Result cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
    ENTER();
    *context = context_of(device);
    return success;
}
Result cuCtxGetCurrent(Context* context) {
    *context = current.empty() ? nullptr : current.back();
    return success;
}
Result cuCtxPushCurrent_v2(Context context) {
    current.push_back(context);
    return success;
}
Result cuCtxPopCurrent_v2(Context* context) {
    if (current.empty()) return invalid_context;
    *context = current.back();
    current.pop_back();
    return success;
}
Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    ENTER_WITH_CONTEXT();
    *total = static_cast<std::size_t>(m.memory);
    *free = static_cast<std::size_t>(m.memory - m.used[current_device()]);
    return success;
}

// --- segments ------------------------------------------------------------------------------------

Result cuMemAlloc_v2(DevicePointer* address, std::size_t size) {
    ENTER_WITH_CONTEXT();
    const int device = current_device();
    if (m.fails() || !m.take(device, size)) return out_of_memory;
    const int file = new_file(size);
    *address = map_file(file, size);
    if (*address == 0) return out_of_memory;
    m.segments[*address] = {size, device, file};
    return success;
}
Result cuMemFree_v2(DevicePointer address) {
    ENTER_WITH_CONTEXT();
    const auto place = m.segments.find(address);
    if (place == m.segments.end()) return m.wrong(invalid_value);
    m.used[place->second.device] -= static_cast<std::int64_t>(place->second.size);
    munmap(host(address), place->second.size);
    close(place->second.file);
    m.segments.erase(place);
    return success;
}

// --- virtual memory ------------------------------------------------------------------------------

Result cuMemAddressReserve(DevicePointer* address, std::size_t size, std::size_t, DevicePointer,
                           unsigned long long) {
    ENTER();
    if (size == 0 || size % page != 0) return m.wrong(invalid_value);
    if (m.fails()) return out_of_memory;
    const DevicePointer wide = map_host(size + page, PROT_NONE);
    if (wide == 0) return out_of_memory;
    *address = (wide + page - 1) / page * page;  // the rest of the range is never used
    m.reservations[*address] = size;
    return success;
}
Result cuMemAddressFree(DevicePointer address, std::size_t size) {
    ENTER();
    const auto place = m.reservations.find(address);
    const auto mapped = m.mappings.lower_bound(address);
    if (place == m.reservations.end() || place->second != size) return m.wrong(invalid_value);
    if (mapped != m.mappings.end() && mapped->first < address + size) return m.wrong(invalid_value);
    munmap(host(address), size);
    m.reservations.erase(place);
    return success;
}
Result cuMemCreate(AllocationHandle* handle, std::size_t size, const AllocationProperties* wanted,
                   unsigned long long) {
    ENTER();
    if (size == 0 || size % page != 0 || wanted->type != allocation_pinned)
        return m.wrong(invalid_value);
    const int device = wanted->location.id;
    if (m.fails() || !m.take(device, size)) return out_of_memory;
    const int file = new_file(size);
    if (file < 0) return out_of_memory;
    *handle = static_cast<AllocationHandle>(file);
    m.chunks[*handle] = {size, device};
    return success;
}
Result cuMemRelease(AllocationHandle handle) {
    ENTER();
    const auto place = m.chunks.find(handle);
    if (place == m.chunks.end() || place->second.mappings > 0) return m.wrong(invalid_value);
    m.used[place->second.device] -= static_cast<std::int64_t>(place->second.size);
    m.chunks.erase(place);
    close(static_cast<int>(handle));
    return success;
}
Result cuMemMap(DevicePointer address, std::size_t size, std::size_t, AllocationHandle handle,
                unsigned long long) {
    ENTER();
    const auto chunk = m.chunks.find(handle);
    const auto next = m.mappings.lower_bound(address);
    auto reserved = m.reservations.upper_bound(address);
    if (chunk == m.chunks.end() || chunk->second.size != size ||
        reserved == m.reservations.begin() ||
        (next != m.mappings.end() && next->first < address + size))
        return m.wrong(invalid_value);
    --reserved;
    if (address + size > reserved->first + reserved->second) return m.wrong(invalid_value);
    if (m.fails()) return out_of_memory;
    mmap(host(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, static_cast<int>(handle), 0);
    m.mappings[address] = {handle, size};
    ++chunk->second.mappings;
    return success;
}
Result cuMemUnmap(DevicePointer address, std::size_t size) {
    ENTER();
    const auto place = m.mappings.find(address);
    if (place == m.mappings.end() || place->second.second != size) return m.wrong(invalid_value);
    --m.chunks.at(place->second.first).mappings;
    mmap(host(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    m.mappings.erase(place);
    m.access.erase(address);
    return success;
}
Result cuMemSetAccess(DevicePointer address, std::size_t size, const AccessDescription* access,
                      std::size_t count) {
    ENTER();
    const auto place = m.mappings.find(address);
    if (place == m.mappings.end() || place->second.second != size || count == 0 ||
        access[0].flags != access_read_write)
        return m.wrong(invalid_value);
    if (m.fails()) return out_of_memory;
    mprotect(host(address), size, PROT_READ | PROT_WRITE);
    for (std::size_t i = 0; i < count; ++i)
        m.access[address] |= std::uint64_t{1} << access[i].location.id;
    return success;
}
Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties*, int) {
    *bytes = page;
    return success;
}

// --- other processes -----------------------------------------------------------------------------

Result cuIpcGetMemHandle(IpcHandle* handle, DevicePointer address) {
    ENTER_WITH_CONTEXT();
    const auto place = m.segments.find(address);
    if (place == m.segments.end()) return m.wrong(invalid_value);
    const Opened facts{getpid(), place->second.file, place->second.size};
    *handle = {};
    std::memcpy(handle->bytes, &facts, sizeof facts);
    return success;
}
Result cuIpcOpenMemHandle_v2(DevicePointer* address, IpcHandle handle, unsigned) {
    ENTER_WITH_CONTEXT();
    Opened facts{};
    std::memcpy(&facts, handle.bytes, sizeof facts);
    const std::string path =
        "/proc/" + std::to_string(facts.process) + "/fd/" + std::to_string(facts.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    *address = map_file(file, facts.size);
    if (file >= 0) close(file);
    if (*address == 0) return invalid_value;
    m.opened[*address] = facts.size;
    return success;
}
Result cuIpcCloseMemHandle(DevicePointer address) {
    ENTER_WITH_CONTEXT();
    const auto place = m.opened.find(address);
    if (place == m.opened.end()) return m.wrong(invalid_value);
    munmap(host(address), place->second);
    m.opened.erase(place);
    return success;
}
Result cuCtxSynchronize() {
    ENTER_WITH_CONTEXT();
    return success;
}

// --- events and streams --------------------------------------------------------------------------

Result cuEventCreate(EventPointer* event, unsigned) {
    ENTER_WITH_CONTEXT();
    if (m.fails()) return out_of_memory;
    *event = reinterpret_cast<EventPointer>(new Event{current.back()});
    m.events.insert(*event);
    return success;
}
Result cuEventDestroy_v2(EventPointer event) {
    ENTER();
    if (m.events.erase(event) == 0) return m.wrong(invalid_handle);
    delete event_at(event);
    return success;
}
Result cuEventRecord(EventPointer event, StreamPointer stream) {
    ENTER_WITH_CONTEXT();
    if (!m.events.contains(event)) return m.wrong(invalid_handle);
    if (m.fails()) return out_of_memory;
    const Context own = event_at(event)->context;
    const auto other = m.contexts.find(stream);
    if (other != m.contexts.end() && other->second != own) return invalid_handle;
    *event_at(event) = {own, stream, m.next_event++};
    return success;
}
Result cuEventQuery(EventPointer event) {
    ENTER();
    if (!m.events.contains(event)) return m.wrong(invalid_handle);
    return m.is_done(*event_at(event)) ? success : not_ready;
}
Result cuEventSynchronize(EventPointer event) {
    ENTER();
    if (!m.events.contains(event)) return m.wrong(invalid_handle);
    const Event& waited = *event_at(event);
    m.finished[waited.stream] = std::max(m.finished[waited.stream], waited.number);
    return success;
}
Result cuStreamWaitEvent(StreamPointer, EventPointer event, unsigned) {
    ENTER_WITH_CONTEXT();
    if (!m.events.contains(event)) return m.wrong(invalid_handle);
    return m.fails() ? out_of_memory : success;
}
Result cuStreamSynchronize(StreamPointer stream) {
    ENTER_WITH_CONTEXT();
    m.finished[stream] = m.next_event - 1;
    return success;
}
Result cuStreamGetCtx(StreamPointer stream, Context* context) {
    ENTER();
    const auto known = m.contexts.find(stream);
    *context = known != m.contexts.end() ? known->second : context_of(current_device());
    return success;
}
Result cuStreamIsCapturing(StreamPointer stream, int* status) {
    ENTER();
    *status = m.capturing.contains(stream);
    return success;
}
Result cuThreadExchangeStreamCaptureMode(int* mode) {
    thread_local int own = 0;
    std::swap(*mode, own);
    return success;
}
Result cuGetErrorName(Result result, const char** name) {
    *name = result == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return success;
}

// --- controls ------------------------------------------------------------------------------------

#define CONTROL()           \
    Machine& m = machine(); \
    const std::lock_guard<std::mutex> locked(m.mutex)

void fake_driver_fail(std::int64_t first, std::int64_t count) {
    CONTROL();
    m.calls = 0;
    m.first_failure = first;
    m.end_of_failures = first + count;
}
std::int64_t fake_driver_calls() {
    CONTROL();
    return m.calls;
}
void fake_driver_set_memory(std::int64_t bytes) {
    CONTROL();
    m.memory = bytes;
}
std::int64_t fake_driver_used(int device) {
    CONTROL();
    return m.used[device];
}
std::int64_t fake_driver_objects() {
    CONTROL();
    return static_cast<std::int64_t>(m.segments.size() + m.opened.size() + m.reservations.size() +
                                     m.chunks.size() + m.mappings.size());
}
void fake_driver_hold(std::uint64_t stream) {
    CONTROL();
    m.held.insert(reinterpret_cast<StreamPointer>(stream));
}
void fake_driver_finish(std::uint64_t stream) {
    CONTROL();
    m.finished[reinterpret_cast<StreamPointer>(stream)] = m.next_event - 1;
}
void fake_driver_set_capturing(std::uint64_t stream, int capturing) {
    CONTROL();
    const auto pointer = reinterpret_cast<StreamPointer>(stream);
    if (capturing)
        m.capturing.insert(pointer);
    else
        m.capturing.erase(pointer);
}
void fake_driver_set_stream_device(std::uint64_t stream, int device) {
    CONTROL();
    m.contexts[reinterpret_cast<StreamPointer>(stream)] = context_of(device);
}
void fake_driver_set_virtual_memory(int supported) {
    CONTROL();
    m.virtual_memory = supported != 0;
}
void fake_driver_shut_down() {
    CONTROL();
    m.down = true;
}
int fake_driver_may_reach(std::uint64_t address, int device) {
    CONTROL();
    auto place = m.mappings.upper_bound(address);
    if (place == m.mappings.begin()) return 0;
    --place;
    if (address >= place->first + place->second.second) return 0;
    return static_cast<int>(m.access[place->first] >> device & 1);
}
std::int64_t fake_driver_violations() {
    CONTROL();
    return m.violations;
}

}  // extern "C"
