// A PyTorch memory snapshot as columns: what replay and reports work on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/snapshots/byte_source.hpp"

namespace tenure {

// Indices are into the tables of the same SnapshotColumns; -1 says that nothing was recorded.
using Index = std::int32_t;

struct FrameColumns {
    std::vector<Index> file, line, name;  // file and name: strings
};

// Stack s is frame[offset[s]] to frame[offset[s + 1]], innermost first, as recorded.
struct StackColumns {
    std::vector<Index> offset{0};
    std::vector<Index> frame;
};

// The trace of one device, oldest event first.
struct EventColumns {
    std::vector<std::uint8_t> action;    // Action
    std::vector<std::uint64_t> address;  // oom: the device's free bytes
    std::vector<std::int64_t> size;      // bytes
    std::vector<std::uint64_t> stream;
    std::vector<std::int64_t> time_us;  // Unix time; 0 where not recorded
    std::vector<Index> stack;
    std::vector<Index> forward;  // stack of the forward op that backward works for; empty: no key
    std::vector<Index> pool;
    std::vector<Index> metadata;         // string
    std::vector<Index> compile_context;  // string
};

struct SegmentColumns {
    std::vector<std::int32_t> device;
    std::vector<std::uint64_t> address;
    std::vector<std::int64_t> size;  // bytes
    std::vector<std::uint64_t> stream;
    std::vector<std::uint8_t> large;  // 1: of the large pool
    std::vector<Index> pool;
    std::vector<std::uint8_t> expandable;
    std::vector<Index> stack;
    std::vector<std::int64_t> block_offset{0};  // blocks of segment s: as for stacks
};

enum class BlockState : std::uint8_t { inactive = 0, active_allocated = 1, active_pending = 2 };

struct BlockColumns {
    std::vector<std::uint64_t> address;
    std::vector<std::int64_t> size;       // bytes
    std::vector<std::int64_t> requested;  // bytes; stale in an inactive block
    std::vector<std::uint8_t> state;      // BlockState
    std::vector<Index> stack;
};

struct AnnotationColumns {
    std::vector<Index> name;          // string
    std::vector<std::uint8_t> start;  // 1: START, 0: END
    std::vector<std::int32_t> device;
    std::vector<std::int64_t> time_us;
};

// A setting, or a list or dict of them.
struct Setting {
    enum class Type : std::uint8_t { none, boolean, integer, real, text, list, dict };
    Type type = Type::none;
    std::int64_t integer = 0;  // booleans: 0 or 1
    double real = 0;
    std::string text;
    std::vector<Setting> items;  // dict: key, value, key, value, ...
};

// Facts about the format: which optional keys occurred anywhere in the file.
enum class Key : std::uint8_t {
    device_traces,
    allocator_settings,
    external_annotations,
    host_segments,
    host_traces,
    event_time_us,
    event_pool_id,
    event_compile_context,
    event_frames,
    event_forward_frames,
    event_stream,
    segment_pool_id,
    segment_is_expandable,
    segment_frames,
    block_address,
    block_requested_size,
    block_history,
    block_frames,
    count,
};
inline constexpr std::size_t kKeys = static_cast<std::size_t>(Key::count);
extern const std::array<const char*, kKeys> kKeyNames;

struct SnapshotColumns {
    std::vector<std::string> strings;  // UTF-8
    FrameColumns frames;
    StackColumns stacks;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> pools{{0, 0}};
    std::vector<EventColumns> devices;
    SegmentColumns segments;  // in the order of the file
    BlockColumns blocks;
    Setting settings;  // a dict; empty where the file has none
    AnnotationColumns annotations;
    std::array<bool, kKeys> keys{};
    std::map<std::string, std::int64_t> unknown_actions;
};

// Reads the pickle of a snapshot, of any torch version from 2.0, or of torch.cuda.memory_snapshot()
// (segments only). Every type and range is checked, blocks must tile their segment and segments of
// a device must not overlap. Throws BadInput: where, what was found, what to do.
SnapshotColumns read_snapshot(ByteSource& source);

}  // namespace tenure
