#include "engine/plans/pack.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "engine/plans/occupancy.hpp"

namespace tenure {

namespace {

using Clock = std::chrono::steady_clock;
using Order = std::vector<std::int32_t>;

// An order of placing: by a key, largest first, then by life, longest first, then by birth. (Ties
// by size would order the caches of a generating model, which grow a little with every step, from
// the end of the run to its beginning: 1.09 times the bound instead of 1.0001.)
struct OrderRule {
    double classes;     // above 0: the key is the size's class, this many to a power of two
    double phase;       // moves the borders between classes, in classes
    double life_power;  // where classes is 0: the key is size times life (in points) to this power
};

// What did best on recorded jobs; so many classes that each size has its own is the plain size.
constexpr OrderRule known_rules[] = {
    {1, 0, 0},    {0.5, 0.5, 0}, {0.5, 0, 0}, {1, 0.5, 0}, {1e9, 0, 0},
    {0, 0, 0.25}, {2, 0.5, 0},   {3, 0.5, 0}, {0, 0, 0.5}, {0.25, 0, 0},
};

constexpr double good_enough = 1.0002;       // times the bound: no further order is tried
constexpr double search_above = 1.002;       // times the bound: worth a search
constexpr int longest_chain = 1000;          // orders made from one before another start
constexpr std::size_t clock_interval = 512;  // placements between two looks at the clock

class Packer {
  public:
    Packer(std::span<const Interval> intervals, std::uint64_t seed, Clock::time_point deadline)
        : intervals_(intervals),
          points_(points_of(intervals)),
          bound_(live_peak(intervals)),
          deadline_(deadline),
          random_(seed),
          occupancy_(points_.count),
          offsets_(intervals.size()) {}

    Packing run() {
        for (const OrderRule& rule : known_rules) {
            if (best_.tries > 0 && (within(good_enough) || out_of_time())) break;
            place(by_rule(rule));
        }
        while (!within(search_above) && !out_of_time())
            search_from(below(4) == 0 ? by_rule(random_rule()) : best_order_);
        return std::move(best_);
    }

  private:
    bool within(double factor) const {
        return static_cast<double>(best_.size) <= factor * static_cast<double>(bound_);
    }
    bool out_of_time() const { return Clock::now() > deadline_; }

    std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
    double fraction() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
    OrderRule random_rule() { return {std::exp2(4 * fraction() - 2), fraction(), 0}; }

    double key(std::size_t i, const OrderRule& rule) const {
        const auto size = static_cast<double>(intervals_[i].size);
        if (rule.classes > 0) return std::floor(std::log2(size) * rule.classes + rule.phase);
        return size * std::pow(points_.last[i] - points_.first[i], rule.life_power);
    }

    Order by_rule(const OrderRule& rule) const {
        struct Entry {
            double key;
            Moment life, begin;
            std::int32_t index;
        };
        std::vector<Entry> entries;
        entries.reserve(intervals_.size());
        for (std::size_t i = 0; i < intervals_.size(); ++i)
            entries.push_back({key(i, rule), intervals_[i].life(), intervals_[i].begin,
                               static_cast<std::int32_t>(i)});
        std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
            if (a.key != b.key) return a.key > b.key;
            if (a.life != b.life) return a.life > b.life;
            if (a.begin != b.begin) return a.begin < b.begin;
            return a.index < b.index;
        });
        Order order;
        order.reserve(entries.size());
        for (const Entry& entry : entries) order.push_back(entry.index);
        return order;
    }

    // Again and again the buffer that did not fit moves to an earlier place, near the front more
    // often than not, until all fit below the best or the chain gets long.
    void search_from(Order order) {
        for (int length = 0; length < longest_chain && !out_of_time(); ++length) {
            const std::size_t misfit = place(order);
            if (misfit == order.size()) return;
            const auto from = order.begin() + static_cast<std::ptrdiff_t>(misfit);
            const auto to = static_cast<std::ptrdiff_t>(below(below(misfit + 1) + 1));
            std::rotate(order.begin() + to, from, from + 1);
        }
    }

    // First fit in this order. A placement better than the best becomes the best; else it stops
    // at the first buffer that makes it no better, or when time is up, and returns its place.
    std::size_t place(const Order& order) {
        const bool first = best_.tries++ == 0;
        occupancy_.clear();
        Bytes size = 0;
        for (std::size_t k = 0; k < order.size(); ++k) {
            const auto i = static_cast<std::size_t>(order[k]);
            const Bytes needed = intervals_[i].size;
            const Bytes offset = occupancy_.lowest(points_.first[i], points_.last[i], needed);
            size = std::max(size, offset + needed);
            if (!first && size >= best_.size) return k;
            if (!first && k % clock_interval == 0 && out_of_time()) return k;
            occupancy_.take(points_.first[i], points_.last[i], {offset, offset + needed});
            offsets_[i] = offset;
        }
        best_.size = size;
        best_.offsets = offsets_;
        best_order_ = order;
        return order.size();
    }

    std::span<const Interval> intervals_;
    Points points_;
    Bytes bound_;
    Clock::time_point deadline_;
    std::mt19937_64 random_;
    Occupancy occupancy_;
    std::vector<Bytes> offsets_;  // of the order being tried
    Packing best_;
    Order best_order_;
};

}  // namespace

Packing pack(std::span<const Interval> intervals, const PackOptions& options) {
    std::map<Stream, std::vector<std::size_t>> groups;  // each packed above the one before
    for (std::size_t i = 0; i < intervals.size(); ++i)
        groups[options.streams_apart ? intervals[i].stream : 0].push_back(i);
    const std::chrono::duration<double> allowed(std::clamp(options.seconds, 0.0, 1e6));
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(allowed);
    Packing whole;
    whole.offsets.resize(intervals.size());
    auto groups_left = static_cast<int>(groups.size());
    for (const auto& [stream, members] : groups) {
        std::vector<Interval> mine;
        mine.reserve(members.size());
        for (const std::size_t i : members) mine.push_back(intervals[i]);
        const auto now = Clock::now();
        const auto share = std::max(end - now, Clock::duration(0)) / groups_left--;
        const Packing packing = Packer(mine, options.seed, now + share).run();
        for (std::size_t k = 0; k < members.size(); ++k)
            whole.offsets[members[k]] = whole.size + packing.offsets[k];
        whole.size += packing.size;
        whole.tries += packing.tries;
    }
    return whole;
}

}  // namespace tenure
