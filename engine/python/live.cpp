// _engine.live: the process-wide front, as tenure.live drives it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "engine/invariants.hpp"
#include "engine/live/front.hpp"
#include "engine/live/torch_error.hpp"
#include "engine/python/bindings.hpp"
#include "engine/python/stacks.hpp"

namespace nb = nanobind;

namespace tenure {

namespace {

using live::DeviceFront;
using live::Front;
using live::Held;
using PoolPair = std::pair<std::uint64_t, std::uint64_t>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;  // device locks may be held for long

PoolId pool_id(PoolPair pair) { return {pair.first, pair.second}; }
nb::tuple pool_tuple(PoolId pool) { return nb::make_tuple(pool.capture, pool.user); }

Front& front() {
    Front* front = live::installed();
    if (!front) throw UsageError("tenure is not installed in this process");
    return *front;
}

// --- what the front asks of Python ---------------------------------------------------------------

nb::object* python_host = nullptr;  // a tenure.live object with collect() and explain(); kept

// A thread that never ran Python must not begin to while its caller may hold locks of its own.
bool may_call_python() {
    return python_host && Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr;
}

// What Python raises here is shown, never passed on: the request's own error matters more.
template <typename Call>
auto guarded(Call&& call, decltype(call()) otherwise) {
    const nb::gil_scoped_acquire held;
    nb::error_scope kept;  // PyTorch may be in the middle of raising something
    try {
        return call();
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("tenure");
    } catch (const std::exception&) {
    }
    return otherwise;
}

bool collect() {
    if (!may_call_python()) return false;
    return guarded([] { return nb::cast<bool>(python_host->attr("collect")()); }, false);
}

nb::dict shortage_dict(const live::Shortage& s) {
    nb::list holders;
    for (const auto& holder : s.holders)
        holders.append(nb::make_tuple(holder.stack, holder.bytes, holder.blocks));
    nb::dict out;
    out["device"] = s.device;
    out["requested"] = s.requested;
    out["segment"] = s.segment;
    out["stream"] = s.stream;
    out["pool"] = pool_tuple(s.pool);
    out["total"] = s.total;
    out["free"] = s.free;
    out["limit"] = s.limit;
    out["allocated"] = s.allocated;
    out["reserved"] = s.reserved;
    out["pending"] = s.pending;
    out["cached"] = s.cached;
    out["largest"] = s.largest;
    out["other_streams"] = s.other_streams;
    out["private_free"] = s.private_free;
    out["holders"] = holders;
    return out;
}

std::string explain(const live::Shortage& shortage) {
    if (!may_call_python()) return "";
    return guarded(
        [&] {
            return nb::cast<std::string>(python_host->attr("explain")(shortage_dict(shortage)));
        },
        std::string());
}

live::StackId capture() { return stacks::capture(); }

void install(const Settings& settings, double memory_fraction, nb::object host) {
    live::Options options;
    options.settings = settings;
    options.memory_fraction = memory_fraction;
    live::install(options, {capture, collect, explain});
    python_host = new nb::object(std::move(host));
    nb::set_leak_warnings(false);  // code objects of recorded stacks are kept for ever
}

void interpreter_exits() {
    stacks::stop();
    if (Front* front = live::installed()) front->forget_host();
}

// --- reading -------------------------------------------------------------------------------------

nb::dict statistics(int device) {
    Statistics counts;
    Settings settings;
    if (DeviceFront* known = front().find(device)) {
        const nb::gil_scoped_release released;
        const Held held(*known);
        counts = known->allocator.statistics();
        counts.num_ooms -= known->rescued;
        settings = known->allocator.settings();
    }
    return statistics_dict(counts, settings);
}

nb::object elastic_statistics(int device) {
    DeviceFront* known = front().find(device);
    if (!known) return nb::none();
    ElasticStatistics counts;
    {
        const nb::gil_scoped_release released;
        const Held held(*known);
        if (known->allocator.settings().rules != Rules::elastic) return nb::none();
        counts = known->allocator.elastic_statistics();
    }
    return elastic_dict(counts);
}

nb::list blocks(int device) {
    nb::list list;
    DeviceFront* known = front().find(device);
    if (!known) return list;
    std::vector<BlockView> views;
    std::uint32_t now = 0;
    {
        const nb::gil_scoped_release released;
        const Held held(*known);
        views = known->allocator.blocks();
        now = front().now_ms();
    }
    for (const BlockView& view : views) {
        const bool used = view.state == BlockState::live || view.state == BlockState::pending;
        const live::BlockNote note = live::BlockNote::of(used ? view.tag : 0);
        list.append(nb::make_tuple(view.segment, view.address, view.size, view.requested,
                                   static_cast<int>(view.state), view.stream, pool_tuple(view.pool),
                                   view.small, view.in_arena, note.stack,
                                   used ? now - note.milliseconds : 0));
    }
    return list;
}

nb::list events(int device) {
    nb::list list;
    DeviceFront* known = front().find(device);
    if (!known) return list;
    std::vector<live::Event> events;
    {
        const nb::gil_scoped_release released;
        const Held held(*known);
        events = known->ring.events();
    }
    for (const live::Event& event : events)
        list.append(nb::make_tuple(static_cast<int>(event.action), event.address, event.size,
                                   event.stream, event.time_us, pool_tuple(event.pool),
                                   event.stack));
    return list;
}

nb::list stack_frames(live::StackId stack) {
    nb::list list;
    for (const stacks::Frame& frame : stacks::frames(stack))
        list.append(nb::make_tuple(nb::borrow(static_cast<PyObject*>(frame.code)), frame.offset));
    return list;
}

std::vector<int> devices() {
    std::vector<int> known;
    for (int device = 0; device < front().device_count(); ++device)
        if (front().find(device)) known.push_back(device);
    return known;
}

// --- changing ------------------------------------------------------------------------------------

// Under the device's lock; does nothing for a device that was never used.
template <typename Change>
void on_device(int device, Change&& change) {
    DeviceFront* known = front().find(device);
    if (!known) return;
    const Held held(*known);
    change(*known);
}

void record(bool events, bool block_stacks, bool alloc_stacks, bool free_stacks,
            std::size_t max_events, bool clear) {
    front().set_history({events, block_stacks, alloc_stacks, free_stacks, max_events}, clear);
}

void set_limit(int device, Bytes limit) { front().set_limit(device, limit); }

Bytes limit(int device) {
    Bytes limit = unlimited;
    on_device(device, [&](DeviceFront& known) { limit = known.allocator.settings().limit; });
    return limit;
}

Bytes total_memory(int device) {
    Bytes total = 0;
    on_device(device, [&](DeviceFront& known) { total = known.device.total_memory(); });
    return total;
}

void reset_peak(int device) {
    on_device(device, [](DeviceFront& known) { known.allocator.reset_peak(); });
}

void reset_accumulated(int device) {
    on_device(device, [](DeviceFront& known) {
        known.allocator.reset_accumulated();
        known.rescued = 0;
    });
}

void check_device(int device) {
    on_device(device, [](DeviceFront& known) { check(known.allocator); });
}

void create_memory_pool(int device, PoolPair pool, bool use_on_oom, bool no_split) {
    front().create_memory_pool(device, pool_id(pool));
    on_device(device, [&](DeviceFront& known) {
        if (use_on_oom) known.allocator.set_use_on_oom(pool_id(pool), true);
        if (no_split) known.allocator.set_no_split(pool_id(pool));
    });
}

void release_pool(int device, PoolPair pool) { front().release_pool(device, pool_id(pool)); }

nb::dict entry_point_addresses() {
    nb::dict out;
    for (const auto& [name, address] : entry_points()) out[name] = address;
    return out;
}

int pool_use_count(int device, PoolPair pool) {
    int count = 0;
    on_device(device, [&](DeviceFront& known) {
        const auto place = known.allocator.pools().find(pool_id(pool));
        if (place != known.allocator.pools().end()) count = place->second->use_count;
    });
    return count;
}

nb::dict driver_facts() {
    nb::dict out;
    int version = 0;
    const bool works = driver::functions().init(0) == driver::success;
    driver::functions().driver_version(&version);
    out["error"] = driver::load_error();
    out["works"] = works;
    out["version"] = nb::make_tuple(version / 1000, version % 1000 / 10);
    out["devices"] = CudaDevice::count();
    nb::list without;
    for (int device = 0; device < CudaDevice::count(); ++device)
        if (!CudaDevice::can_map(device)) without.append(device);
    out["without_virtual_memory"] = without;
    return out;
}

// A block for libraries that keep an owner object: freed when the object dies.
class Buffer {
  public:
    Buffer(Bytes size, int device, Stream stream) : size_(size), device_(device) {
        // Not without the interpreter's lock: a daemon thread that waits for it during exit is
        // ended there, in the middle of this.
        pointer_ = front().allocate(size, device, stream == 1 ? 0 : stream);
    }
    ~Buffer() {
        if (Front* front = live::installed()) front->free(pointer_, device_);
    }
    Buffer(const Buffer&) = delete;

    Address address() const { return reinterpret_cast<Address>(pointer_); }
    Bytes size() const { return size_; }
    // From now on the block is the caller's to free, by its address.
    void release() { pointer_ = nullptr; }
    void record_stream(Stream stream) { front().record_stream(pointer_, stream == 1 ? 0 : stream); }

  private:
    void* pointer_;
    Bytes size_;
    int device_;
};

struct Live {};  // a name for functions; there is one front in a process
using LiveClass = nb::class_<Live>;

void bind_reading(LiveClass& live) {
    live.def_static("is_installed", [] { return live::installed() != nullptr; })
        .def_static("is_forked", &live::is_forked)
        .def_static("statistics", &statistics, nb::arg("device"))
        .def_static("elastic_statistics", &elastic_statistics, nb::arg("device"))
        .def_static("blocks", &blocks, nb::arg("device"),
                    "(segment, address, size, requested, state, stream, pool, small, in_arena, "
                    "stack, milliseconds since it was handed out), by address.")
        .def_static("events", &events, nb::arg("device"),
                    "(action, address, size, stream, time_us, pool, stack), oldest first.")
        .def_static("frames", &stack_frames, nb::arg("stack"),
                    "(code object, offset of the instruction in bytes), innermost first.")
        .def_static("stack_count", &stacks::count)
        .def_static("learn_frames", &stacks::start,
                    "Finds out where frames lie; call it a few functions deep.")
        .def_static("reads_frames_directly", &stacks::reads_frames_directly)
        .def_static("capture_stack", &stacks::capture,
                    "The caller's stack, as an allocation records it.")
        .def_static("devices", &devices, "Numbers of the devices that were allocated on.")
        .def_static("driver", &driver_facts,
                    "Starts the driver, if there is one, and says which it is.")
        .def_static("has_torch_out_of_memory", &live::has_torch_out_of_memory)
        .def_static("entry_points", &entry_point_addresses)
        .def_static("check", &check_device, nb::arg("device"), Unlocked());
}

void bind_changing(LiveClass& live) {
    live.def_static("install", &install, nb::arg("settings"), nb::arg("memory_fraction"),
                    nb::arg("host"))
        .def_static("interpreter_exits", &interpreter_exits)
        .def_static("record", &record, nb::arg("events"), nb::arg("block_stacks"),
                    nb::arg("alloc_stacks"), nb::arg("free_stacks"), nb::arg("max_events"),
                    nb::arg("clear") = false, Unlocked())
        .def_static(
            "empty_cache", [] { front().empty_cache(); }, Unlocked())
        .def_static("set_limit", &set_limit, nb::arg("device"), nb::arg("limit"), Unlocked())
        .def_static("limit", &limit, nb::arg("device"), Unlocked())
        .def_static("total_memory", &total_memory, nb::arg("device"), Unlocked())
        .def_static("reset_peak", &reset_peak, nb::arg("device"), Unlocked())
        .def_static("reset_accumulated", &reset_accumulated, nb::arg("device"), Unlocked())
        .def_static("create_memory_pool", &create_memory_pool, nb::arg("device"), nb::arg("pool"),
                    nb::arg("use_on_oom") = false, nb::arg("no_split") = false, Unlocked())
        .def_static("release_pool", &release_pool, nb::arg("device"), nb::arg("pool"), Unlocked())
        .def_static("pool_use_count", &pool_use_count, nb::arg("device"), nb::arg("pool"),
                    Unlocked());
}

void bind_buffer(nb::module_& m) {
    nb::class_<Buffer>(m, "LiveBuffer", "A block of device memory, freed when this object dies.")
        .def(nb::init<Bytes, int, Stream>(), nb::arg("size"), nb::arg("device"), nb::arg("stream"))
        .def_prop_ro("address", &Buffer::address)
        .def_prop_ro("size", &Buffer::size)
        .def("release", &Buffer::release, "The block outlives this object.")
        .def("record_stream", &Buffer::record_stream, nb::arg("stream"));
}

}  // namespace

void bind_live(nb::module_& m) {
    LiveClass live(m, "Live", "The engine as this process's allocator.");
    bind_reading(live);
    bind_changing(live);
    bind_buffer(m);
}

}  // namespace tenure
