#include "engine/snapshots/pickle_numbers.hpp"

#include <charconv>
#include <cstring>

namespace tenure {
namespace {

constexpr std::size_t kLongestInteger = 1024;  // bytes; no count in a snapshot needs more than 8

template <typename Number>
bool parse(std::string_view line, Number& number) {
    const char* end = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data(), end, number);
    return error == std::errc() && stop == end;
}

}  // namespace

Value integer_of_bytes(Document& document, std::string_view bytes) {
    if (bytes.size() > kLongestInteger) throw Refusal("an integer of more than 1024 bytes");
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    const char sign = negative ? '\xff' : '\0';
    while (!bytes.empty() && bytes.back() == sign) bytes.remove_suffix(1);
    char word[8];
    std::memset(word, sign, sizeof(word));
    if (bytes.size() > 8) return Value::of(Rare::huge_integer, 0);
    if (!bytes.empty()) std::memcpy(word, bytes.data(), bytes.size());
    const std::int64_t number = short_integer(word, 8);
    if (negative && number >= 0) return Value::of(Rare::huge_integer, 0);
    return negative ? document.integer(number)
                    : document.unsigned_integer(static_cast<std::uint64_t>(number));
}

Value integer_of_line(Document& document, std::string_view line) {
    if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
    if (line.size() > kLongestInteger) throw Refusal("an integer of more than 1024 digits");
    std::int64_t number = 0;
    if (parse(line, number)) return document.integer(number);
    std::uint64_t large = 0;
    if (parse(line, large)) return document.unsigned_integer(large);
    const std::size_t digits = line.starts_with('-') ? 1 : 0;
    if (line.size() == digits ||
        line.find_first_not_of("0123456789", digits) != std::string_view::npos) {
        throw Refusal("an integer that is not a number");
    }
    return Value::of(Rare::huge_integer, 0);
}

double real_of_line(std::string_view line) {
    double number = 0;
    if (!parse(line, number)) throw Refusal("a float that is not a number");
    return number;
}

std::uint64_t index_of_line(std::string_view line) {
    std::uint64_t index = 0;
    if (!parse(line, index)) throw Refusal("a memo index that is not a number");
    return index;
}

}  // namespace tenure
