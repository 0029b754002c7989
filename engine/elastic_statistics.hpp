// What elastic rules did to the device, and what that is worth in time.
#pragma once

#include "engine/settings.hpp"

namespace tenure {

struct ElasticStatistics {
    std::int64_t requests_grown = 0;  // requests that no mapped free block served
    std::int64_t creates = 0;         // chunks
    std::int64_t maps = 0;
    std::int64_t unmaps = 0;
    std::int64_t releases = 0;
    std::int64_t moves = 0;    // chunks taken from free space for a request, in one piece or not
    std::int64_t aliased = 0;  // of these: mapped anew while the old use was still queued
    std::int64_t other_stream = 0;  // of these: taken from another stream
    std::int64_t stream_waits = 0;  // waits that the device does by itself
    std::int64_t host_waits = 0;    // waits of the host for one event
    std::int64_t events = 0;
    double growth_us = 0;  // calls up to the first mapping of chunks that made reserved larger
    double stall_us = 0;   // all other calls; the time of waits themselves is not in it
};

// Counts each call and charges its price.
class CallMeter {
  public:
    explicit CallMeter(const CallCosts& costs) : costs_(costs) {}

    void created(bool grows) {
        ++counts.creates;
        charge(costs_.create, grows);
    }
    void mapped(bool grows) {
        ++counts.maps;
        charge(costs_.map + costs_.access, grows);
    }
    void unmapped() {
        ++counts.unmaps;
        charge(costs_.unmap, false);
    }
    void released(Bytes size) {
        ++counts.releases;
        const double mib = static_cast<double>(size) / static_cast<double>(MiB);
        charge(costs_.release + costs_.release_per_mib * mib, false);
    }
    void recorded_event() {
        ++counts.events;
        charge(costs_.event, false);
    }
    void made_stream_wait() {
        ++counts.stream_waits;
        charge(costs_.event, false);
    }

    ElasticStatistics counts;

  private:
    void charge(double us, bool grows) { (grows ? counts.growth_us : counts.stall_us) += us; }

    CallCosts costs_;
};

}  // namespace tenure
