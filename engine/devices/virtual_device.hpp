// A device of addresses only: any capacity, no memory.
#pragma once

#include "engine/devices/manual_device.hpp"

namespace tenure {

// Where a segment whose address nobody recorded is put. Real drivers mostly hand out descending
// addresses; which order is guessed decides ties between equal blocks (docs/exactness.md).
enum class Placement { descending, ascending };

class VirtualDevice : public ManualDevice {
  public:
    explicit VirtualDevice(Bytes capacity = unlimited, Placement placement = Placement::descending)
        : ManualDevice(capacity), placement_(placement) {}

    Address create_segment(Bytes size) override;
    void destroy_segment(Address, Bytes size) override {
        finish_all();
        give_back(size);
    }
    Address reserve(Bytes size, Bytes granule) override;
    void unreserve(Address, Bytes) override {}
    ChunkHandle create_chunk(Bytes size) override { return take(size) ? next_chunk_++ : 0; }
    void destroy_chunk(ChunkHandle, Bytes size) override { give_back(size); }
    bool map_chunk(Address, ChunkHandle, Bytes) override { return true; }
    void unmap_chunk(Address, Bytes) override {}

  private:
    Placement placement_;
    Address descending_ = 0x7f00'0000'0000;
    Address ascending_ = 0x7000'0000'0000;
    Address reservation_ = 0x3'0200'0000;
    ChunkHandle next_chunk_ = 1;
};

}  // namespace tenure
