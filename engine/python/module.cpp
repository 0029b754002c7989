// The module `tenure._engine`: no logic, only the list of what it offers.
#include <nanobind/nanobind.h>

#include "engine/python/bindings.hpp"

NB_MODULE(_engine, m) {
    m.doc() = "The engine of tenure; use the functions of the package, not this module.";
    tenure::bind_errors(m);
    tenure::bind_allocator(m);
    tenure::bind_replay(m);
    tenure::bind_snapshots(m);
    tenure::bind_plans(m);
    tenure::bind_live(m);
}
