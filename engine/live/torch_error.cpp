#include "engine/live/torch_error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <typeinfo>

// What the compiler calls for a throw expression.
namespace __cxxabiv1 {
extern "C" {
void* __cxa_allocate_exception(std::size_t) noexcept;
void __cxa_throw(void*, std::type_info*, void (*)(void*)) __attribute__((noreturn));
}
}  // namespace __cxxabiv1

namespace tenure::live {

namespace {

constexpr std::size_t exception_room = 1024;  // c10::Error has about 200 bytes

struct SourceLocation {  // c10's
    const char* function;
    const char* file;
    std::uint32_t line;
};

using Constructor = void (*)(void* self, SourceLocation, std::string);
using VirtualTable = void* const*;

// PyTorch loads its libraries for itself only, so each is asked by name. Which one has the symbols
// differs by version.
void* find_symbol(const char* name) {
    for (const char* library :
         {"libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so"}) {
        void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
        if (!handle) continue;
        void* symbol = dlsym(handle, name);
        dlclose(handle);
        if (symbol) return symbol;
    }
    return nullptr;
}

struct TorchError {
    Constructor construct;
    VirtualTable table;
    std::type_info* type;

    TorchError()
        : construct(reinterpret_cast<Constructor>(
              find_symbol("_ZN3c105ErrorC1ENS_14SourceLocationE"
                          "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"))),
          table(static_cast<VirtualTable>(find_symbol("_ZTVN3c1016OutOfMemoryErrorE"))),
          type(static_cast<std::type_info*>(find_symbol("_ZTIN3c1016OutOfMemoryErrorE"))) {}

    bool usable() const { return construct && table && type; }
};

const TorchError& torch_error() {
    static const TorchError found;
    return found;
}

// The complete destructor is the first function of the table.
void destroy(void* error) {
    using Destructor = void (*)(void*);
    (*static_cast<Destructor**>(error))[0](error);
}

}  // namespace

bool has_torch_out_of_memory() { return torch_error().usable(); }

void throw_torch_out_of_memory(const std::string& text) {
    const TorchError& known = torch_error();
    if (!known.usable()) throw std::runtime_error(text);
    void* error = __cxxabiv1::__cxa_allocate_exception(exception_room);
    // The subclass adds nothing but its table, whose functions follow two words of its own.
    known.construct(error, {"allocate", "tenure", 0}, text);
    *static_cast<VirtualTable*>(error) = known.table + 2;
    __cxxabiv1::__cxa_throw(error, known.type, destroy);
}

}  // namespace tenure::live
