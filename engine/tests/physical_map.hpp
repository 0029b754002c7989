// A device that keeps its own map of physical memory and its own order of work, and refuses
// whatever lets two uses of one byte meet. It knows nothing of the allocator: a test tells it what
// was handed out, used and freed.
//
//   work        numbered on each stream; a use is (stream, number)
//   ordered     use A comes before use B if B's stream waited for A, or the host knew A was over
//               when it queued B
//
// Checked: no two live blocks share a byte; a block's memory is mapped and stays so; what a block
// is handed out on is ordered behind every earlier use of its bytes; nothing is unmapped through
// which work may still run.
#pragma once

#include <map>
#include <vector>

#include "engine/devices/device.hpp"
#include "engine/errors.hpp"

namespace tenure::testing {

class PhysicalMap final : public Device {
  public:
    explicit PhysicalMap(Device& memory, bool can_alias = true)
        : memory_(memory), can_alias_(can_alias) {}

    // --- what the test reports ---

    void handed_out(Address address, Bytes size, Stream stream) {
        learn(stream);
        for (const Piece& piece : pieces_of(address, size)) {
            for (const Piece& live : live_)
                require(!live.meets(piece), "no two live blocks share a byte");
            for (const Use& use : uses_)
                require(!use.piece.meets(piece) || use.stream == stream ||
                            use.number <= known_[stream][use.stream],
                        "a block's first use comes after every earlier use of its bytes");
        }
        for (const Piece& piece : pieces_of(address, size)) live_.push_back(piece);
        used(address, size, stream);
    }
    void used(Address address, Bytes size, Stream stream) {
        learn(stream);
        const std::uint64_t number = ++queued_[stream];
        for (const Piece& piece : pieces_of(address, size))
            uses_.push_back({piece, stream, number});
    }
    // Work on the block's own stream may have been queued until now.
    void freed(Address address, Bytes size, Stream stream) {
        used(address, size, stream);
        for (const Piece& piece : pieces_of(address, size))
            std::erase_if(live_, [&](const Piece& live) { return live == piece; });
    }

    // From now on work ends by itself, at one in so many questions whether it has.
    void end_work_every(int questions) { restless_ = questions; }
    // All work queued on the stream is over, and with it what it waited for.
    void finish(Stream stream) { complete(now(stream)); }
    // The oldest work that some event waits for is over.
    void finish_one_event() {
        for (const auto& [event, past] : events_)
            if (!is_over(past)) return complete(past.all);
    }

    // --- the device ---

    Address create_segment(Bytes size) override { return memory_.create_segment(size); }
    void destroy_segment(Address address, Bytes size) override {
        memory_.destroy_segment(address, size);
    }
    Address reserve(Bytes size, Bytes granule) override { return memory_.reserve(size, granule); }
    void unreserve(Address address, Bytes size) override { memory_.unreserve(address, size); }
    ChunkHandle create_chunk(Bytes size) override { return memory_.create_chunk(size); }
    void destroy_chunk(ChunkHandle chunk, Bytes size) override {
        for (const auto& [address, mapping] : mappings_)
            require(mapping.chunk != chunk, "a chunk is destroyed once it is mapped nowhere");
        std::erase_if(uses_, [&](const Use& use) { return use.piece.chunk == chunk; });
        memory_.destroy_chunk(chunk, size);
    }
    bool map_chunk(Address address, ChunkHandle chunk, Bytes size) override {
        if (!can_alias_)
            for (const auto& [other, mapping] : mappings_)
                require(mapping.chunk != chunk, "without aliasing a chunk has one address");
        if (!memory_.map_chunk(address, chunk, size)) return false;
        mappings_[address] = {chunk, size};
        return true;
    }
    void unmap_chunk(Address address, Bytes size) override {
        const Address end = address + static_cast<Address>(size);
        for (const Piece& live : live_)
            require(live.address >= end || live.end() <= address, "live memory stays mapped");
        for (const Use& use : uses_)
            require(use.piece.address >= end || use.piece.end() <= address ||
                        use.number <= host_[use.stream],
                    "nothing is unmapped that work may still reach");
        mappings_.erase(address);
        memory_.unmap_chunk(address, size);
    }

    EventHandle record_event(Stream stream) override {
        learn(stream);
        ++queued_[stream];
        events_[++next_event_] = {stream, now(stream)};
        return next_event_;
    }
    bool is_done(EventHandle event) override {
        if (restless_ > 0 && ++questions_ % restless_ == 0) complete(events_.at(event).all);
        if (!is_over(events_.at(event))) return false;
        hear(events_.at(event).all);
        return true;
    }
    void wait(EventHandle event) override {
        complete(events_.at(event).all);
        hear(events_.at(event).all);
    }
    void release_event(EventHandle event) override { events_.erase(event); }
    void synchronize(Stream stream) override {
        complete(now(stream));
        hear(now(stream));
    }
    bool make_stream_wait(Stream stream, EventHandle event) override {
        raise(known_[stream], events_.at(event).all);
        return true;
    }
    bool can_alias() const override { return can_alias_; }
    Bytes total_memory() const override { return memory_.total_memory(); }

  private:
    using Progress = std::map<Stream, std::uint64_t>;  // work up to this number, by stream

    struct Mapping {
        ChunkHandle chunk;
        Bytes size;
    };
    // Part of a block: a range of one chunk, and the addresses that it was reached by.
    struct Piece {
        ChunkHandle chunk;
        Bytes offset;
        Bytes size;
        Address address;
        Address end() const { return address + static_cast<Address>(size); }
        bool meets(const Piece& other) const {
            return chunk == other.chunk && offset < other.offset + other.size &&
                   other.offset < offset + size;
        }
        bool operator==(const Piece&) const = default;
    };
    struct Use {
        Piece piece;
        Stream stream;
        std::uint64_t number;
    };
    struct Past {
        Stream stream;
        Progress all;  // what is over once the event is
    };

    static void require(bool holds, const char* rule) {
        if (!holds) throw BrokenInvariant(std::string("physical memory: ") + rule);
    }
    static void raise(Progress& progress, const Progress& by) {
        for (const auto& [stream, number] : by)
            progress[stream] = std::max(progress[stream], number);
    }

    std::vector<Piece> pieces_of(Address address, Bytes size) const {
        std::vector<Piece> pieces;
        while (size > 0) {
            auto place = mappings_.upper_bound(address);
            require(place != mappings_.begin(), "a block lies on memory");
            --place;
            const Bytes offset = static_cast<Bytes>(address - place->first);
            const Bytes here = std::min(size, place->second.size - offset);
            require(here > 0, "a block lies on memory throughout");
            pieces.push_back({place->second.chunk, offset, here, address});
            address += static_cast<Address>(here);
            size -= here;
        }
        return pieces;
    }

    // What the host knows to be over comes before whatever it queues next.
    void learn(Stream stream) { raise(known_[stream], host_); }
    Progress now(Stream stream) {
        Progress all = known_[stream];
        all[stream] = queued_[stream];
        return all;
    }
    bool is_over(const Past& past) { return past.all.at(past.stream) <= completed_[past.stream]; }
    void complete(const Progress& progress) { raise(completed_, progress); }
    void hear(const Progress& progress) {
        raise(host_, progress);
        std::erase_if(uses_, [&](const Use& use) { return use.number <= host_[use.stream]; });
    }

    Device& memory_;
    bool can_alias_;
    int restless_ = 0;
    int questions_ = 0;
    std::map<Address, Mapping> mappings_;
    std::vector<Piece> live_;
    std::vector<Use> uses_;             // that the host does not know to be over
    Progress queued_;                   // last work on each stream
    Progress completed_;                // on the device
    Progress host_;                     // as far as the host knows
    std::map<Stream, Progress> known_;  // what comes before the next work of each stream
    std::map<EventHandle, Past> events_;
    EventHandle next_event_ = 0;
};

}  // namespace tenure::testing
