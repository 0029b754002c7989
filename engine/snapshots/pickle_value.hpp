// One value out of a pickle, in eight bytes: a small integer itself, anything else by index.
#pragma once

#include <cstdint>

namespace tenure {

enum class Kind : std::uint8_t {
    integer = 0,   // from -2^60 to 2^60 - 1, held in the value itself
    text = 1,      // index into the strings
    list = 2,      // index into the lists
    dict = 3,      // index into the dicts
    tuple = 4,     // index into the spans
    constant = 5,  // None, False, True
    real = 6,      // index into the doubles
    rare = 7,      // see Rare
};

// Kinds that a snapshot hardly has; the index lies above their four bits.
enum class Rare : std::uint8_t {
    wide_integer = 0,  // index into the integers of 61 to 64 bits
    huge_integer = 1,  // more than 64 bits; its digits are not kept
    bytes = 2,         // not kept
    set = 3,           // index into the lists
};

struct Value {
    std::uint64_t bits = 0;

    static constexpr std::int64_t kLargest = (std::int64_t{1} << 60) - 1;

    static Value of(Kind kind, std::uint64_t index) {
        return Value{(index << 3) | static_cast<std::uint64_t>(kind)};
    }
    static Value of(Rare rare, std::uint64_t index) {
        return of(Kind::rare, (index << 4) | static_cast<std::uint64_t>(rare));
    }
    static bool fits(std::int64_t number) { return number >= -kLargest - 1 && number <= kLargest; }
    static Value small(std::int64_t number) {
        return of(Kind::integer, static_cast<std::uint64_t>(number));
    }
    static Value none() { return of(Kind::constant, 0); }
    static Value boolean(bool on) { return of(Kind::constant, on ? 2 : 1); }
    static Value absent() { return of(Kind::constant, 3); }  // no value at all

    Kind kind() const { return static_cast<Kind>(bits & 7); }
    std::uint64_t index() const { return bits >> 3; }
    std::int64_t number() const { return static_cast<std::int64_t>(bits) >> 3; }
    Rare rare() const { return static_cast<Rare>((bits >> 3) & 15); }
    std::uint64_t rare_index() const { return bits >> 7; }

    bool is(Kind wanted) const { return kind() == wanted; }
    bool is(Rare wanted) const { return is(Kind::rare) && rare() == wanted; }
    friend bool operator==(Value, Value) = default;
};

static_assert(sizeof(Value) == 8);

}  // namespace tenure
