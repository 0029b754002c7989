#include <algorithm>
#include <limits>

#include "engine/snapshots/snapshot_reader.hpp"
#include "engine/trace.hpp"

namespace tenure {
namespace {

enum class Field {
    action,
    addr,
    device_free,
    size,
    stream,
    time_us,
    frames,
    forward_frames,
    pool_id,
    user_metadata,
    compile_context,
    count
};
constexpr std::size_t kFields = static_cast<std::size_t>(Field::count);
constexpr std::array<const char*, kFields> kNames{
    "action", "addr",           "device_free", "size",          "stream",         "time_us",
    "frames", "forward_frames", "pool_id",     "user_metadata", "compile_context"};

// In the order of Action; "other" is no name of PyTorch's.
constexpr std::array<const char*, 10> kActions{
    "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom",           "annotate"};

class TraceReader {
  public:
    explicit TraceReader(SnapshotReader& reader)
        : reader_(reader), document_(reader.document), kind_(reader.document, kNames) {
        for (std::size_t i = 0; i < kActions.size(); ++i) {
            action_texts_[i] = reader.document.text(kActions[i]);
        }
        empty_ = reader.document.text("");
        not_compiling_ = reader.document.text("N/A");
    }

    void read_device(Value events, const Place& place) {
        const std::span<const Value> items = expect_items(document_, events, place);
        reader_.take_rows(items.size(), place);
        EventColumns& out = reader_.columns.devices.emplace_back();
        reserve(out, items.size());
        for (std::size_t i = 0; i < items.size(); ++i) read_event(items[i], place.at(i), out);
        if (!out.forward.empty()) out.forward.resize(items.size(), -1);
    }

  private:
    using Record = RecordKind<kFields>::Record;

    static void reserve(EventColumns& out, std::size_t count) {
        out.action.reserve(count);
        out.address.reserve(count);
        out.size.reserve(count);
        out.stream.reserve(count);
        out.time_us.reserve(count);
        out.stack.reserve(count);
        out.pool.reserve(count);
        out.metadata.reserve(count);
        out.compile_context.reserve(count);
    }

    void read_event(Value event, const Place& place, EventColumns& out) {
        const Record record = kind_.open(document_, event, place);
        const Action action = read_action(record);
        const Field where = action == Action::oom ? Field::device_free : Field::addr;
        const std::uint64_t address = expect_handle(document_, record.get(where), record.at(where));
        const std::int64_t size =
            expect_count(document_, record.get(Field::size), record.at(Field::size));
        if (action != Action::oom && address > std::numeric_limits<std::uint64_t>::max() -
                                                   static_cast<std::uint64_t>(size)) {
            refuse(record.at(Field::size), "the range ends beyond the last address");
        }
        out.action.push_back(static_cast<std::uint8_t>(action));
        out.address.push_back(address);
        out.size.push_back(size);
        out.stream.push_back(read_stream(record));
        out.time_us.push_back(read_time(record));
        out.stack.push_back(read_stack(record));
        read_forward(record, out);
        out.pool.push_back(read_pool(record));
        out.metadata.push_back(read_note(record, Field::user_metadata, empty_));
        out.compile_context.push_back(read_note(record, Field::compile_context, not_compiling_));
        if (record.has(Field::compile_context)) reader_.saw(Key::event_compile_context);
    }

    Action read_action(const Record& record) {
        const Value text = record.get(Field::action);
        for (std::size_t i = 0; i < kActions.size(); ++i) {
            if (text == action_texts_[i]) return static_cast<Action>(i);
        }
        const std::string_view name = expect_text(document_, text, record.at(Field::action));
        auto& unknown = reader_.columns.unknown_actions;
        if (name.size() > kLongestAction ||
            (unknown.size() >= kUnknownActions && !unknown.contains(std::string(name)))) {
            refuse_value(document_, record.at(Field::action), text, "an action");
        }
        ++unknown[std::string(name)];
        return Action::other;
    }

    std::uint64_t read_stream(const Record& record) {
        if (!record.has(Field::stream)) return 0;
        reader_.saw(Key::event_stream);
        return expect_handle(document_, record.get(Field::stream), record.at(Field::stream));
    }

    std::int64_t read_time(const Record& record) {
        if (!record.has(Field::time_us)) return 0;
        reader_.saw(Key::event_time_us);
        return expect_integer(document_, record.get(Field::time_us), record.at(Field::time_us));
    }

    Index read_stack(const Record& record) {
        if (!record.has(Field::frames)) return -1;
        reader_.saw(Key::event_frames);
        return reader_.tables.stack(record.get(Field::frames), record.at(Field::frames));
    }

    // Only some versions write it, and only for some events: the column begins with the first one.
    void read_forward(const Record& record, EventColumns& out) {
        if (!record.has(Field::forward_frames)) return;
        const Value list = record.get(Field::forward_frames);
        if (!list.is(Kind::list)) return;
        const std::span<const Value> frames = document_.items_of(list);
        if (frames.empty() || !frames.front().is(Kind::dict)) return;
        const Index stack = reader_.tables.stack(list, record.at(Field::forward_frames));
        reader_.saw(Key::event_forward_frames);
        out.forward.resize(out.stack.size() - 1, -1);
        out.forward.push_back(stack);
    }

    Index read_pool(const Record& record) {
        if (!record.has(Field::pool_id)) return -1;
        reader_.saw(Key::event_pool_id);
        return reader_.tables.pool(record.get(Field::pool_id), record.at(Field::pool_id));
    }

    // A string worth keeping, or -1 where it is missing or says nothing.
    Index read_note(const Record& record, Field field, Value nothing) {
        if (!record.has(field)) return -1;
        const Value text = record.get(field);
        if (text == nothing || text == empty_ || text == Value::none()) return -1;
        expect_text(document_, text, record.at(field));
        return reader_.tables.string(text);
    }

    // A newer torch may add a few actions; what goes beyond is not a trace.
    static constexpr std::size_t kUnknownActions = 100;
    static constexpr std::size_t kLongestAction = 100;  // letters

    SnapshotReader& reader_;
    const Document& document_;
    RecordKind<kFields> kind_;
    std::array<Value, kActions.size()> action_texts_;
    Value empty_, not_compiling_;
};

}  // namespace

void read_traces(SnapshotReader& reader, Value traces, const Place& place) {
    const std::span<const Value> devices = expect_items(reader.document, traces, place);
    reader.take_rows(devices.size(), place);
    TraceReader trace_reader(reader);
    for (std::size_t i = 0; i < devices.size(); ++i) {
        trace_reader.read_device(devices[i], place.at(i));
    }
}

}  // namespace tenure
