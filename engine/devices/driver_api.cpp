#include "engine/devices/driver_api.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace tenure::driver {

namespace {

template <typename Function>
struct Stub;
template <typename... Parameters>
struct Stub<Result (*)(Parameters...)> {
    static Result call(Parameters...) { return missing_function; }
};

struct Library {
    Functions functions;
    std::string error;

    Library() {
        const char* named = std::getenv("TENURE_DRIVER_LIBRARY");
        void* handle = dlopen(named && *named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!handle) error = dlerror();
#define TENURE_DRIVER_LOAD(member, name, parameters)                                           \
    functions.member =                                                                         \
        reinterpret_cast<decltype(functions.member)>(handle ? dlsym(handle, #name) : nullptr); \
    if (!functions.member) functions.member = Stub<decltype(functions.member)>::call;
        TENURE_DRIVER_FUNCTIONS(TENURE_DRIVER_LOAD)
#undef TENURE_DRIVER_LOAD
    }
};

// Never destroyed: memory is given back after static objects are gone.
const Library& library() {
    static const Library* loaded = new Library;
    return *loaded;
}

}  // namespace

const Functions& functions() { return library().functions; }

const std::string& load_error() { return library().error; }

std::string name_of(Result result) {
    const char* name = nullptr;
    if (functions().error_name(result, &name) == success && name) return name;
    return "driver error " + std::to_string(result);
}

}  // namespace tenure::driver
