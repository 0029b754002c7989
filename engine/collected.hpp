// Which releases of a recording were a garbage collection, where its rule cannot tell: it goes by
// ages, which nobody knows of blocks that were cached before the recording began, or by a limit
// that nobody named.
#pragma once

#include <span>

#include "engine/allocator.hpp"

namespace tenure {

// How many of the releases, from the first on, a garbage collection for a request of `segment`
// bytes made; 0 if none, or if the allocator's own would make the very same. `waited`: nothing was
// pending at the releases any more, as after a retry's or an empty_cache()'s wait for all events.
std::size_t collected(const Allocator& allocator, std::span<const SegmentEvent> releases,
                      Bytes segment, bool waited);

}  // namespace tenure
