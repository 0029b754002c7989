// Controls of the fake driver, for tests that link it or find them by name in the loaded library.
#pragma once

#include <cstdint>

extern "C" {
// Calls that may run out are counted from 1; from the `first` on, `count` of them fail.
void fake_driver_fail(std::int64_t first, std::int64_t count);
std::int64_t fake_driver_calls();
// Bytes of every device from now on.
void fake_driver_set_memory(std::int64_t bytes);
// Bytes given out of one device's memory.
std::int64_t fake_driver_used(int device);
// Segments, reservations, chunks and mappings that are out.
std::int64_t fake_driver_objects();
// A held stream ends no work until told to.
void fake_driver_hold(std::uint64_t stream);
void fake_driver_finish(std::uint64_t stream);
void fake_driver_set_capturing(std::uint64_t stream, int capturing);
// The stream belongs to this device; those that were never told of, to whichever device asks.
void fake_driver_set_stream_device(std::uint64_t stream, int device);
// Whether the device may reach what is mapped at the address.
int fake_driver_may_reach(std::uint64_t address, int device);
// Whether devices can map memory (cuMemCreate and so on).
void fake_driver_set_virtual_memory(int supported);
// Every later call answers as in a process that is exiting.
void fake_driver_shut_down();
// How often a call was made against the rules (no context, no access, unknown handle).
std::int64_t fake_driver_violations();
}
