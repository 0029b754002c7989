// What PYTORCH_CUDA_ALLOC_CONF and the memory fraction decide, already parsed.
#pragma once

#include <array>

#include "engine/units.hpp"

namespace tenure {

struct TorchVersion {
    int major = 2;
    int minor = 11;
    auto operator<=>(const TorchVersion&) const = default;
};

// Which rule set decides where a request goes.
enum class Rules { torch, elastic };

// Prices of driver calls in microseconds, by chunk; measured on one H200 (docs/elastic.md).
struct CallCosts {
    double create = 14;
    double map = 1;
    double access = 30;
    double unmap = 20;
    double release = 15;
    double release_per_mib = 0.6;
    double event = 0.2;
};

struct Settings {
    Rules rules = Rules::torch;
    TorchVersion torch_version;
    bool expandable_segments = false;
    Bytes max_split_size = unlimited;
    Bytes max_non_split_rounding = 20 * MiB;
    Bytes large_segment_size = 20 * MiB;
    // Entry i serves requests with floor(log2 bytes) - 20 == i, clamped to 0..15; 0 and 1 mean off.
    std::array<int, 16> roundup_power2_divisions{};
    double garbage_collection_threshold = 0.0;  // of the limit; 0 is off
    Bytes limit = unlimited;                    // set_per_process_memory_fraction, in bytes
    Bytes device_memory = 150'109'880'320;      // sizes an arena's reservation: 9/8 of it

    // Elastic rules only; they heed none of the above but the limit and the device's memory.
    int chunk_divisor = 2000;  // a chunk is this part of the limit, from 2 to 64 MiB
    Bytes chunk_size = 0;      // or exactly this; 0: from the divisor
    double soft_limit = 0.0;   // move, rather than create, above this multiple of the live peak
    CallCosts call_costs;
};

}  // namespace tenure
