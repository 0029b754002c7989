// The quantities that every other header talks about.
//
//   request  bytes asked for by the caller, before rounding
//   block    a contiguous range handed out or free; belongs to a segment, a pool, a stream
//   segment  a range the driver gave: one cudaMalloc, or an arena
//   arena    a reserved range of addresses that grows by mapping chunks (expandable segment)
//   chunk    one physical piece of device memory (a cuMemCreate handle)
//   pool     blocks that may serve each other: small, large, or private
//
// Intervals are half-open everywhere: [address, address + size).
#pragma once

#include <compare>
#include <cstdint>

namespace tenure {

using Address = std::uint64_t;  // device address; 0 is never a valid block
using Bytes = std::int64_t;
using Stream = std::uint64_t;  // raw stream handle; 0 is the default stream

constexpr Bytes KiB = 1024;
constexpr Bytes MiB = 1024 * KiB;
constexpr Bytes GiB = 1024 * MiB;
constexpr Bytes unlimited = -1;  // "no such limit" wherever a setting holds bytes

// PyTorch's MempoolId_t: (n, 0) made by a graph capture, (0, n) by the user, (0, 0) the default.
struct PoolId {
    std::uint64_t capture = 0;
    std::uint64_t user = 0;
    auto operator<=>(const PoolId&) const = default;
    bool is_default() const { return capture == 0 && user == 0; }
};

constexpr Bytes round_up(Bytes size, Bytes step) { return (size + step - 1) / step * step; }
constexpr Bytes round_down(Bytes size, Bytes step) { return size / step * step; }

}  // namespace tenure
