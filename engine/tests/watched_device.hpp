// A device in front of another that holds the engine to the contract of device.hpp, counts what is
// out, and fails the calls it is told to fail.
#pragma once

#include <map>
#include <set>
#include <string>

#include "engine/devices/device.hpp"
#include "engine/errors.hpp"

namespace tenure::testing {

class WatchedDevice final : public Device {
  public:
    explicit WatchedDevice(Device& device) : device_(device) {}

    // Calls that may fail are counted from 1; from the `first` on, `count` of them do.
    void fail_from(std::int64_t first, std::int64_t count = 1) {
        first_failure_ = first;
        end_of_failures_ = first + count;
    }
    std::int64_t calls() const { return calls_; }
    std::int64_t failures() const { return failures_; }

    // Nothing is out: no memory, no addresses, no events.
    bool is_clean() const {
        return segments_.empty() && arenas_.empty() && chunks_.empty() && mapped_.empty() &&
               events_.empty();
    }
    Bytes used() const { return used_; }

    Address create_segment(Bytes size) override {
        require(size > 0 && size % (2 * MiB) == 0, "a segment is a multiple of 2 MiB");
        if (fails()) return 0;
        const Address address = device_.create_segment(size);
        if (address == 0) return 0;
        segments_[address] = size;
        used_ += size;
        return address;
    }
    void destroy_segment(Address address, Bytes size) override {
        require(take(segments_, address, size), "only whole segments are destroyed, once");
        used_ -= size;
        device_.destroy_segment(address, size);
    }

    Address reserve(Bytes size, Bytes granule) override {
        require(size > 0 && size % granule == 0, "an arena is whole granules");
        if (fails()) return 0;
        const Address address = device_.reserve(size, granule);
        if (address != 0) arenas_[address] = size;
        return address;
    }
    void unreserve(Address address, Bytes size) override {
        const auto mapped = mapped_.lower_bound(address);
        require(mapped == mapped_.end() || mapped->first >= address + static_cast<Address>(size),
                "nothing is mapped in an arena that is given back");
        require(take(arenas_, address, size), "only whole arenas are given back, once");
        device_.unreserve(address, size);
    }

    ChunkHandle create_chunk(Bytes size) override {
        if (fails()) return 0;
        const ChunkHandle chunk = device_.create_chunk(size);
        if (chunk == 0) return 0;
        chunks_[chunk] = size;
        used_ += size;
        return chunk;
    }
    void destroy_chunk(ChunkHandle chunk, Bytes size) override {
        for (const auto& [address, range] : mapped_)
            require(range.chunk != chunk, "a mapped chunk is not destroyed");
        require(take(chunks_, chunk, size), "only whole chunks are destroyed, once");
        used_ -= size;
        device_.destroy_chunk(chunk, size);
    }

    bool map_chunk(Address address, ChunkHandle chunk, Bytes size) override {
        require(chunks_.contains(chunk) && chunks_.at(chunk) == size, "a whole chunk is mapped");
        require(is_reserved(address, size), "chunks are mapped inside an arena");
        require(is_unmapped(address, size), "chunks are mapped where nothing is");
        if (fails() || !device_.map_chunk(address, chunk, size)) return false;
        mapped_[address] = {chunk, size};
        return true;
    }
    void unmap_chunk(Address address, Bytes size) override {
        const auto place = mapped_.find(address);
        require(place != mapped_.end() && place->second.size == size, "what is mapped is unmapped");
        mapped_.erase(place);
        device_.unmap_chunk(address, size);
    }

    EventHandle record_event(Stream stream) override {
        if (fails()) return 0;
        const EventHandle event = device_.record_event(stream);
        if (event != 0) events_.insert(event);
        return event;
    }
    bool is_done(EventHandle event) override { return device_.is_done(known(event)); }
    void wait(EventHandle event) override { device_.wait(known(event)); }
    void release_event(EventHandle event) override {
        device_.release_event(known(event));
        events_.erase(event);
    }
    void synchronize(Stream stream) override { device_.synchronize(stream); }
    bool make_stream_wait(Stream stream, EventHandle event) override {
        return !fails() && device_.make_stream_wait(stream, known(event));
    }
    bool can_alias() const override { return device_.can_alias(); }
    Bytes total_memory() const override { return device_.total_memory(); }

  private:
    struct MappedRange {
        ChunkHandle chunk;
        Bytes size;
    };

    static void require(bool holds, const char* rule) {
        if (!holds) throw BrokenInvariant(std::string("contract of the device: ") + rule);
    }
    bool fails() {
        ++calls_;
        if (calls_ < first_failure_ || calls_ >= end_of_failures_) return false;
        ++failures_;
        return true;
    }
    static bool take(std::map<std::uint64_t, Bytes>& from, std::uint64_t key, Bytes size) {
        const auto place = from.find(key);
        if (place == from.end() || place->second != size) return false;
        from.erase(place);
        return true;
    }
    bool is_reserved(Address address, Bytes size) const {
        auto arena = arenas_.upper_bound(address);
        if (arena == arenas_.begin()) return false;
        --arena;
        return address + static_cast<Address>(size) <=
               arena->first + static_cast<Address>(arena->second);
    }
    bool is_unmapped(Address address, Bytes size) const {
        const auto next = mapped_.lower_bound(address);
        if (next != mapped_.end() && next->first < address + static_cast<Address>(size))
            return false;
        return next == mapped_.begin() ||
               std::prev(next)->first + static_cast<Address>(std::prev(next)->second.size) <=
                   address;
    }
    EventHandle known(EventHandle event) const {
        require(events_.contains(event), "an event is used between its making and its release");
        return event;
    }

    Device& device_;
    std::map<std::uint64_t, Bytes> segments_;
    std::map<std::uint64_t, Bytes> arenas_;
    std::map<std::uint64_t, Bytes> chunks_;
    std::map<Address, MappedRange> mapped_;
    std::set<EventHandle> events_;
    Bytes used_ = 0;
    std::int64_t calls_ = 0;
    std::int64_t failures_ = 0;
    std::int64_t first_failure_ = 0;
    std::int64_t end_of_failures_ = 0;
};

}  // namespace tenure::testing
