#include "engine/python/frame_layout.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <optional>

namespace tenure::stacks {

namespace {

constexpr std::size_t word = sizeof(std::uintptr_t);
constexpr std::size_t thread_room = 512;  // bytes of a thread's state looked at
constexpr std::size_t frame_room = 128;
constexpr std::size_t most_between = 2;     // frames that C made, in a row
constexpr std::size_t largest_head = 1024;  // of a code object, before its instructions
constexpr std::uintptr_t tag_bits = 7;      // newer versions mark references in the low bits

// Memory that may not be there: the kernel reads it for us.
template <std::size_t size>
std::optional<std::array<std::uintptr_t, size / word>> peek(std::uintptr_t address) {
    std::array<std::uintptr_t, size / word> words{};
    if (address == 0 || address % word != 0) return std::nullopt;
    const iovec to{words.data(), size};
    const iovec from{reinterpret_cast<void*>(address), size};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(size))
        return std::nullopt;
    return words;
}

std::uintptr_t read(std::uintptr_t address) {
    return *reinterpret_cast<const std::uintptr_t*>(address);
}

// The frame before, frames that C made skipped: the one whose code this is. 0 if there is none.
std::uintptr_t caller(std::uintptr_t frame, std::size_t previous, std::size_t code,
                      std::uintptr_t wanted) {
    for (std::size_t i = 0; i <= most_between; ++i) {
        const auto words = peek<frame_room>(frame);
        if (!words) return 0;
        frame = (*words)[previous / word];
        const auto there = peek<frame_room>(frame);
        if (!there) return 0;
        if (((*there)[code / word] & ~tag_bits) == wanted) return frame;
    }
    return 0;
}

// The chain of frames that matches what is known, from a first frame on; empty if none does.
std::vector<std::uintptr_t> chain(std::uintptr_t first, std::size_t previous, std::size_t code,
                                  const std::vector<KnownFrame>& known) {
    std::vector<std::uintptr_t> frames{first};
    for (std::size_t i = 1; i < known.size(); ++i) {
        const std::uintptr_t next = caller(frames.back(), previous, code, known[i].code);
        if (next == 0) return {};
        frames.push_back(next);
    }
    return frames;
}

// The word of every frame that lies one fixed distance behind its code and offset.
bool find_instruction(const std::vector<std::uintptr_t>& frames,
                      const std::vector<KnownFrame>& known, FrameLayout& layout) {
    for (std::size_t at = 0; at < frame_room; at += word) {
        const std::uintptr_t head =
            read(frames[0] + at) - known[0].code - static_cast<std::uintptr_t>(known[0].offset);
        if (head == 0 || head > largest_head) continue;
        bool fits = true;
        for (std::size_t i = 1; i < frames.size() && fits; ++i)
            fits = read(frames[i] + at) ==
                   known[i].code + head + static_cast<std::uintptr_t>(known[i].offset);
        if (!fits) continue;
        layout.instruction = at;
        layout.first_instruction = head;
        return true;
    }
    return false;
}

bool find_in_frame(std::uintptr_t first, const std::vector<KnownFrame>& known,
                   FrameLayout& layout) {
    const auto words = peek<frame_room>(first);
    if (!words) return false;
    for (std::size_t code = 0; code < frame_room; code += word) {
        if (((*words)[code / word] & ~tag_bits) != known[0].code) continue;
        for (std::size_t previous = 0; previous < frame_room; previous += word) {
            const auto frames = chain(first, previous, code, known);
            if (frames.empty()) continue;
            layout.code = code;
            layout.previous = previous;
            if (find_instruction(frames, known, layout)) return true;
        }
    }
    return false;
}

// The same scattering of bits twice: for the weights, and of a sum before its low bits are used.
constexpr std::uint64_t mixed(std::uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xbf58'476d'1ce4'e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d0'49bb'1331'11ebu;
    return bits ^ bits >> 31;
}

constexpr auto weights = [] {
    std::array<std::uint64_t, most_hashed> odd{};
    for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = mixed(i + 1) | 1;
    return odd;
}();

}  // namespace

bool find_layout(std::uintptr_t thread, const std::vector<KnownFrame>& known, FrameLayout& layout) {
    const auto state = peek<thread_room>(thread);
    if (!state || known.size() < 2) return false;
    for (std::size_t at = 0; at < thread_room; at += word) {
        layout.thread_frame = at;
        layout.indirect = false;
        if (find_in_frame((*state)[at / word], known, layout)) return true;
        const auto between = peek<2 * word>((*state)[at / word]);
        for (std::size_t i = 0; between && i < 2; ++i) {
            layout.indirect = true;
            layout.indirect_frame = i * word;
            if (find_in_frame((*between)[i], known, layout)) return true;
        }
    }
    return false;
}

std::uintptr_t FrameLayout::innermost(std::uintptr_t thread) const {
    const std::uintptr_t frame = read(thread + thread_frame);
    return indirect && frame != 0 ? read(frame + indirect_frame) : frame;
}

std::size_t FrameLayout::walk(std::uintptr_t thread, RawFrame* frames, std::size_t most) const {
    std::uintptr_t frame = innermost(thread);
    std::size_t count = 0;
    for (; frame != 0 && count < most; frame = read(frame + previous))
        frames[count++] = {read(frame + code) & ~tag_bits, read(frame + instruction)};
    return count;
}

std::uint64_t FrameLayout::hash(std::uintptr_t thread, std::size_t most) const {
    std::uint64_t sum = 0;
    std::size_t depth = 0;
    for (std::uintptr_t frame = innermost(thread); frame != 0 && depth < most;
         frame = read(frame + previous))
        sum += read(frame + instruction) * weights[depth++];
    return mixed(sum);
}

std::uint64_t hash_of(const RawFrame* frames, std::size_t count) {
    std::uint64_t sum = 0;
    for (std::size_t depth = 0; depth < count; ++depth)
        sum += frames[depth].instruction * weights[depth];
    return mixed(sum);
}

}  // namespace tenure::stacks
