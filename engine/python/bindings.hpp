// What each binding file adds to the module; module.cpp calls them in this order.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tenure {

struct Settings;
struct Statistics;
struct ElasticStatistics;

// Flat, with the keys of torch.cuda.memory_stats().
nanobind::dict statistics_dict(const Statistics& statistics, const Settings& settings);

// What elastic rules did to the device; all zero under torch rules.
nanobind::dict elastic_dict(const ElasticStatistics& statistics);

// Native errors as the classes of tenure.errors, fields and text kept.
void bind_errors(nanobind::module_& m);
// Settings, VirtualDevice, Allocator.
void bind_allocator(nanobind::module_& m);
// A whole trace through an allocator in one call.
void bind_replay(nanobind::module_& m);
// read_snapshot.
void bind_snapshots(nanobind::module_& m);
// Placements: make, check.
void bind_plans(nanobind::module_& m);
// The submodule live: the engine as this process's allocator.
void bind_live(nanobind::module_& m);

// Names and addresses of the functions that other libraries call; see entry_points.cpp.
std::vector<std::pair<const char*, std::uintptr_t>> entry_points();

}  // namespace tenure
