// Numbers as the pickle protocols write them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "engine/snapshots/pickle_document.hpp"

namespace tenure {

// The first `count` (1 to 8) of eight readable bytes: two's complement, little endian.
inline std::int64_t short_integer(const char* bytes, std::size_t count) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    const auto unused = static_cast<int>(8 * (8 - count));
    return static_cast<std::int64_t>(word << unused) >> unused;
}

// The same of any length; more than 64 bits are known to be too many, but not kept.
Value integer_of_bytes(Document& document, std::string_view bytes);

// Protocol 0 writes numbers as lines of text. All throw Refusal for anything else.
Value integer_of_line(Document& document, std::string_view line);
double real_of_line(std::string_view line);
std::uint64_t index_of_line(std::string_view line);

}  // namespace tenure
