// Any bytes as a snapshot: read or refused, nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engine/errors.hpp"
#include "engine/snapshots/snapshot_columns.hpp"

namespace {

// Every index must point into its table: replay and reports rely on it.
void check_indices(const tenure::SnapshotColumns& columns) {
    const auto inside = [](const auto& indices, std::size_t size, tenure::Index least) {
        for (const tenure::Index index : indices) {
            if (index < least || index >= static_cast<std::int64_t>(size)) std::abort();
        }
    };
    const std::size_t strings = columns.strings.size();
    const std::size_t stacks = columns.stacks.offset.size() - 1;
    inside(columns.frames.file, strings, 0);
    inside(columns.frames.name, strings, 0);
    inside(columns.stacks.frame, columns.frames.line.size(), 0);
    for (const tenure::EventColumns& events : columns.devices) {
        inside(events.stack, stacks, -1);
        inside(events.pool, columns.pools.size(), -1);
        inside(events.metadata, strings, -1);
        inside(events.compile_context, strings, -1);
    }
    inside(columns.segments.stack, stacks, -1);
    inside(columns.segments.pool, columns.pools.size(), 0);
    inside(columns.blocks.stack, stacks, -1);
    inside(columns.annotations.name, strings, 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // Small pieces, so that opcodes lie across their borders.
    tenure::MemorySource source(std::as_bytes(std::span(data, size)), 7);
    try {
        check_indices(tenure::read_snapshot(source));
    } catch (const tenure::BadInput&) {  // the one way to refuse
    }
    return 0;
}
