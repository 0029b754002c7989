// _engine.Allocator: the engine with addresses for names, as tests and tools drive it.
#include "engine/allocator.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unordered_map>

#include "engine/devices/host_device.hpp"
#include "engine/devices/virtual_device.hpp"
#include "engine/elastic_rules.hpp"
#include "engine/invariants.hpp"
#include "engine/python/bindings.hpp"

namespace nb = nanobind;

namespace tenure {

namespace {

using PoolPair = std::pair<std::uint64_t, std::uint64_t>;

PoolId pool_id(PoolPair pair) { return {pair.first, pair.second}; }

// Keeps the live blocks by address, as PyTorch does.
class AddressedAllocator {
  public:
    AddressedAllocator(const Settings& settings, Device& device) : allocator(settings, device) {
        allocator.log_to(&log);
    }

    Address allocate(Bytes size, Stream stream, PoolPair pool) {
        if (size == 0) return 0;
        Block* block = allocator.allocate(size, stream, pool_id(pool));
        live_[block->address] = block;
        return block->address;
    }

    Block* find(Address address) const {
        const auto place = live_.find(address);
        if (place == live_.end()) throw UsageError("no live block at " + std::to_string(address));
        return place->second;
    }

    void free(Address address) {
        Block* block = find(address);
        live_.erase(address);
        allocator.free(block);
    }

    Allocator allocator;
    std::vector<SegmentEvent> log;

  private:
    std::unordered_map<Address, Block*> live_;
};

void add_counter(nb::dict& out, const std::string& prefix, const Counter& counter) {
    out[(prefix + ".current").c_str()] = counter.current;
    out[(prefix + ".peak").c_str()] = counter.peak;
    out[(prefix + ".allocated").c_str()] = counter.allocated;
    out[(prefix + ".freed").c_str()] = counter.freed;
}

void add_pool_counter(nb::dict& out, const std::string& name, const PoolCounter& counter) {
    add_counter(out, name + ".all", counter.all);
    add_counter(out, name + ".small_pool", counter.small_pool);
    add_counter(out, name + ".large_pool", counter.large_pool);
}

std::vector<std::tuple<int, Address, Bytes>> take_log(AddressedAllocator& self) {
    std::vector<std::tuple<int, Address, Bytes>> events;
    for (const SegmentEvent& event : self.log)
        events.emplace_back(static_cast<int>(event.action), event.address, event.size);
    self.log.clear();
    return events;
}

nb::list block_list(const AddressedAllocator& self) {
    nb::list list;
    for (const BlockView& view : self.allocator.blocks())
        list.append(nb::make_tuple(view.segment, view.address, view.size, view.requested,
                                   static_cast<int>(view.state), view.stream,
                                   nb::make_tuple(view.pool.capture, view.pool.user)));
    return list;
}

void bind_settings(nb::module_& m) {
    nb::class_<Settings>(m, "Settings", "What PYTORCH_CUDA_ALLOC_CONF and the limit decide.")
        .def(nb::init<>())
        .def_prop_rw(
            "torch_version",
            [](const Settings& s) {
                return std::pair{s.torch_version.major, s.torch_version.minor};
            },
            [](Settings& s, std::pair<int, int> version) {
                s.torch_version = {version.first, version.second};
            })
        .def_rw("expandable_segments", &Settings::expandable_segments)
        .def_rw("max_split_size", &Settings::max_split_size)
        .def_rw("max_non_split_rounding", &Settings::max_non_split_rounding)
        .def_rw("large_segment_size", &Settings::large_segment_size)
        .def_rw("roundup_power2_divisions", &Settings::roundup_power2_divisions)
        .def_rw("garbage_collection_threshold", &Settings::garbage_collection_threshold)
        .def_rw("limit", &Settings::limit)
        .def_rw("device_memory", &Settings::device_memory)
        .def_prop_rw(
            "rules",
            [](const Settings& s) { return s.rules == Rules::elastic ? "elastic" : "torch"; },
            [](Settings& s, const std::string& rules) {
                if (rules != "torch" && rules != "elastic")
                    throw UsageError("rules are 'torch' or 'elastic', not '" + rules + "'");
                s.rules = rules == "elastic" ? Rules::elastic : Rules::torch;
            })
        .def_rw("chunk_divisor", &Settings::chunk_divisor)
        .def_rw("chunk_size", &Settings::chunk_size)
        .def_rw("soft_limit", &Settings::soft_limit)
        .def_prop_rw(
            "call_costs",
            [](const Settings& s) {
                const CallCosts& c = s.call_costs;
                return std::array{c.create,          c.map,  c.access, c.unmap, c.release,
                                  c.release_per_mib, c.event};
            },
            [](Settings& s, const std::array<double, 7>& c) {
                s.call_costs = {c[0], c[1], c[2], c[3], c[4], c[5], c[6]};
            },
            "Microseconds: create, map, access, unmap, release, release a MiB, event.");
}

Bytes chunk_size(const Settings& settings) {
    if (settings.rules == Rules::torch) return torch_rules::granule(settings, false);
    return elastic_rules::chunk_size(settings, false, unlimited);
}

void bind_rules(nb::module_& m) {
    m.def("round_size", &torch_rules::round_size, "Bytes of the block that a request needs.");
    m.def("should_split", &torch_rules::should_split, nb::arg("settings"), nb::arg("small"),
          nb::arg("rounded"), nb::arg("block_size"),
          "Whether the rest of a free block is cut off when it serves the rounded request.");
    m.def("chunk_size", &chunk_size, "Bytes of a chunk in the arenas of large pools.");
}

void bind_devices(nb::module_& m) {
    nb::class_<Device>(m, "Device");
    nb::class_<VirtualDevice, Device>(m, "VirtualDevice", "Addresses only; any capacity.")
        .def(
            "__init__",
            [](VirtualDevice* self, Bytes capacity, const std::string& placement) {
                if (placement != "descending" && placement != "ascending")
                    throw UsageError("placement is 'descending' or 'ascending', not '" + placement +
                                     "'");
                new (self)
                    VirtualDevice(capacity, placement == "ascending" ? Placement::ascending
                                                                     : Placement::descending);
            },
            nb::arg("capacity") = unlimited, nb::arg("placement") = "descending")
        .def("finish", &VirtualDevice::finish)
        .def_prop_ro("used", &VirtualDevice::used);
    nb::class_<HostDevice, Device>(m, "HostDevice", "Real host memory behind device addresses.")
        .def(nb::init<Bytes>(), nb::arg("capacity") = unlimited)
        .def("finish", &HostDevice::finish)
        .def_prop_ro("used", &HostDevice::used);
}

}  // namespace

nb::dict statistics_dict(const Statistics& s, const Settings& settings) {
    nb::dict out;
    add_pool_counter(out, "allocation", s.allocation);
    add_pool_counter(out, "segment", s.segment);
    add_pool_counter(out, "active", s.active);
    add_pool_counter(out, "inactive_split", s.inactive_split);
    add_pool_counter(out, "allocated_bytes", s.allocated_bytes);
    add_pool_counter(out, "reserved_bytes", s.reserved_bytes);
    add_pool_counter(out, "active_bytes", s.active_bytes);
    add_pool_counter(out, "inactive_split_bytes", s.inactive_split_bytes);
    add_pool_counter(out, "requested_bytes", s.requested_bytes);
    add_counter(out, "oversize_allocations", s.oversize_allocations);
    add_counter(out, "oversize_segments", s.oversize_segments);
    out["num_alloc_retries"] = s.num_alloc_retries;
    out["num_ooms"] = s.num_ooms;
    out["num_sync_all_streams"] = s.num_sync_all_streams;
    out["num_device_alloc"] = s.num_device_alloc;
    out["num_device_free"] = s.num_device_free;
    out["max_split_size"] = settings.max_split_size;
    if (settings.torch_version >= TorchVersion{2, 12}) out["num_oom_rejections"] = 0;
    return out;
}

nb::dict elastic_dict(const ElasticStatistics& s) {
    nb::dict out;
    out["requests_grown"] = s.requests_grown;
    out["creates"] = s.creates;
    out["maps"] = s.maps;
    out["unmaps"] = s.unmaps;
    out["releases"] = s.releases;
    out["moves"] = s.moves;
    out["aliased"] = s.aliased;
    out["other_stream"] = s.other_stream;
    out["stream_waits"] = s.stream_waits;
    out["host_waits"] = s.host_waits;
    out["events"] = s.events;
    out["growth_seconds"] = s.growth_us * 1e-6;
    out["stall_seconds"] = s.stall_us * 1e-6;
    return out;
}

namespace {

// torch 2.13 added reserved bytes of each private pool.
nb::dict allocator_statistics(const Allocator& allocator) {
    nb::dict out = statistics_dict(allocator.statistics(), allocator.settings());
    if (allocator.settings().torch_version < TorchVersion{2, 13}) return out;
    for (auto& [id, counter] : allocator.private_reserved())
        add_pool_counter(out,
                         "reserved_bytes_by_private_pools." + std::to_string(id.capture) + "_" +
                             std::to_string(id.user),
                         counter);
    return out;
}

}  // namespace

void bind_allocator(nb::module_& m) {
    bind_settings(m);
    bind_devices(m);
    bind_rules(m);
    using Self = AddressedAllocator;
    auto on = [](auto action) {
        return [action](Self& self, PoolPair pool) { action(self.allocator, pool_id(pool)); };
    };
    nb::class_<Self>(m, "Allocator", "The caching allocator, by PyTorch's rules.")
        .def(nb::init<const Settings&, Device&>(), nb::keep_alive<1, 3>())
        .def("allocate", &Self::allocate, nb::arg("size"), nb::arg("stream") = 0,
             nb::arg("pool") = PoolPair{})
        .def("free", &Self::free)
        .def("record_stream",
             [](Self& self, Address address, Stream stream) {
                 self.allocator.record_stream(self.find(address), stream);
             })
        .def("empty_cache", [](Self& self) { self.allocator.empty_cache(); })
        .def("empty_cache_pool", on([](Allocator& a, PoolId id) { a.empty_cache(id); }))
        .def("create_pool", on([](Allocator& a, PoolId id) { a.create_pool(id); }))
        .def("release_pool", on([](Allocator& a, PoolId id) { a.release_pool(id); }))
        .def("set_no_split", on([](Allocator& a, PoolId id) { a.set_no_split(id); }))
        .def("set_use_on_oom", [](Self& self, PoolPair pool,
                                  bool use) { self.allocator.set_use_on_oom(pool_id(pool), use); })
        .def("set_limit", [](Self& self, Bytes limit) { self.allocator.set_limit(limit); })
        .def("begin_capture", [](Self& self) { self.allocator.begin_capture(); })
        .def("end_capture", [](Self& self) { self.allocator.end_capture(); })
        .def("pin", [](Self& self, Address a, Bytes n) { self.allocator.pin(a, n); })
        .def("unpin", [](Self& self, Address a, Bytes n) { self.allocator.unpin(a, n); })
        .def("statistics", [](Self& self) { return allocator_statistics(self.allocator); })
        .def("elastic_statistics",
             [](Self& self) { return elastic_dict(self.allocator.elastic_statistics()); })
        .def("reset_peak", [](Self& self) { self.allocator.reset_peak(); })
        .def("reset_accumulated", [](Self& self) { self.allocator.reset_accumulated(); })
        .def("segment_events", &take_log, "(action, address, bytes) since the last call.")
        .def("blocks", &block_list)
        .def("finish",
             [](Self& self, Stream stream) { self.allocator.device().synchronize(stream); })
        .def("check", [](Self& self) { check(self.allocator); });
}

}  // namespace tenure
