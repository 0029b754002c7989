// Real host memory behind the device's calls, so that contents can be written and checked: segments
// and reservations are mmap'd ranges, chunks are anonymous files mapped where they are wanted.
#pragma once

#include "engine/devices/manual_device.hpp"

namespace tenure {

class HostDevice : public ManualDevice {
  public:
    explicit HostDevice(Bytes capacity = unlimited) : ManualDevice(capacity) {}

    Address create_segment(Bytes size) override;
    void destroy_segment(Address address, Bytes size) override;
    Address reserve(Bytes size, Bytes granule) override;
    void unreserve(Address address, Bytes size) override;
    ChunkHandle create_chunk(Bytes size) override;
    void destroy_chunk(ChunkHandle chunk, Bytes size) override;
    bool map_chunk(Address address, ChunkHandle chunk, Bytes size) override;
    void unmap_chunk(Address address, Bytes size) override;
};

}  // namespace tenure
