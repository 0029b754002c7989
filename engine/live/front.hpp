// The engine as the allocator of a running process: threads, devices, addresses for names.
//
// Lock order, outermost first: the interpreter's lock, then `devices_lock_`, then one device's
// lock, then those of its streams. Nothing here takes the interpreter's lock under one of the
// others: what needs Python (a stack, the collection of dead cycles, the explanation of a failure)
// is asked of the Host before a device's lock is taken or after it is given back.
//
// A stream's lock alone is enough to serve what mapped memory of that stream serves (StreamFront).
// For everything else the device is Held: all of its locks, and all counts brought together.
//
// Memory handed out may be freed by any thread, during exit too; a Front is never destroyed.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/devices/cuda_device.hpp"
#include "engine/live/block_map.hpp"
#include "engine/live/history.hpp"
#include "engine/live/lock.hpp"
#include "engine/live/shortage.hpp"
#include "engine/live/stream_front.hpp"

namespace tenure::live {

// What the process around the engine offers. Each may be null, and is called with no lock held.
struct Host {
    StackId (*stack)() = nullptr;  // of the calling thread
    bool (*collect)() = nullptr;   // frees what only dead objects hold; false: nothing done
    std::string (*explain)(const Shortage&) = nullptr;  // more lines for the message
};

struct Options {
    Settings settings;             // the limit is of each device; unlimited for none
    double memory_fraction = 1.0;  // of each device, as in PyTorch; 1 for none
};

// Says whether a request on the stream belongs to the pool that is being allocated to.
using StreamFilter = std::function<bool(CUstream_st*)>;

// One device's share of the state; everything but `number` takes a Held.
struct DeviceFront {
    static constexpr std::size_t most_streams = 128;  // with a front of their own

    struct Route {
        PoolId pool;
        StreamFilter filter;
        bool captures;  // a graph is being captured, as opposed to a MemPool in use
    };

    DeviceFront(int number, const Settings& settings);

    PoolId pool_for(Stream stream) const;

    // The stream's own front, if it has one; needs no lock.
    StreamFront* stream(Stream stream) const {
        for (std::size_t i = place_of(stream);; i = (i + 1) % stream_table.size()) {
            StreamFront* front = stream_table[i].load(std::memory_order_acquire);
            if (!front || front->stream == stream) return front;
        }
    }
    // Makes one, unless there are enough. A stream's first request comes here.
    StreamFront* make_stream(Stream stream);
    // It is in use, and will be served by itself again.
    void wake(StreamFront& stream);

    Block* find_live(Address address) const;
    Block* take_live(Address address);
    void add_live(Block* block, Stream stream);
    std::size_t live_blocks() const;

    // The front of the stream in whose arenas the address lies, if it has one; needs no lock.
    StreamFront* stream_holding(Address address) const {
        const std::size_t count = stream_count.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < count; ++i)
            if (streams[i]->holds(address)) return streams[i].get();
        return nullptr;
    }

    const int number;
    Lock lock;
    CudaDevice device;
    Allocator allocator;
    BlockMap live;  // blocks of streams without a front
    std::array<std::unique_ptr<StreamFront>, most_streams> streams;  // in the order of their making
    std::atomic<std::size_t> stream_count{0};
    bool open = true;  // whether streams may be served by themselves; as of the last Held
    std::vector<StreamFront*> active;  // those that are; a Held has their locks
    std::vector<Lane*> lanes;          // theirs, while they are dealt to
    std::uint64_t segments_known = 0;  // Allocator::segment_changes when arenas were learnt last
    std::array<std::atomic<StreamFront*>, 2 * most_streams> stream_table{};  // never full
    std::vector<Route> routes;                                               // first match wins
    std::set<PoolId> memory_pools;  // made by create_memory_pool
    History history;
    EventRing ring;
    std::vector<SegmentEvent> segment_log;
    std::vector<CompletedFree> completed;
    std::int64_t rescued = 0;    // requests that failed first and were served after all
    Bytes capacity = unlimited;  // the limit that install() named

  private:
    friend class Held;
    void gather_events();
    void park_idle();
    void learn_arenas();

    // Handles are addresses, or small numbers.
    std::size_t place_of(Stream stream) const {
        return static_cast<std::size_t>(stream * 0x9e37'79b9'7f4a'7c15u >> 56) %
               stream_table.size();
    }
};

// A device at rest: nothing is served while this lives, and every count is in the statistics.
class Held {
  public:
    explicit Held(DeviceFront& front);
    ~Held();
    Held(const Held&) = delete;

  private:
    DeviceFront& front_;
};

class Front {
  public:
    static constexpr int most_devices = 64;

    explicit Front(const Options& options, const Host& host);

    // --- what allocators of other libraries call; any thread, no lock held ---

    // Null for size 0. Throws OutOfMemory with the whole message, or std::runtime_error when the
    // device is in trouble or the process was forked.
    void* allocate(Bytes size, int device, Stream stream);
    // The device is a hint: where the block is looked for first.
    void free(void* pointer, int device) noexcept;
    void record_stream(void* pointer, Stream stream) noexcept;
    void empty_cache();
    void set_memory_fraction(double fraction, int device);
    void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter);
    void end_allocate_to_pool(int device, PoolId pool);
    void release_pool(int device, PoolId pool);
    // What is live in a pool, and making it live again in place of what is live now.
    std::vector<Allocator::Checkpointed> checkpoint(int device, PoolId pool);
    struct Restored {
        std::vector<Address> freed;
        std::vector<Address> made;
    };
    Restored restore_checkpoint(int device, PoolId pool,
                                const std::vector<Allocator::Checkpointed>& blocks);
    // The largest request that would be served now, as far as one can tell without trying.
    Bytes largest_free(int device);
    // Lets device `reader` reach what `owner` maps; false if it cannot. Devices that the engine
    // serves reach each other from the start where they can.
    bool grant_access(int owner, int reader);
    // The first address of the driver's allocation around the pointer, and its size.
    void* base_of(void* pointer, std::size_t* size);

    // --- what the package asks; each holds the device's lock for as long as it takes ---

    // Null until the device's first allocation.
    DeviceFront* find(int device) const;
    DeviceFront& device(int device);  // made if need be
    int device_count() const { return most_devices; }
    // The newest of `max_events` stay, unless they are cleared; those of devices to come as well.
    void set_history(const History& history, bool clear);
    void set_limit(int device, Bytes limit);
    // A pool that work is sent to without a capture (torch.cuda.MemPool).
    void create_memory_pool(int device, PoolId pool);
    std::uint32_t now_ms() const;

    // Calls `act(front, block)` with the device held on which the address is that of a live block;
    // false if there is none.
    template <typename Act>
    bool with_live(Address address, Act&& act) const {
        for (int device = 0; device < most_devices; ++device) {
            DeviceFront* front = find(device);
            if (!front) continue;
            const Held held(*front);
            if (Block* block = front->find_live(address)) {
                act(*front, block);
                return true;
            }
        }
        return false;
    }

    // Ends all calls into Python: the interpreter is going away.
    void forget_host();

  private:
    Block* try_allocate(DeviceFront& front, Bytes size, Stream stream, BlockNote note);
    void* retry_or_fail(DeviceFront& front, Bytes size, Stream stream, BlockNote note);
    [[noreturn]] void fail(DeviceFront& front, Bytes size, Stream stream, StackId stack);
    DeviceFront& make(int device);
    bool free_from(DeviceFront& front, Address address, StackId stack);
    StackId stack(bool wanted) const;

    const Options options_;
    std::atomic<StackId (*)()> stack_;
    std::atomic<bool (*)()> collect_;
    std::atomic<std::string (*)(const Shortage&)> explain_;
    std::atomic<bool> alloc_stacks_{false};  // copies of `history_` for the common path
    std::atomic<bool> free_stacks_{false};
    const std::int64_t made_at_ms_;
    mutable Lock devices_lock_;
    History history_;  // under devices_lock_
    std::array<std::atomic<DeviceFront*>, most_devices> devices_{};
};

// The front of this process; null until install().
Front* installed();
// Throws UsageError where there is one already.
Front& install(const Options& options, const Host& host);
// Whether this process is a fork of one that used its devices: CUDA does not survive that.
bool is_forked();

}  // namespace tenure::live
