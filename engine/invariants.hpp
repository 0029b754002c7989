// Every rule that must hold between two calls, one line each.
#pragma once

#include "engine/allocator.hpp"

namespace tenure {

// Throws BrokenInvariant naming the first rule that does not hold. Linear in blocks.
void check(const Allocator& allocator);

}  // namespace tenure
