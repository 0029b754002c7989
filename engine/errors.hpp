// What can go wrong, as types. Every message says what was asked, what was found, and what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tenure {

// A caller broke the contract of a function: unknown address, a setting out of range.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Data from outside (a snapshot, a trace) is not what it claims to be.
struct BadInput : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A request that could not be served after every way to find memory was tried.
struct OutOfMemory : std::runtime_error {
    OutOfMemory(const std::string& what, std::int64_t requested, std::int64_t segment,
                std::uint64_t stream)
        : std::runtime_error(what), requested(requested), segment(segment), stream(stream) {}
    std::int64_t requested;  // bytes asked for by the caller
    std::int64_t segment;    // bytes of the segment that the driver refused
    std::uint64_t stream;
};

// A rule that must always hold does not: a fault of the engine itself.
struct BrokenInvariant : std::logic_error {
    using std::logic_error::logic_error;
};

}  // namespace tenure
