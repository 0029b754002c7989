#include "engine/snapshots/pickle_text.hpp"

#include <cstdint>
#include <cstring>

#include "engine/snapshots/pickle_document.hpp"

namespace tenure {
namespace {

constexpr char32_t kReplacement = 0xfffd;

bool is_surrogate(char32_t point) { return point >= 0xd800 && point < 0xe000; }

void put_utf8(std::string& out, char32_t point) {
    if (is_surrogate(point) || point > 0x10ffff) point = kReplacement;
    const auto byte = [&out](char32_t bits) { out += static_cast<char>(bits); };
    if (point < 0x80) return byte(point);
    if (point < 0x800) {
        byte(0xc0 | point >> 6);
    } else if (point < 0x10000) {
        byte(0xe0 | point >> 12);
        byte(0x80 | (point >> 6 & 0x3f));
    } else {
        byte(0xf0 | point >> 18);
        byte(0x80 | (point >> 12 & 0x3f));
        byte(0x80 | (point >> 6 & 0x3f));
    }
    byte(0x80 | (point & 0x3f));
}

// Bytes of the character that starts the text; 0 when it is not UTF-8. Surrogates are let through.
std::size_t character(std::string_view text, char32_t& point) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xc2 ? 0
                               : first < 0xe0 ? 2
                               : first < 0xf0 ? 3
                               : first < 0xf5 ? 4
                                              : 0;
    if (length == 0 || length > text.size()) return 0;
    point = length == 1 ? first : first & (0x7fU >> length);
    for (std::size_t i = 1; i < length; ++i) {
        const auto next = static_cast<unsigned char>(text[i]);
        if ((next & 0xc0) != 0x80) return 0;
        point = point << 6 | (next & 0x3f);
    }
    const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
    return overlong || point > 0x10ffff ? 0 : length;
}

bool is_ascii(std::string_view bytes) {
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + at, 8);
        if ((word & 0x8080808080808080ULL) != 0) return false;
    }
    for (; at < bytes.size(); ++at) {
        if ((bytes[at] & 0x80) != 0) return false;
    }
    return true;
}

int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

// The number written by up to `most` digits at the start of the text, which it shortens.
char32_t take_digits(std::string_view& text, int base, std::size_t least, std::size_t most) {
    char32_t number = 0;
    std::size_t taken = 0;
    while (taken < most && taken < text.size() && digit(text[taken]) < base) {
        number = number * static_cast<char32_t>(base) + static_cast<char32_t>(digit(text[taken]));
        ++taken;
    }
    if (taken < least) throw Refusal("a string with a broken escape");
    text.remove_prefix(taken);
    return number;
}

void put_escape(std::string& out, std::string_view& rest) {
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (rest.empty()) throw Refusal("a string with a broken escape");
    if (digit(rest[0]) < 8) {
        out += static_cast<char>(take_digits(rest, 8, 1, 3) & 0xff);
        return;
    }
    const char name = rest[0];
    rest.remove_prefix(1);
    if (name == 'x') {
        out += static_cast<char>(take_digits(rest, 16, 2, 2));
    } else if (const auto at = kNames.find(name); at != std::string_view::npos) {
        out += kMeanings[at];
    } else {
        (out += '\\') += name;
    }
}

}  // namespace

bool is_utf8(std::string_view bytes) {
    if (is_ascii(bytes)) return true;
    for (char32_t point = 0; !bytes.empty();) {
        const std::size_t length = character(bytes, point);
        if (length == 0 || is_surrogate(point)) return false;
        bytes.remove_prefix(length);
    }
    return true;
}

std::string mend_utf8(std::string_view bytes) {
    std::string mended;
    for (char32_t point = 0; !bytes.empty();) {
        const std::size_t length = character(bytes, point);
        if (length == 0) throw Refusal("a string that is not UTF-8");
        put_utf8(mended, point);
        bytes.remove_prefix(length);
    }
    return mended;
}

std::string decode_unicode_line(std::string_view line) {
    std::string decoded;
    while (!line.empty()) {
        const char first = line[0];
        line.remove_prefix(1);
        if (first == '\\' && !line.empty() && (line[0] == 'u' || line[0] == 'U')) {
            const std::size_t digits = line[0] == 'u' ? 4 : 8;
            line.remove_prefix(1);
            put_utf8(decoded, take_digits(line, 16, digits, digits));
        } else {
            put_utf8(decoded, static_cast<unsigned char>(first));
        }
    }
    return decoded;
}

std::string decode_quoted_line(std::string_view line) {
    const char quote = line.size() < 2 ? '\0' : line.front();
    if ((quote != '"' && quote != '\'') || line.back() != quote) {
        throw Refusal("a string without its quotes");
    }
    line = line.substr(1, line.size() - 2);
    std::string decoded;
    while (!line.empty()) {
        const char first = line[0];
        line.remove_prefix(1);
        if (first == '\\') {
            put_escape(decoded, line);
        } else {
            decoded += first;
        }
    }
    return is_utf8(decoded) ? decoded : mend_utf8(decoded);
}

}  // namespace tenure
