// What a recording that began late leaves open about its start, narrowed down while it is replayed.
//
// Two things are open. A block only seen being freed may hold up to 1 MiB that was not split off,
// so the free range behind it may be shorter than assumed (`slack`). And from torch 2.12 on the age
// of segments (2.12: of blocks) decides between free blocks of equal size, but ages from before the
// first event are guesses. Where the rules would not take the block that the record has, and one
// of the two explains it, the start is bent that way; what the record has shown before stays true.
#pragma once

#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/allocator.hpp"

namespace tenure {

class LateStart {
  public:
    using Number = std::int64_t;  // of an allocation

    explicit LateStart(Allocator& allocator) : allocator_(allocator) {}

    // After the last segment was restored. `slack`: bytes by which blocks may be larger.
    void begin(const std::vector<std::pair<Number, Bytes>>& slack);

    // Makes the rules agree with the record on the block for a request, if what is open allows it.
    // `recorded` is the block's address, 0 if the request failed.
    void fit(Bytes requested, Stream stream, PoolId pool, Address recorded);

    // The same for releases that the record makes in a row: of equal segments the older goes first.
    void fit_releases(std::span<const SegmentEvent> recorded);

    // Blocks found to be larger than assumed, with the bytes to add.
    const std::map<Number, Bytes>& larger() const { return larger_; }

  private:
    using Order = std::uint64_t;  // as in Block::order
    using Age = std::size_t;      // stable name of an order from before the first event

    bool shrink(Block* block, Bytes rounded);
    void remember(const Block* taken);
    const Block* whole_segment(const SegmentEvent& event) const;
    bool older(const Block* chosen, const Block* ours);
    bool put_before(Age first, Age second);
    bool leads_to(Age from, Age to) const;
    void set_order(Age age, Order order);
    const Age* age_of(const Block* block) const;

    Allocator& allocator_;
    std::unordered_map<Number, Bytes> slack_;
    std::map<Number, Bytes> larger_;
    std::map<Order, Age> ages_;
    std::vector<Order> orders_;             // by age
    std::map<Age, std::set<Age>> younger_;  // what the record has shown
};

}  // namespace tenure
