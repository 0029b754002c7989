// A hash table of ids whose entries live elsewhere: finds equal things among many.
#pragma once

#include <cstdint>
#include <vector>

namespace tenure {

// Mixes one word into a running hash.
inline std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    return hash ^ (hash >> 29);
}

// Open addressing with a bound on the search: a file made so that its hashes collide makes equal
// things be kept twice, never a slow search. So `find` may miss; it never returns a wrong id.
class ProbeTable {
  public:
    static constexpr std::uint32_t kMissing = 0xffffffffU;

    // The id for which `same(id)` holds, or kMissing.
    template <typename Same>
    std::uint32_t find(std::uint64_t hash, Same same) const {
        if (slots_.empty()) return kMissing;
        const auto tag = fold(hash);
        for (std::uint32_t step = 0; step < kReach; ++step) {
            const Slot& slot = slots_[(tag + step) & mask_];
            if (slot.id == kMissing) return kMissing;
            if (slot.tag == tag && same(slot.id)) return slot.id;
        }
        return kMissing;
    }

    void insert(std::uint64_t hash, std::uint32_t id) {
        if (2 * (used_ + 1) > slots_.size()) grow();
        place(Slot{fold(hash), id});
    }

  private:
    struct Slot {
        std::uint32_t tag = 0;
        std::uint32_t id = kMissing;
    };
    static constexpr std::uint32_t kReach = 64;  // slots looked at before giving up

    static std::uint32_t fold(std::uint64_t hash) {
        return static_cast<std::uint32_t>(hash ^ (hash >> 32));
    }

    void place(Slot slot) {
        for (std::uint32_t step = 0; step < kReach; ++step) {
            Slot& candidate = slots_[(slot.tag + step) & mask_];
            if (candidate.id != kMissing) continue;
            candidate = slot;
            ++used_;
            return;
        }
    }

    void grow() {
        std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
        old.swap(slots_);
        mask_ = static_cast<std::uint32_t>(slots_.size() - 1);
        used_ = 0;
        for (const Slot& slot : old) {
            if (slot.id != kMissing) place(slot);
        }
    }

    std::vector<Slot> slots_;
    std::uint32_t mask_ = 0;
    std::size_t used_ = 0;
};

}  // namespace tenure
