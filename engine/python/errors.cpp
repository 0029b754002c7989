// Native errors to Python: each maps to one class of tenure.errors.
#include "engine/errors.hpp"

#include <nanobind/nanobind.h>

#include <exception>

#include "engine/python/bindings.hpp"

namespace nb = nanobind;

namespace tenure {
namespace {

// Sets the Python error to `tenure.errors.NAME(*arguments)`.
template <typename... Arguments>
void raise(const char* name, const Arguments&... arguments) {
    nb::object type = nb::module_::import_("tenure.errors").attr(name);
    nb::object error = type(arguments...);
    PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& pending, void*) {
    try {
        std::rethrow_exception(pending);
    } catch (const OutOfMemory& e) {
        raise("OutOfMemoryError", e.what(), e.requested, e.segment, e.stream);
    } catch (const UsageError& e) {
        raise("UsageError", e.what());
    } catch (const BadInput& e) {
        raise("BadInputError", e.what());
    } catch (const BrokenInvariant& e) {
        raise("TenureError", e.what());
    }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace tenure
