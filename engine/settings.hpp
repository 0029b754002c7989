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

struct Settings {
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
};

}  // namespace tenure
