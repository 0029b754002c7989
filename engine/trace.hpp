// Events as PyTorch records them, in order: the vocabulary shared by reader and replay.
#pragma once

#include <cstdint>

namespace tenure {

// Codes are part of the column format that Python sees; append, never renumber.
enum class Action : std::uint8_t {
    alloc = 0,           // address, requested bytes
    free_requested = 1,  // the tensor died; the block may still wait for events
    free_completed = 2,  // the block went back to its pool
    segment_alloc = 3,
    segment_free = 4,
    segment_map = 5,
    segment_unmap = 6,
    snapshot = 7,
    oom = 8,       // size is the rounded request; the address column holds the device's free bytes
    annotate = 9,  // torch 2.14+
    other = 10,    // a name this version does not know
};

}  // namespace tenure
