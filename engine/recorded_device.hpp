// A virtual device that hands out the addresses of the recording, in its order, and refuses where
// the recording shows that the driver did.
#pragma once

#include <span>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/virtual_device.hpp"

namespace tenure {

class RecordedDevice : public VirtualDevice {
  public:
    using VirtualDevice::VirtualDevice;

    // Memory moves: where the limit is known, or a soft one holds, a release says nothing about the
    // driver, and with it may begin what ends in an arena of its own.
    void expect_moves(bool limit_is_known) {
        moves_ = true;
        infers_ = !limit_is_known;
    }

    // The segment events that the next call of the allocator should cause; `log` is where the
    // allocator writes those that it does cause, emptied by the caller.
    void expect(std::span<const SegmentEvent> events, const std::vector<SegmentEvent>* log,
                bool ends_refused) {
        expected_ = events;
        log_ = log;
        ends_refused_ = ends_refused;
        refusals_ = 0;
    }
    int refusals() const { return refusals_; }
    // The least total that the driver would not give: its capacity is below that.
    Bytes smallest_refused() const { return smallest_refused_; }

    Address create_segment(Bytes size) override {
        if (refuses(size)) return 0;
        const SegmentEvent* next = upcoming();
        if (!next || next->action != Action::segment_alloc || next->size != size)
            return VirtualDevice::create_segment(size);
        return take(size) ? next->address : 0;
    }

    Address reserve(Bytes size, Bytes granule) override {
        // An arena that a refused request may have reserved shows only in its first map.
        if (!moves_ && refuses(granule)) return 0;
        const SegmentEvent* next = upcoming_map();
        const bool possible = next && next->address % static_cast<Address>(2 * MiB) == 0;
        return possible ? next->address : VirtualDevice::reserve(size, granule);
    }

    ChunkHandle create_chunk(Bytes size) override {
        return refuses(size) ? 0 : VirtualDevice::create_chunk(size);
    }

  private:
    const SegmentEvent* upcoming() const {
        if (!log_ || log_->size() >= expected_.size()) return nullptr;
        return &expected_[log_->size()];
    }

    // What a new arena is made for: memory may move out of others first.
    const SegmentEvent* upcoming_map() const {
        if (!log_) return nullptr;
        for (std::size_t i = log_->size(); i < expected_.size(); ++i)
            if (expected_[i].action == Action::segment_map) return &expected_[i];
        return nullptr;
    }

    // The driver said no if what comes next in the record is a release, or an out-of-memory.
    bool refuses(Bytes size) {
        if (!infers_) return false;
        const SegmentEvent* next = upcoming();
        const bool no =
            next ? next->action == Action::segment_free || next->action == Action::segment_unmap
                 : ends_refused_;
        if (!no) return false;
        ++refusals_;
        if (smallest_refused_ == unlimited || used() + size < smallest_refused_)
            smallest_refused_ = used() + size;
        return true;
    }

    std::span<const SegmentEvent> expected_;
    const std::vector<SegmentEvent>* log_ = nullptr;
    bool ends_refused_ = false;
    bool moves_ = false;
    bool infers_ = true;
    int refusals_ = 0;
    Bytes smallest_refused_ = unlimited;
};

}  // namespace tenure
