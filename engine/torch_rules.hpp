// PyTorch's rules for which block serves a request, as small pure functions and one table.
//
// Source: c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.14, checked against recorded runs.
// The rules that need the allocator's state (search, release, retry) are in allocator.cpp,
// release.cpp and arena.cpp, each in the order in which PyTorch takes its steps.
#pragma once

#include <bit>

#include "engine/settings.hpp"

namespace tenure::torch_rules {

constexpr Bytes min_block_size = 512;
constexpr Bytes small_size = 1 * MiB;    // a rounded request up to this goes to a small pool
constexpr Bytes small_buffer = 2 * MiB;  // segment size, and granule of an arena, in a small pool
constexpr Bytes min_large_alloc = 10 * MiB;  // below: a segment of large_segment_size
constexpr Bytes round_large = 2 * MiB;       // at or above: the segment is rounded up to this
constexpr Bytes refuse_at = Bytes{1} << 60;  // "more than 1EB memory"

// What tells free blocks of equal size apart.
enum class TieRule {
    address,          // torch <= 2.11: lowest address first
    block_counter,    // 2.12: oldest Block object first
    segment_counter,  // >= 2.13: oldest segment first, then lowest address
};

constexpr TieRule tie_rule(TorchVersion version) {
    if (version <= TorchVersion{2, 11}) return TieRule::address;
    if (version == TorchVersion{2, 12}) return TieRule::block_counter;
    return TieRule::segment_counter;
}

// torch 2.6 counted "a fraction was set" even for 1.0 and had no use_on_oom or no_split pools;
// both differences show only in calls that a trace does not hold, so no rule here branches on them.

inline int floor_log2(Bytes n) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n))) - 1;
}

inline int roundup_divisions(const Settings& settings, Bytes n) {
    int entry = floor_log2(n) - 20;
    if (entry < 0) entry = 0;
    if (entry > 15) entry = 15;
    return settings.roundup_power2_divisions[static_cast<std::size_t>(entry)];
}

// Rounds up to the next of `divisions` equal steps between two powers of two.
inline Bytes round_to_division(Bytes n, int divisions) {
    if (std::has_single_bit(static_cast<std::uint64_t>(n))) return n;
    const Bytes floor = Bytes{1} << floor_log2(n);
    const Bytes step = floor >> floor_log2(divisions);
    return step == 0 ? floor * 2 : round_up(n, step);
}

inline Bytes round_size(const Settings& settings, Bytes requested) {
    if (requested < min_block_size) return min_block_size;
    const int divisions = roundup_divisions(settings, requested);
    if (divisions > 1 && requested > min_block_size * divisions)
        return round_to_division(requested, divisions);
    return round_up(requested, min_block_size);
}

inline bool is_small(Bytes rounded) { return rounded <= small_size; }

inline Bytes segment_size(const Settings& settings, Bytes rounded) {
    if (rounded <= small_size) return small_buffer;
    if (rounded < min_large_alloc) return settings.large_segment_size;
    return round_up(rounded, round_large);
}

inline Bytes granule(const Settings& settings, bool small) {
    return small ? small_buffer : settings.large_segment_size;
}

// An arena reserves addresses for 9/8 of the device's memory, in whole granules.
inline Bytes arena_size(const Settings& settings, Bytes granule) {
    return round_up(settings.device_memory + settings.device_memory / 8, granule);
}

inline bool is_oversize(const Settings& settings, Bytes size) {
    return settings.max_split_size != unlimited && size >= settings.max_split_size;
}

// Oversize blocks serve oversize requests only, and not ones much smaller than themselves.
inline bool may_serve(const Settings& settings, Bytes rounded, Bytes block_size) {
    if (!is_oversize(settings, rounded)) return !is_oversize(settings, block_size);
    return block_size < rounded + settings.max_non_split_rounding;
}

// Note that the *setting* decides which rule holds, not whether the block lies in an arena.
inline bool should_split(const Settings& settings, bool small, Bytes rounded, Bytes block_size) {
    const Bytes remaining = block_size - rounded;
    if (small || settings.expandable_segments) return remaining >= min_block_size;
    return !is_oversize(settings, rounded) && remaining > small_size;
}

}  // namespace tenure::torch_rules
