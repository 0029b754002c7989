#include "engine/collected.hpp"

#include <algorithm>
#include <unordered_map>

namespace tenure {

namespace {

// What is known of a run of releases before any of them is made.
class Run {
  public:
    Run(const Allocator& allocator, std::span<const SegmentEvent> releases, Bytes segment,
        bool waited)
        : allocator_(allocator), releases_(releases), segment_(segment), waited_(waited) {
        const std::vector<SegmentEvent> all = allocator.releasable();
        for (std::size_t i = 0; i < all.size(); ++i) rank_.emplace(all[i].address, i);
        everything_ = releases.size() == all.size();
    }

    bool known() const {
        return std::all_of(releases_.begin(), releases_.end(), [&](const SegmentEvent& event) {
            return rank_.contains(event.address);
        });
    }

    // Whether the first `count` can be a collection, and the others what the request caused then:
    // nothing where it fits, else a retry, which returns all that is left in order.
    bool splits_at(std::size_t count) const {
        Bytes reserved = allocator_.reserved();
        for (std::size_t i = 0; i < count; ++i) {
            const SegmentEvent& event = releases_[i];
            if (event.action != Action::segment_free || event.size <= torch_rules::small_buffer)
                return false;  // only whole segments of the large pool are ever collected
            reserved -= event.size;
        }
        const Bytes limit = allocator_.settings().limit;
        const bool fits = limit == unlimited || reserved + segment_ <= limit;
        if (count == releases_.size()) return fits;
        return waited_ && everything_ && in_order(count) && (limit == unlimited || !fits);
    }

  private:
    bool in_order(std::size_t from) const {
        for (std::size_t i = from + 1; i < releases_.size(); ++i)
            if (rank_.at(releases_[i - 1].address) > rank_.at(releases_[i].address)) return false;
        return true;
    }

    const Allocator& allocator_;
    std::span<const SegmentEvent> releases_;
    Bytes segment_;
    bool waited_;
    std::unordered_map<Address, std::size_t> rank_;  // in the order of a retry
    bool everything_;
};

bool begins_with(std::span<const SegmentEvent> releases, const std::vector<Address>& addresses) {
    return addresses.size() <= releases.size() &&
           std::equal(addresses.begin(), addresses.end(), releases.begin(),
                      [](Address a, const SegmentEvent& event) { return a == event.address; });
}

}  // namespace

std::size_t collected(const Allocator& allocator, std::span<const SegmentEvent> releases,
                      Bytes segment, bool waited) {
    const bool limited = allocator.settings().limit != unlimited;
    const std::vector<Address> ours = allocator.collectable();
    if (limited && ours.empty()) return 0;
    const Run run(allocator, releases, segment, waited);
    if (!run.known()) return 0;
    if (limited && begins_with(releases, ours) && run.splits_at(ours.size())) return 0;
    // Without a limit, all in order is a plain retry or an empty_cache().
    for (std::size_t count = limited || !waited ? 1 : 0; count <= releases.size(); ++count)
        if (run.splits_at(count)) return count;
    return 0;
}

}  // namespace tenure
