// From a pickle's dicts to columns, one part of the snapshot after the other.
#pragma once

#include <cstdint>

#include "engine/snapshots/record.hpp"
#include "engine/snapshots/snapshot_columns.hpp"
#include "engine/snapshots/stack_tables.hpp"

namespace tenure {

// What the parts share while one snapshot is read.
struct SnapshotReader {
    Document& document;
    SnapshotColumns& columns;
    StackTables tables;
    // Rows that the file can still pay for. A pickle can refer to one list a million times; a
    // snapshot never does, so there cannot be more rows than bytes.
    std::int64_t rows_left;

    void saw(Key key) { columns.keys[static_cast<std::size_t>(key)] = true; }
    void take_rows(std::size_t count, const Place& place);
};

void read_traces(SnapshotReader& reader, Value traces, const Place& place);
void read_segments(SnapshotReader& reader, Value segments, const Place& place);
void read_annotations(SnapshotReader& reader, Value annotations, const Place& place);
void read_settings(SnapshotReader& reader, Value settings, const Place& place);

}  // namespace tenure
