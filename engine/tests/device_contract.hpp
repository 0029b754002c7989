// What every device must do, written once: device.hpp's pre- and postconditions as checks.
//
// A new device (one with a GPU, say) is tested by describing it as a Subject.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/devices/device.hpp"
#include "engine/tests/check.hpp"

namespace tenure::testing {

struct Subject {
    const char* name;
    // A device that gives out at most `capacity` bytes; unlimited: as many as it has.
    std::function<std::unique_ptr<Device>(Bytes capacity)> make;
    // Set and read one byte of device memory; null where a device has addresses only.
    std::function<void(Address, unsigned char)> write;
    std::function<unsigned char(Address)> read;
    // Keeps a stream busy, and lets all its work so far end.
    std::function<void(Device&, Stream)> start_work;
    std::function<void(Device&, Stream)> finish_work;
    Stream one = 0;
    Stream other = 1;
    Bytes granule = 2 * MiB;  // of chunks
};

// Writes to both ends of every range, then reads all of it back.
class Ranges {
  public:
    explicit Ranges(const Subject& subject) : subject_(subject) {}

    void add(Address address, Bytes size) {
        for (const Range& range : ranges_)
            CHECK(address + static_cast<Address>(size) <= range.address ||
                  range.address + static_cast<Address>(range.size) <= address);
        ranges_.push_back({address, size, static_cast<unsigned char>(17 * ranges_.size() + 1)});
        if (!subject_.write) return;
        subject_.write(address, ranges_.back().mark);
        subject_.write(address + static_cast<Address>(size) - 1, ranges_.back().mark);
    }
    void check_contents() const {
        if (!subject_.read) return;
        for (const Range& range : ranges_) {
            CHECK(subject_.read(range.address) == range.mark);
            CHECK(subject_.read(range.address + static_cast<Address>(range.size) - 1) ==
                  range.mark);
        }
    }

  private:
    struct Range {
        Address address;
        Bytes size;
        unsigned char mark;
    };
    const Subject& subject_;
    std::vector<Range> ranges_;
};

inline void check_segments(const Subject& subject) {
    const auto device = subject.make(unlimited);
    Ranges ranges(subject);
    std::vector<std::pair<Address, Bytes>> segments;
    for (const Bytes size : {2 * MiB, 20 * MiB, 2 * MiB, 34 * MiB}) {
        const Address address = device->create_segment(size);
        CHECK(address != 0);
        CHECK_EQUAL(address % 512, 0u);
        ranges.add(address, size);
        segments.emplace_back(address, size);
    }
    ranges.check_contents();
    for (const auto& [address, size] : segments) device->destroy_segment(address, size);
}

inline void check_capacity(const Subject& subject) {
    const auto device = subject.make(64 * MiB);
    const Address first = device->create_segment(40 * MiB);
    CHECK(first != 0);
    CHECK_EQUAL(device->create_segment(26 * MiB), 0u);  // refused: and nothing has changed
    const Address second = device->create_segment(22 * MiB);
    CHECK(second != 0);
    const ChunkHandle chunk = device->create_chunk(subject.granule);
    CHECK(chunk != 0);
    CHECK_EQUAL(device->create_chunk(subject.granule), 0u);
    device->destroy_chunk(chunk, subject.granule);
    device->destroy_segment(first, 40 * MiB);
    const Address third = device->create_segment(42 * MiB);  // what was given back can be taken
    CHECK(third != 0);
    device->destroy_segment(second, 22 * MiB);
    device->destroy_segment(third, 42 * MiB);
}

inline void check_reservations_need_no_memory(const Subject& subject) {
    const auto device = subject.make(4 * MiB);
    const Address one = device->reserve(8 * GiB, subject.granule);
    const Address two = device->reserve(8 * GiB, subject.granule);
    CHECK(one != 0 && two != 0);
    CHECK(one + 8 * GiB <= two || two + 8 * GiB <= one);
    CHECK_EQUAL(one % 512, 0u);
    CHECK_EQUAL(two % 512, 0u);
    device->unreserve(two, 8 * GiB);
    device->unreserve(one, 8 * GiB);
}

inline void check_mapping(const Subject& subject) {
    const auto device = subject.make(unlimited);
    const Bytes size = 16 * subject.granule;
    const Address arena = device->reserve(size, subject.granule);
    CHECK(arena != 0);
    Ranges ranges(subject);
    std::vector<std::pair<Address, ChunkHandle>> mapped;
    for (const Address slot : {0u, 3u, 4u, 15u}) {
        const Address address = arena + slot * static_cast<Address>(subject.granule);
        const ChunkHandle chunk = device->create_chunk(subject.granule);
        CHECK(chunk != 0);
        CHECK(device->map_chunk(address, chunk, subject.granule));
        ranges.add(address, subject.granule);
        mapped.emplace_back(address, chunk);
    }
    ranges.check_contents();
    for (const auto& [address, chunk] : mapped) {
        device->unmap_chunk(address, subject.granule);
        device->destroy_chunk(chunk, subject.granule);
    }
    device->unreserve(arena, size);
}

// A chunk keeps its contents while it has no address, and takes them to its next one.
inline void check_moving(const Subject& subject) {
    const auto device = subject.make(unlimited);
    const Bytes granule = subject.granule;
    const Address arena = device->reserve(2 * granule, granule);
    const Address target = arena + static_cast<Address>(granule);
    const ChunkHandle chunk = device->create_chunk(granule);
    CHECK(arena != 0 && chunk != 0);
    CHECK(device->map_chunk(arena, chunk, granule));
    if (subject.write) subject.write(arena + 4096, 77);
    device->unmap_chunk(arena, granule);
    CHECK(device->map_chunk(target, chunk, granule));
    if (subject.read) CHECK_EQUAL(subject.read(target + 4096), 77);
    const ChunkHandle fresh = device->create_chunk(granule);
    CHECK(device->map_chunk(arena, fresh, granule));  // the addresses it left can be used again
    if (subject.write) subject.write(arena + 4096, 5);
    if (subject.read) CHECK_EQUAL(subject.read(target + 4096), 77);
    for (const auto& [address, handle] : {std::pair{arena, fresh}, std::pair{target, chunk}}) {
        device->unmap_chunk(address, granule);
        device->destroy_chunk(handle, granule);
    }
    device->unreserve(arena, 2 * granule);
}

inline void check_events(const Subject& subject) {
    const auto device = subject.make(unlimited);
    subject.start_work(*device, subject.one);
    subject.start_work(*device, subject.other);
    const EventHandle first = device->record_event(subject.one);
    const EventHandle elsewhere = device->record_event(subject.other);
    CHECK(first != 0 && elsewhere != 0 && first != elsewhere);
    CHECK(!device->is_done(first));
    CHECK(!device->is_done(elsewhere));
    subject.finish_work(*device, subject.one);
    CHECK(device->is_done(first));
    CHECK(!device->is_done(elsewhere));  // streams do not wait for each other
    subject.start_work(*device, subject.one);
    const EventHandle second = device->record_event(subject.one);
    CHECK(device->is_done(first));  // done is for ever
    CHECK(!device->is_done(second));
    subject.finish_work(*device, subject.one);
    device->wait(second);
    CHECK(device->is_done(second));
    subject.finish_work(*device, subject.other);
    device->synchronize(subject.other);
    CHECK(device->is_done(elsewhere));
    for (const EventHandle event : {first, second, elsewhere}) device->release_event(event);
}

inline void check_device_contract(const Subject& subject) {
    const int before = failures;
    check_segments(subject);
    check_capacity(subject);
    check_reservations_need_no_memory(subject);
    check_mapping(subject);
    check_moving(subject);
    check_events(subject);
    if (failures > before) std::printf("device: %s\n", subject.name);
}

}  // namespace tenure::testing
