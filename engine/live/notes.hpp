// What the event ring remembers of steps that need the whole device, while events are kept; what a
// stream serves by itself it keeps itself (stream_front.hpp).
#pragma once

#include "engine/live/front.hpp"

namespace tenure::live {

// Segments first, as PyTorch records them: the driver gave before the block was handed out.
void note_allocation(DeviceFront& front, const Block& block, PoolId pool, StackId stack);
// Before the block is given back: after that it is no longer its own.
void note_free(DeviceFront& front, const Block& block, StackId stack);
// What the engine logged since the last call: blocks back in their pools, then segments.
void note_changes(DeviceFront& front, StackId stack);
// Makes the engine log these, or stop.
void keep_log(DeviceFront& front, bool on);
void note_shortage(DeviceFront& front, const Shortage& shortage, StackId stack);

// The limit that a fraction of the device's memory means; never above the capacity.
void set_fraction(DeviceFront& front, double fraction);

}  // namespace tenure::live
