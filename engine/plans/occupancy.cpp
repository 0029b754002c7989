#include "engine/plans/occupancy.hpp"

#include <algorithm>
#include <bit>

namespace tenure {

bool add_range(ByteRanges& ranges, ByteRange added) {
    const auto first =
        std::lower_bound(ranges.begin(), ranges.end(), added.start,
                         [](const ByteRange& range, Bytes start) { return range.end < start; });
    if (first == ranges.end() || first->start > added.end) {
        ranges.insert(first, added);
        return true;
    }
    if (first->start <= added.start && added.end <= first->end) return false;
    first->start = std::min(first->start, added.start);
    Bytes end = std::max(first->end, added.end);
    auto after = first + 1;
    for (; after != ranges.end() && after->start <= end; ++after) end = std::max(end, after->end);
    first->end = end;
    ranges.erase(first + 1, after);
    return true;
}

Occupancy::Occupancy(std::int32_t points)
    : leaves_(std::bit_ceil(static_cast<std::size_t>(std::max(points, 1)))),
      cover_(2 * leaves_),
      within_(leaves_) {}

void Occupancy::clear() {
    for (ByteRanges& ranges : cover_) ranges.clear();
    for (ByteRanges& ranges : within_) ranges.clear();
}

ByteRanges& Occupancy::within(std::size_t node) {
    return node < leaves_ ? within_[node] : cover_[node];
}

// The fewest nodes that together make up [first, last).
template <typename Visit>
void Occupancy::visit_pieces(std::size_t first, std::size_t last, Visit&& visit) {
    std::size_t low = leaves_ + first, high = leaves_ + last;
    for (; low < high; low /= 2, high /= 2) {
        if (low & 1) visit(low++);
        if (high & 1) visit(--high);
    }
}

// The nodes that [first, last) enters but does not fill, each once, children before parents on
// each side: every one of them lies above the first leaf or above the last. `visit` says whether
// to go on upwards.
template <typename Visit>
void Occupancy::visit_above(std::size_t first, std::size_t last, Visit&& visit) {
    const std::size_t low_leaf = leaves_ + first, high_leaf = leaves_ + last - 1;
    for (const std::size_t leaf : {low_leaf, high_leaf}) {
        for (unsigned level = 1; (leaf >> level) > 0; ++level) {
            const std::size_t node = leaf >> level;
            if (leaf == high_leaf && node == low_leaf >> level && low_leaf != high_leaf) break;
            const std::size_t start = (node << level) - leaves_;
            if (start >= first && start + (std::size_t{1} << level) <= last) continue;
            if (!visit(node)) break;
        }
        if (low_leaf == high_leaf) break;
    }
}

void Occupancy::watch(const ByteRanges& ranges) {
    if (!ranges.empty()) cursors_.push_back({ranges.data(), ranges.data() + ranges.size()});
}

Bytes Occupancy::lowest(std::int32_t first, std::int32_t last, Bytes size) {
    const auto low = static_cast<std::size_t>(first), high = static_cast<std::size_t>(last);
    cursors_.clear();
    visit_pieces(low, high, [&](std::size_t node) { watch(within(node)); });
    visit_above(low, high, [&](std::size_t node) {
        watch(cover_[node]);
        return true;
    });
    // Each union in turn pushes the candidate past what is in its way, until all agree.
    Bytes offset = 0;
    const std::size_t count = cursors_.size();
    std::size_t turn = 0;
    for (std::size_t agreed = 0; agreed < count; ++agreed) {
        Cursor& cursor = cursors_[turn];
        while (cursor.at != cursor.end && cursor.at->end <= offset) ++cursor.at;
        while (cursor.at != cursor.end && cursor.at->start < offset + size) {
            offset = cursor.at->end;
            ++cursor.at;
            agreed = 0;
        }
        if (++turn == count) turn = 0;
    }
    return offset;
}

void Occupancy::take(std::int32_t first, std::int32_t last, ByteRange range) {
    const auto low = static_cast<std::size_t>(first), high = static_cast<std::size_t>(last);
    visit_pieces(low, high, [&](std::size_t node) {
        add_range(cover_[node], range);
        if (node < leaves_) add_range(within_[node], range);
    });
    // What a node holds, all nodes above it hold: nothing new here is nothing new above.
    visit_above(low, high, [&](std::size_t node) { return add_range(within_[node], range); });
}

}  // namespace tenure
