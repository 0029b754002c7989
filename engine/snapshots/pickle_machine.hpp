// Reads a pickle, protocols 0 to 5, without ever running what is in it.
#pragma once

#include <cstddef>
#include <span>

#include "engine/snapshots/pickle_document.hpp"

namespace tenure {

// The value that the pickle builds. Only None, bool, int, float, str, bytes, list, tuple, dict and
// set exist here: an opcode that names a function or a class, calls one, or asks for data from
// outside throws BadInput, as does a pickle that is broken or cut short; the message says which
// opcode, at which byte, and what to do. No length is believed before the bytes for it are seen to
// be there, and nothing recurses, so work and memory stay in proportion to the size of the file.
//
// The bytes must stay where they are as long as the document lives: its strings point into them.
Document read_pickle(std::span<const std::byte> bytes);

}  // namespace tenure
