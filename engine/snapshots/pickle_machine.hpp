// Reads a pickle, protocols 0 to 5, without ever running what is in it.
#pragma once

#include "engine/snapshots/byte_source.hpp"
#include "engine/snapshots/pickle_document.hpp"

namespace tenure {

// The value that the pickle builds. Only None, bool, int, float, str, bytes, list, tuple, dict and
// set exist here: an opcode that names a function or a class, calls one, or asks for data from
// outside throws BadInput, as does a pickle that is broken or cut short; the message says which
// opcode, at which byte, and what to do. No length is believed before the bytes for it are seen to
// be there, and nothing recurses, so work and memory stay in proportion to the size of the file.
// The source is read up to the pickle's end, and a little beyond.
Document read_pickle(ByteSource& source);

}  // namespace tenure
