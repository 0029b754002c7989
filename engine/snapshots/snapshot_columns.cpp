#include "engine/snapshots/snapshot_columns.hpp"

#include "engine/snapshots/pickle_machine.hpp"
#include "engine/snapshots/snapshot_reader.hpp"

namespace tenure {

const std::array<const char*, kKeys> kKeyNames{
    "device_traces",         "allocator_settings",    "external_annotations",
    "host_segments",         "host_traces",           "event.time_us",
    "event.pool_id",         "event.compile_context", "event.frames",
    "event.forward_frames",  "event.stream",          "segment.pool_id",
    "segment.is_expandable", "segment.frames",        "block.address",
    "block.requested_size",  "block.history",         "block.frames"};

namespace {

enum class Field {
    segments,
    device_traces,
    allocator_settings,
    external_annotations,
    host_segments,
    host_traces,
    count
};
constexpr std::size_t kFields = static_cast<std::size_t>(Field::count);
constexpr std::array<const char*, kFields> kNames{"segments",           "device_traces",
                                                  "allocator_settings", "external_annotations",
                                                  "host_segments",      "host_traces"};

void read_top(SnapshotReader& reader, Value root) {
    RecordKind<kFields> kind(reader.document, kNames);
    const Place top{};
    const auto record = kind.open(reader.document, root, top);
    if (!record.has(Field::segments)) {
        refuse(top, "a pickle of something else: no 'segments' in it");
    }
    const auto part = [&](Field field, Key key, auto read) {
        if (!record.has(field)) return;
        reader.saw(key);
        read(reader, record.get(field), Place{nullptr, record.name(field), 0});
    };
    read_segments(reader, record.get(Field::segments), Place{nullptr, "segments", 0});
    part(Field::device_traces, Key::device_traces, read_traces);
    part(Field::allocator_settings, Key::allocator_settings, read_settings);
    part(Field::external_annotations, Key::external_annotations, read_annotations);
    const auto ignore = [](SnapshotReader&, Value, const Place&) {};
    part(Field::host_segments, Key::host_segments, ignore);
    part(Field::host_traces, Key::host_traces, ignore);
}

}  // namespace

void SnapshotReader::take_rows(std::size_t count, const Place& place) {
    rows_left -= static_cast<std::int64_t>(count);
    if (rows_left < 0) refuse(place, "the same objects over and over, more than the file's bytes");
}

SnapshotColumns read_snapshot(ByteSource& source) {
    Document document = read_pickle(source);
    SnapshotColumns columns;
    columns.settings.type = Setting::Type::dict;
    const Value root = document.root;
    SnapshotReader reader{document, columns, StackTables(document, columns),
                          static_cast<std::int64_t>(document.pickle_bytes)};
    if (root.is(Kind::list)) {
        const std::span<const Value> items = document.items_of(root);
        if (items.empty()) refuse(Place{}, "an empty list; record before you dump");
        read_segments(reader, root, Place{nullptr, "segments", 0});
    } else {
        read_top(reader, root);
    }
    return columns;
}

}  // namespace tenure
