// Where the bytes of a pickle come from, a piece at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace tenure {

class ByteSource {
  public:
    virtual ~ByteSource() = default;
    // Fills the front of `into` and returns how many bytes that is: at least one, unless the end
    // is reached.
    virtual std::size_t read(std::span<std::byte> into) = 0;
};

// Bytes that are in memory, handed out `piece` at a time.
class MemorySource final : public ByteSource {
  public:
    explicit MemorySource(std::span<const std::byte> bytes,
                          std::size_t piece = std::size_t{1} << 20)
        : left_(bytes), piece_(piece) {}

    std::size_t read(std::span<std::byte> into) override {
        const std::size_t count = std::min({into.size(), left_.size(), piece_});
        std::copy_n(left_.begin(), count, into.begin());
        left_ = left_.subspan(count);
        return count;
    }

  private:
    std::span<const std::byte> left_;
    std::size_t piece_;
};

}  // namespace tenure
