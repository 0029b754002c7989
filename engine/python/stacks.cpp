#include "engine/python/stacks.hpp"

#include <Python.h>
#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "engine/live/lock.hpp"
#include "engine/python/frame_layout.hpp"

namespace tenure::stacks {

namespace {

constexpr std::size_t most_frames = most_hashed;  // innermost ones of a deeper stack
constexpr std::size_t most_stacks = 1u << 20;     // distinct ones

// What CPython has but does not promise to extensions of its stable interface.
using GetBack = PyFrameObject* (*)(PyFrameObject*);
using GetOffset = int (*)(PyFrameObject*);

// Every distinct stack once: its frames lie in one array, a table of hashes finds it again.
class Table {
  public:
    // 0 if the stack is not known.
    StackId find(std::uint64_t hash, const RawFrame* frames, std::size_t count) const {
        if (slots_.empty()) return 0;
        for (std::size_t i = hash & mask(); slots_[i] != 0; i = (i + 1) & mask())
            if (equals(stacks_[slots_[i]], hash, frames, count)) return slots_[i];
        return 0;
    }
    StackId add(std::uint64_t hash, const RawFrame* frames, std::size_t count) {
        if (stacks_.size() >= most_stacks) return 0;
        if (2 * stacks_.size() >= slots_.size()) grow();
        const auto id = static_cast<StackId>(stacks_.size());
        stacks_.push_back({hash, frames_.size(), count});
        frames_.insert(frames_.end(), frames, frames + count);
        place(id);
        return id;
    }
    std::size_t size() const { return stacks_.size() - 1; }
    std::vector<RawFrame> frames(StackId id) const {
        if (id >= stacks_.size()) return {};
        const auto begin = frames_.begin() + static_cast<std::ptrdiff_t>(stacks_[id].first);
        return {begin, begin + static_cast<std::ptrdiff_t>(stacks_[id].count)};
    }

  private:
    struct Stack {
        std::uint64_t hash = 0;
        std::size_t first = 0;
        std::size_t count = 0;
    };

    std::size_t mask() const { return slots_.size() - 1; }
    bool equals(const Stack& stack, std::uint64_t hash, const RawFrame* frames,
                std::size_t count) const {
        if (stack.hash != hash || stack.count != count) return false;
        for (std::size_t i = 0; i < count; ++i) {
            const RawFrame& known = frames_[stack.first + i];
            if (known.code != frames[i].code || known.instruction != frames[i].instruction)
                return false;
        }
        return true;
    }
    void place(StackId id) {
        std::size_t i = stacks_[id].hash & mask();
        while (slots_[i] != 0) i = (i + 1) & mask();
        slots_[i] = id;
    }
    void grow() {
        slots_.assign(slots_.empty() ? 1024 : 2 * slots_.size(), 0);
        for (StackId id = 1; id < stacks_.size(); ++id) place(id);
    }

    std::vector<RawFrame> frames_;
    std::vector<Stack> stacks_ = std::vector<Stack>(1);  // 0 names none
    std::vector<StackId> slots_;
};

// Never destroyed: threads may still allocate while the process ends.
struct State {
    live::Lock lock;  // of `table`; the interpreter's lock is never taken under it
    Table table;
    FrameLayout layout;
    bool direct = false;  // frames are read without the interpreter's lock
    GetBack get_back = nullptr;
    GetOffset get_offset = nullptr;
    PyTypeObject* code_type = nullptr;
    std::unordered_set<std::uintptr_t> kept;  // code objects, under the interpreter's lock
};

State& state() {
    static auto* one = new State;
    return *one;
}

std::atomic<bool> running{false};

// Stacks that this thread met lately, by their hashes: asked for again, they take no lock and no
// comparison. Two of a million stacks share 64 bits with a probability of one in thirty million.
struct Recent {
    std::uint64_t hash = 0;
    StackId id = 0;
};
constexpr std::size_t most_recent = 256;
thread_local Recent recent[most_recent];

using Held = std::lock_guard<live::Lock>;

// --- by way of CPython's functions; all under its lock -------------------------------------------

std::vector<KnownFrame> known_frames() {
    const State& s = state();
    std::vector<KnownFrame> frames;
    if (!s.get_back || !s.get_offset) return frames;
    PyFrameObject* frame = PyEval_GetFrame();
    Py_XINCREF(reinterpret_cast<PyObject*>(frame));
    while (frame && frames.size() < most_frames) {
        PyCodeObject* code = PyFrame_GetCode(frame);
        frames.push_back({reinterpret_cast<std::uintptr_t>(code), s.get_offset(frame)});
        Py_DECREF(reinterpret_cast<PyObject*>(code));  // the frame holds it
        PyFrameObject* back = s.get_back(frame);
        Py_DECREF(reinterpret_cast<PyObject*>(frame));
        frame = back;
    }
    Py_XDECREF(reinterpret_cast<PyObject*>(frame));
    return frames;
}

// Offsets take the place of instructions: these stacks are never compared with ones read directly.
std::size_t frames_by_interface(RawFrame* frames) {
    std::size_t count = 0;
    for (const KnownFrame& known : known_frames())
        frames[count++] = {known.code, known.code + static_cast<std::uintptr_t>(known.offset)};
    return count;
}

bool is_code(std::uintptr_t object) {
    return object != 0 && state().code_type != nullptr &&
           Py_TYPE(reinterpret_cast<PyObject*>(object)) == state().code_type;
}

// Code objects of known stacks live for ever: their addresses are what stacks are compared by.
StackId add(std::uint64_t hash, const RawFrame* frames, std::size_t count) {
    State& s = state();
    for (std::size_t i = 0; i < count; ++i)
        if (is_code(frames[i].code) && s.kept.insert(frames[i].code).second)
            Py_INCREF(reinterpret_cast<PyObject*>(frames[i].code));
    const Held held(s.lock);
    const StackId known = s.table.find(hash, frames, count);
    return known != 0 ? known : s.table.add(hash, frames, count);
}

StackId capture_by_interface() {
    RawFrame frames[most_frames];
    const PyGILState_STATE before = PyGILState_Ensure();
    const std::size_t count = frames_by_interface(frames);
    const StackId id = count == 0 ? 0 : add(hash_of(frames, count), frames, count);
    PyGILState_Release(before);
    return id;
}

// A stack that this thread has not met lately.
StackId capture_anew(std::uintptr_t thread, std::uint64_t hash) {
    State& s = state();
    RawFrame frames[most_frames];
    const std::size_t count = s.layout.walk(thread, frames, most_frames);
    if (count == 0) return 0;
    {
        const Held held(s.lock);
        if (const StackId known = s.table.find(hash, frames, count)) return known;
    }
    const PyGILState_STATE before = PyGILState_Ensure();
    const StackId id = add(hash, frames, count);
    PyGILState_Release(before);
    return id;
}

}  // namespace

void start() {
    State& s = state();
    if (running.load()) return;
    s.get_back = reinterpret_cast<GetBack>(dlsym(RTLD_DEFAULT, "PyFrame_GetBack"));
    s.get_offset = reinterpret_cast<GetOffset>(dlsym(RTLD_DEFAULT, "PyFrame_GetLasti"));
    const auto thread = reinterpret_cast<std::uintptr_t>(PyGILState_GetThisThreadState());
    s.code_type = reinterpret_cast<PyTypeObject*>(dlsym(RTLD_DEFAULT, "PyCode_Type"));
    s.direct = find_layout(thread, known_frames(), s.layout);
    running.store(true);
}

StackId capture() noexcept {
    if (!running.load(std::memory_order_relaxed)) return 0;
    State& s = state();
    const auto thread = reinterpret_cast<std::uintptr_t>(PyGILState_GetThisThreadState());
    if (thread == 0) return 0;
    try {
        if (!s.direct) return capture_by_interface();
        const std::uint64_t hash = s.layout.hash(thread, most_frames);
        Recent& slot = recent[hash % most_recent];
        if (slot.hash != hash || slot.id == 0) slot = {hash, capture_anew(thread, hash)};
        return slot.id;
    } catch (...) {  // no memory for one more stack
        return 0;
    }
}

std::vector<Frame> frames(StackId stack) {
    State& s = state();
    std::vector<RawFrame> raw;
    {
        const Held held(s.lock);
        raw = s.table.frames(stack);
    }
    const std::uintptr_t head = s.direct ? s.layout.first_instruction : 0;
    std::vector<Frame> frames;
    for (const RawFrame& frame : raw)
        if (is_code(frame.code))
            frames.push_back({reinterpret_cast<void*>(frame.code),
                              static_cast<int>(frame.instruction - frame.code - head)});
    return frames;
}

std::size_t count() {
    const Held held(state().lock);
    return state().table.size();
}

bool reads_frames_directly() { return state().direct; }

void stop() { running.store(false); }

}  // namespace tenure::stacks
