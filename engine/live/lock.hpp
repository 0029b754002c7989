// A lock for short sections: spins for a while, then sleeps by turns. Unfair on purpose: a thread
// that takes it again while the state is in its cache is the fastest way through, so those that
// wait look ever more rarely. Opening it is one plain store, since nobody has to be woken.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>

namespace tenure::live {

class Lock {
  public:
    void lock() {
        if (!try_lock()) lock_slowly();
    }
    bool try_lock() { return !taken_.exchange(true, std::memory_order_acquire); }
    void unlock() { taken_.store(false, std::memory_order_release); }

  private:
    // A section takes about 100 ns, a pause some 10 to 50; a driver call in a section takes a
    // hundred times as long, and a wait for the device more than that.
    static constexpr int longest_pause = 256;
    static constexpr int patience = 8192;  // pauses before the first sleep
    static constexpr long sleep_ns = 20'000;

    void lock_slowly() {
        int spun = 0;
        for (int pause = 1; spun < patience; pause = std::min(2 * pause, longest_pause)) {
            for (int i = 0; i < pause; ++i) relax();
            spun += pause;
            if (!taken_.load(std::memory_order_relaxed) && try_lock()) return;
        }
        do {
            const timespec nap{0, sleep_ns};
            nanosleep(&nap, nullptr);
        } while (taken_.load(std::memory_order_relaxed) || !try_lock());
    }
    static void relax() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    std::atomic<bool> taken_{false};
};

}  // namespace tenure::live
