// What the devices without a GPU share: a capacity, and events that their owner completes.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "engine/devices/device.hpp"

namespace tenure {

class ManualDevice : public Device {
  public:
    explicit ManualDevice(Bytes capacity) : capacity_(capacity) {}

    EventHandle record_event(Stream stream) override {
        events_[next_event_] = stream;
        return next_event_++;
    }
    bool is_done(EventHandle event) override {
        const auto finished = finished_.find(events_.at(event));
        if (finishes_at_once_) return true;
        return finished != finished_.end() && event <= finished->second;
    }
    // Work on a stream is done in order, so everything before the event is done too.
    void wait(EventHandle event) override {
        EventHandle& newest = finished_[events_.at(event)];
        newest = std::max(newest, event);
    }
    void release_event(EventHandle event) override { events_.erase(event); }
    void synchronize(Stream stream) override { finish(stream); }
    bool make_stream_wait(Stream stream, EventHandle event) override {
        stream_waits_.push_back({stream, events_.at(event), event});
        return true;
    }
    Bytes total_memory() const override { return capacity_; }

    // A wait of one stream for an event on another, as it was asked for.
    struct StreamWait {
        Stream waiting;
        Stream stream;
        EventHandle event;
    };
    const std::vector<StreamWait>& stream_waits() const { return stream_waits_; }

    // Every event recorded on the stream so far is done from now on.
    void finish(Stream stream) { finished_[stream] = next_event_ - 1; }

    // Work is over as soon as it is queued: every event is done when recorded.
    void finish_at_once() { finishes_at_once_ = true; }

    // As a cudaFree does: it waits for all work on the device.
    void finish_all() {
        for (const auto& [event, stream] : events_) finish(stream);
    }

    Bytes used() const { return used_; }  // bytes of segments and chunks
    // Counts bytes against the capacity; false, and nothing counted, if they do not fit.
    bool take(Bytes size) {
        if (capacity_ != unlimited && used_ + size > capacity_) return false;
        used_ += size;
        return true;
    }
    void give_back(Bytes size) { used_ -= size; }

  private:
    Bytes capacity_;
    Bytes used_ = 0;
    bool finishes_at_once_ = false;
    EventHandle next_event_ = 1;
    std::vector<StreamWait> stream_waits_;
    std::map<EventHandle, Stream> events_;
    std::map<Stream, EventHandle> finished_;  // newest event that is done
};

}  // namespace tenure
