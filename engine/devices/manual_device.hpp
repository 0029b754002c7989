// What the devices without a GPU share: a capacity, and events that their owner completes.
#pragma once

#include <algorithm>
#include <map>

#include "engine/devices/device.hpp"

namespace tenure {

class ManualDevice : public Device {
  public:
    explicit ManualDevice(Bytes capacity) : capacity_(capacity) {}

    EventHandle record_event(Stream stream) override {
        events_[next_event_] = {stream, now_us_};
        return next_event_++;
    }
    bool is_done(EventHandle event) override {
        const Recorded& recorded = events_.at(event);
        if (lead_us_ >= 0 && now_us_ - recorded.time_us >= lead_us_) return true;
        const auto finished = finished_.find(recorded.stream);
        return finished != finished_.end() && event <= finished->second;
    }
    // Work on a stream is done in order, so everything before the event is done too.
    void wait(EventHandle event) override {
        EventHandle& newest = finished_[events_.at(event).stream];
        newest = std::max(newest, event);
    }
    void release_event(EventHandle event) override { events_.erase(event); }
    void synchronize(Stream stream) override { finish(stream); }
    bool make_stream_wait(Stream stream, EventHandle event) override {
        last_stream_wait_ = {stream, events_.at(event).stream};
        ++stream_waits_;
        return true;
    }
    Bytes total_memory() const override { return capacity_; }

    // A wait of one stream for an event on another, as it was asked for.
    struct StreamWait {
        Stream waiting = 0;
        Stream stream = 0;
    };
    StreamWait last_stream_wait() const { return last_stream_wait_; }
    std::int64_t stream_waits() const { return stream_waits_; }

    // Every event recorded on the stream so far is done from now on.
    void finish(Stream stream) { finished_[stream] = next_event_ - 1; }

    // Work is over so long after it was queued, on a clock that the owner sets. 0: at once.
    void run_behind_host(std::int64_t lead_us) { lead_us_ = lead_us; }
    void set_time(std::int64_t now_us) { now_us_ = now_us; }
    void finish_at_once() { run_behind_host(0); }

    // As a cudaFree does: it waits for all work on the device.
    void finish_all() {
        for (const auto& [event, recorded] : events_) finish(recorded.stream);
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
    struct Recorded {
        Stream stream;
        std::int64_t time_us;
    };

    Bytes capacity_;
    Bytes used_ = 0;
    std::int64_t lead_us_ = -1;  // of the host; -1: only the owner ends work
    std::int64_t now_us_ = 0;
    EventHandle next_event_ = 1;
    std::int64_t stream_waits_ = 0;
    StreamWait last_stream_wait_;
    std::map<EventHandle, Recorded> events_;
    std::map<Stream, EventHandle> finished_;  // newest event that is done
};

}  // namespace tenure
