// The module `tenure._engine`: no logic, only the list of what it offers.
#include <nanobind/nanobind.h>

#include "engine/python/bindings.hpp"

namespace tenure {

// A build without one of the binding files still links; its strong definition takes over.
[[gnu::weak]] void bind_allocator(nanobind::module_&) {}
[[gnu::weak]] void bind_replay(nanobind::module_&) {}
[[gnu::weak]] void bind_snapshots(nanobind::module_&) {}
[[gnu::weak]] void bind_plans(nanobind::module_&) {}
[[gnu::weak]] void bind_live(nanobind::module_&) {}

}  // namespace tenure

NB_MODULE(_engine, m) {
    m.doc() = "The engine of tenure; use the functions of the package, not this module.";
    tenure::bind_errors(m);
    tenure::bind_allocator(m);
    tenure::bind_replay(m);
    tenure::bind_snapshots(m);
    tenure::bind_plans(m);
    tenure::bind_live(m);
}
