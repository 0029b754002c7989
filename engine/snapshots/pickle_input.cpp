#include "engine/snapshots/pickle_input.hpp"

#include <algorithm>
#include <string>

#include "engine/snapshots/pickle_document.hpp"

namespace tenure {

// The window grows only as far as bytes have come: an announced length is no reason to allocate.
void PickleInput::fill(std::size_t wanted) {
    std::copy(window_.begin() + static_cast<std::ptrdiff_t>(next_),
              window_.begin() + static_cast<std::ptrdiff_t>(end_), window_.begin());
    before_ += next_;
    end_ -= next_;
    next_ = 0;
    while (end_ < wanted) {
        if (end_ == window_.size()) window_.resize(std::min(2 * end_, wanted + kWindow));
        const std::size_t count =
            source_.read(std::as_writable_bytes(std::span(window_).subspan(end_)));
        if (count == 0) return;
        end_ += count;
    }
}

void PickleInput::fetch(std::uint64_t count) {
    fill(static_cast<std::size_t>(count));
    if (end_ < count) {
        throw Refusal("it needs " + std::to_string(count) + " bytes more and " +
                      std::to_string(end_) + " are left; copy the file again");
    }
}

std::string_view PickleInput::line() {
    for (std::size_t seen = 0; seen < kLongestLine;) {
        const std::size_t known = peek(seen + 1);
        if (known == seen) throw Refusal("it ends within a line; copy the file again");
        const unsigned char* start = window_.data() + next_;
        const void* end = std::memchr(start + seen, '\n', known - seen);
        if (end != nullptr) {
            const std::string_view taken = take(
                static_cast<std::uint64_t>(static_cast<const unsigned char*>(end) - start) + 1);
            return taken.substr(0, taken.size() - 1);
        }
        seen = known;
    }
    throw Refusal("a line of more than a million bytes");
}

}  // namespace tenure
