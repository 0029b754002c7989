// Strings, frames, stacks and pools: each kept once, named by its index.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/snapshots/probe_table.hpp"
#include "engine/snapshots/record.hpp"
#include "engine/snapshots/snapshot_columns.hpp"

namespace tenure {

class StackTables {
  public:
    StackTables(Document& document, SnapshotColumns& columns);

    // The index of a string of the document in the columns.
    Index string(Value text);
    // The index of a list of frame dicts; -1 when it is empty.
    Index stack(Value frames, const Place& place);
    // The index of an (a, b) pair.
    Index pool(Value pair, const Place& place);

  private:
    Index frame(Value dict, const Place& place);
    Index read_line(Value value, const Place& place);
    Index add_stack(std::span<const Value> frames, const Place& place);

    const Document& document_;
    SnapshotColumns& columns_;
    RecordKind<3> frame_kind_;
    std::vector<Index> string_of_;  // by the document's string
    std::vector<Index> frame_of_;   // by the document's dict
    std::vector<Index> stack_of_;   // by the document's span: lists of the same objects
    std::vector<Index> pool_of_;    // by the document's span
    std::unordered_map<std::uint64_t, Index> stack_of_list_;  // of lists without a span
    std::vector<Index> building_;
    ProbeTable frame_table_, stack_table_, pool_table_;
};

}  // namespace tenure
