// A lock for short sections: spins a little, then sleeps. Unfair on purpose: a thread that takes it
// again while the state is in its cache is the fastest way through.
#pragma once

#include <atomic>
#include <cstdint>

namespace tenure::live {

class Lock {
  public:
    void lock() {
        std::uint32_t expected = open;
        if (!state_.compare_exchange_strong(expected, taken, std::memory_order_acquire))
            lock_slowly();
    }
    bool try_lock() {
        std::uint32_t expected = open;
        return state_.compare_exchange_strong(expected, taken, std::memory_order_acquire);
    }
    void unlock() {
        if (state_.exchange(open, std::memory_order_release) == contended) state_.notify_one();
    }

  private:
    static constexpr std::uint32_t open = 0;
    static constexpr std::uint32_t taken = 1;
    static constexpr std::uint32_t contended = 2;  // taken, and somebody sleeps
    static constexpr int longest_pause = 64;

    void lock_slowly() {
        // A section takes about 100 ns; a driver call in it takes a thousand times that.
        for (int pause = 1; pause <= longest_pause; pause *= 2) {
            for (int i = 0; i < pause; ++i) relax();
            if (state_.load(std::memory_order_relaxed) == open && try_lock()) return;
        }
        while (state_.exchange(contended, std::memory_order_acquire) != open)
            state_.wait(contended, std::memory_order_relaxed);
    }
    static void relax() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    std::atomic<std::uint32_t> state_{open};
};

}  // namespace tenure::live
