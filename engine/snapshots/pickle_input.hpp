// The bytes of a pickle as its opcodes ask for them: numbers, runs and lines.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "engine/snapshots/byte_source.hpp"

namespace tenure {

// Keeps a window of the source, so that no file needs to be in memory whole. What `take` returns is
// valid until the next call. Throws Refusal when the source ends before the bytes asked for.
class PickleInput {
  public:
    explicit PickleInput(ByteSource& source) : source_(source), window_(kWindow) {}

    // Bytes taken so far.
    std::uint64_t offset() const { return before_ + next_; }
    // What of the source is at hand.
    std::string_view window() const {
        return {reinterpret_cast<const char*>(window_.data()) + next_, end_ - next_};
    }
    // Bytes in the window, made at least `wanted` unless the source ends.
    std::size_t peek(std::size_t wanted) {
        if (end_ - next_ < wanted) fill(wanted);
        return end_ - next_;
    }

    std::string_view take(std::uint64_t count) {
        if (end_ - next_ < count) fetch(count);
        const std::string_view taken = window().substr(0, static_cast<std::size_t>(count));
        next_ += taken.size();
        return taken;
    }

    template <typename Number>
    Number number() {
        Number number;  // little endian, as every machine this builds for
        std::memcpy(&number, take(sizeof(Number)).data(), sizeof(Number));
        return number;
    }

    // Up to the next line feed, which is taken too.
    std::string_view line();

  private:
    static constexpr std::size_t kWindow = std::size_t{1} << 18;       // bytes
    static constexpr std::size_t kLongestLine = std::size_t{1} << 20;  // bytes

    void fill(std::size_t wanted);
    void fetch(std::uint64_t count);

    ByteSource& source_;
    std::vector<unsigned char> window_;
    std::size_t next_ = 0, end_ = 0;  // what is left of the window
    std::uint64_t before_ = 0;        // bytes of the source that come before the window
};

}  // namespace tenure
