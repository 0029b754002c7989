// Physical memory under elastic rules: chunks, where each is mapped, and when uses of it are over.
//
//   pages of an arena   | 3 | 3 | 3 | 7 | . | . | 5' | . | 4 | ...   4-byte index a 2 MiB page
//                         chunk 3, 6 MiB  unmapped  old mapping of chunk 5, unmapped soon
//
// A chunk is mapped at one place, or idle. While work queued through its former place may still
// run, the old mapping stays as well; nothing else may be mapped there until it is gone.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "engine/elastic_statistics.hpp"
#include "engine/segment.hpp"

namespace tenure {

using ChunkIndex = std::uint32_t;             // into the chunk table, and in page tables; 0 is none
constexpr ChunkIndex old_mapping = 1u << 31;  // flag in a page table: waits to be unmapped

struct Chunk {
    ChunkHandle handle = 0;  // 0: a spare entry
    Bytes size = 0;
    Segment* arena = nullptr;  // null: idle
    Address address = 0;
    int old_mappings = 0;
    bool grows = false;  // its creation made reserved larger than ever, and it is not mapped yet
};

// When the work of freed blocks is over, without an event a free: each free on a stream gets the
// next stamp, and an event recorded later covers every stamp so far.
struct alignas(64) StreamClock {  // as a Home
    struct Mark {
        std::uint64_t stamp;
        EventHandle event;
    };
    Stream stream = 0;
    std::uint64_t frees = 0;  // stamp of the newest free
    std::uint64_t done = 0;   // work up to this stamp is over
    std::deque<Mark> marks;   // ascending stamps above `done`

    bool is_done(std::uint64_t stamp) const { return stamp <= done; }
    bool is_marked(std::uint64_t stamp) const {
        return is_done(stamp) || (!marks.empty() && marks.back().stamp >= stamp);
    }
};

struct OldMapping {
    ChunkIndex chunk;
    Segment* arena;
    Address address;
    Bytes size;
    StreamClock* clock;
    std::uint64_t stamp;  // the mapping goes once this is done
};

// Keeps chunks and page tables in step with the device; knows nothing of blocks.
class ChunkTable {
  public:
    ChunkTable(Device& device, const CallCosts& costs) : meter(costs), device_(device) {}
    ChunkTable(const ChunkTable&) = delete;

    const Chunk& operator[](ChunkIndex index) const { return chunks_[index]; }
    const std::vector<Chunk>& all() const { return chunks_; }  // entry 0 and spare ones included
    const std::vector<ChunkIndex>& idle() const { return idle_; }

    ChunkIndex create(Bytes size, bool grows);  // idle; or 0 if the device has no more
    void destroy(ChunkIndex chunk);             // pre: idle, no old mappings
    // An idle chunk, or one that keeps its former place as an old mapping; false: nothing changed.
    bool map(ChunkIndex chunk, Segment& arena, Address address);
    bool alias(ChunkIndex chunk, Segment& arena, Address address);
    void unmap(ChunkIndex chunk);  // it becomes idle
    void unmap(const OldMapping& old);

    CallMeter meter;

  private:
    void set_pages(Segment& arena, Address address, Bytes size, ChunkIndex value);
    bool map_at(ChunkIndex chunk, Segment& arena, Address address);
    void forget_idle(ChunkIndex chunk);

    Device& device_;
    std::vector<Chunk> chunks_ = std::vector<Chunk>(1);
    std::vector<ChunkIndex> spare_;
    std::vector<ChunkIndex> idle_;
};

// The chunk mapped at a page, or 0; old mappings do not count.
ChunkIndex chunk_at(const Segment& arena, Address address);

// All that an allocator keeps for elastic rules beside its blocks.
struct ElasticState {
    ElasticState(Device& device, const CallCosts& costs) : chunks(device, costs) {}

    ChunkTable chunks;
    std::map<Stream, StreamClock> clocks;
    std::vector<OldMapping> old_mappings;
    std::multimap<Address, Bytes> pins;  // ranges whose chunks must stay where they are
    std::function<bool()> collect;       // frees what dead cycles hold; true if it did anything
    Bytes refused_at = unlimited;        // reserved when the device last had no more to give
    Bytes reserved_peak = 0;
    Bytes live_peak = 0;     // most bytes active, resets of statistics aside
    bool is_scarce = false;  // frees are worth an event now and then
};

}  // namespace tenure
