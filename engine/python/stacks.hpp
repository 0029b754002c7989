// Python stacks of the calling thread, each distinct one kept once.
#pragma once

#include <cstdint>
#include <vector>

namespace tenure::stacks {

using StackId = std::uint32_t;  // 0 is none

// Until this is called there are no stacks. pre: the interpreter's lock is held, and the caller is
// a few Python functions deep: their frames show where this interpreter keeps frames.
void start();

// The stack of the calling thread, or 0: a thread that never ran Python, or more distinct stacks
// than are kept. Takes the interpreter's lock only for a stack not seen before.
StackId capture() noexcept;

// Frames of a stack, innermost first. pre: the interpreter's lock is held.
struct Frame {
    void* code;  // a code object, which is never released
    int offset;  // of the instruction in it, in bytes
};
std::vector<Frame> frames(StackId stack);

// How many distinct stacks are known, and whether they are read without the interpreter's lock.
std::size_t count();
bool reads_frames_directly();

// No more stacks: the interpreter is going away.
void stop();

}  // namespace tenure::stacks
