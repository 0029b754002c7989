// Elastic rules, ours, as small pure functions and constants: how large a chunk is, how far an
// arena grows, when memory is scarce. What needs the allocator's state is in elastic.cpp (where a
// request goes) and moves.cpp (where its memory comes from). docs/elastic.md draws a picture.
#pragma once

#include <algorithm>

#include "engine/errors.hpp"
#include "engine/settings.hpp"
#include "engine/torch_rules.hpp"

namespace tenure::elastic_rules {

constexpr Bytes page = 2 * MiB;  // the driver's granularity; chunks are whole pages
constexpr Bytes smallest_chunk = page;
constexpr Bytes largest_chunk = 64 * MiB;
constexpr int soft_divisor = 500;
constexpr Bytes growth_step = 20 * MiB;  // while memory is plenty, arenas grow by this
constexpr double plenty = 0.95;          // of the limit: below it, nothing about frees is recorded
constexpr std::uint64_t marked_frees = 256;  // beyond it, an event a stream every so many frees

// What the shared code reads of PyTorch's settings: split at 512 bytes, round to 512 bytes, no
// oversize blocks, no garbage collection, equal sizes told apart by address.
inline Settings effective(Settings settings) {
    settings.expandable_segments = true;
    settings.max_split_size = unlimited;
    settings.roundup_power2_divisions.fill(0);
    settings.garbage_collection_threshold = 0;
    return settings;
}

inline Bytes round_size(Bytes requested) {
    return round_up(std::max(requested, torch_rules::min_block_size), torch_rules::min_block_size);
}

inline void require_valid(const Settings& settings) {
    if (settings.chunk_divisor < 1) throw UsageError("chunk_divisor must be at least 1");
    if (settings.chunk_size < 0 || settings.chunk_size % page != 0)
        throw UsageError("chunk_size must be a multiple of 2 MiB, or 0");
    if (settings.soft_limit != 0 && settings.soft_limit < 1)
        throw UsageError("soft_limit is a multiple of the live peak: at least 1, or 0 for none");
}

// The most memory there can be, which decides the size of a chunk.
inline Bytes memory_bound(const Settings& settings) {
    if (settings.limit == unlimited) return settings.device_memory;
    return std::min(settings.limit, settings.device_memory);
}

// Capacity is lost at the edges of chunks, time to their number: what counts is how many make up
// the whole. With a soft limit, which is moved against all the time, fewer make up what the job
// itself has needed so far.
inline Bytes chunk_size(const Settings& settings, bool small, Bytes soft_target) {
    if (small) return smallest_chunk;
    if (settings.chunk_size > 0) return settings.chunk_size;
    Bytes share = memory_bound(settings) / settings.chunk_divisor;
    if (soft_target != unlimited) share = std::min(share, soft_target / soft_divisor);
    return std::clamp(round_down(share, page), smallest_chunk, largest_chunk);
}

inline Bytes growth(Bytes missing, Bytes chunk) {
    return round_up(missing, std::min(chunk, growth_step));
}

// Addresses are free: an arena never has to be compacted for want of them.
inline Bytes arena_size(const Settings& settings) {
    return round_up(2 * settings.device_memory, page);
}

inline bool is_scarce(Bytes reserved, Bytes limit) {
    return limit != unlimited &&
           static_cast<double>(reserved) > plenty * static_cast<double>(limit);
}

}  // namespace tenure::elastic_rules
