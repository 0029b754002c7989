// Where this interpreter keeps its frames, found out by looking.
//
// CPython's functions for walking frames need its lock and make an object of every frame: too dear
// for each allocation. The frames themselves are plain structures that only their own thread
// changes, so that thread may read them without the lock. Their layout differs by version and is
// no part of the interface; it is found once, by comparing memory with what those functions say,
// and used only if it explains several nested calls exactly.
#pragma once

#include <cstdint>
#include <vector>

namespace tenure::stacks {

struct RawFrame {
    std::uintptr_t code;         // of a code object; or something else, in frames that C made
    std::uintptr_t instruction;  // the one being run
};

struct FrameLayout {
    // Bytes into each structure. The thread's state may lead to the frame by way of another one.
    std::size_t thread_frame = 0;
    bool indirect = false;
    std::size_t indirect_frame = 0;
    std::size_t code = 0;
    std::size_t previous = 0;
    std::size_t instruction = 0;
    std::size_t first_instruction = 0;  // into a code object

    // Frames of the thread whose state this is, innermost first; at most `most`. Returns how many.
    std::size_t walk(std::uintptr_t thread, RawFrame* frames, std::size_t most) const;
    // The hash of these frames' instructions, without a copy of them. pre: most <= most_hashed.
    std::uint64_t hash(std::uintptr_t thread, std::size_t most) const;

  private:
    std::uintptr_t innermost(std::uintptr_t thread) const;
};

// A stack is told by its instructions alone: they lie inside their code objects. Each is weighed by
// its depth, so that the products do not wait for one another.
constexpr std::size_t most_hashed = 128;
std::uint64_t hash_of(const RawFrame* frames, std::size_t count);

// One frame as CPython's own functions describe it.
struct KnownFrame {
    std::uintptr_t code;
    int offset;  // bytes
};

// The layout under which `thread` has exactly these frames, frames that C made aside. False if
// there is none, or more than one reading of them.
bool find_layout(std::uintptr_t thread, const std::vector<KnownFrame>& known, FrameLayout& layout);

}  // namespace tenure::stacks
