#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/snapshots/snapshot_reader.hpp"

namespace tenure {
namespace {

enum class Field {
    device,
    address,
    total_size,
    stream,
    segment_type,
    segment_pool_id,
    is_expandable,
    frames,
    blocks,
    count
};
constexpr std::size_t kFields = static_cast<std::size_t>(Field::count);
constexpr std::array<const char*, kFields> kNames{
    "device",          "address",       "total_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable", "frames",     "blocks"};

enum class BlockField { address, size, requested_size, state, frames, history, count };
constexpr std::size_t kBlockFields = static_cast<std::size_t>(BlockField::count);
constexpr std::array<const char*, kBlockFields> kBlockNames{"address", "size",   "requested_size",
                                                            "state",   "frames", "history"};

// torch 2.0 keeps what a block was used for, newest first, instead of its frames.
enum class HistoryField { real_size, frames, count };
constexpr std::size_t kHistoryFields = static_cast<std::size_t>(HistoryField::count);
constexpr std::array<const char*, kHistoryFields> kHistoryNames{"real_size", "frames"};

class SegmentReader {
  public:
    explicit SegmentReader(SnapshotReader& reader)
        : reader_(reader),
          document_(reader.document),
          kind_(reader.document, kNames),
          block_kind_(reader.document, kBlockNames),
          history_kind_(reader.document, kHistoryNames) {
        large_ = reader.document.text("large");
        small_ = reader.document.text("small");
        inactive_ = reader.document.text("inactive");
        allocated_ = reader.document.text("active_allocated");
        pending_ = reader.document.text("active_pending_free");
        awaiting_ = reader.document.text("active_awaiting_free");  // its name in the docs
    }

    void read_segment(Value segment, const Place& place) {
        const Record record = kind_.open(document_, segment, place);
        SegmentColumns& out = reader_.columns.segments;
        const Place size_at = record.at(Field::total_size);
        const Place address_at = record.at(Field::address);
        const std::int64_t size = expect_count(document_, record.get(Field::total_size), size_at);
        const std::uint64_t address =
            expect_handle(document_, record.get(Field::address), address_at);
        if (address >
            std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint64_t>(size)) {
            refuse(size_at, "the segment ends beyond the last address");
        }
        out.device.push_back(
            expect_small(document_, record.get(Field::device), record.at(Field::device)));
        out.address.push_back(address);
        out.size.push_back(size);
        out.stream.push_back(
            record.has(Field::stream)
                ? expect_handle(document_, record.get(Field::stream), record.at(Field::stream))
                : 0);
        out.large.push_back(read_large(record) ? 1 : 0);
        out.pool.push_back(read_pool(record));
        out.expandable.push_back(read_expandable(record) ? 1 : 0);
        out.stack.push_back(read_stack(record));
        read_blocks(record, address, size);
        out.block_offset.push_back(static_cast<std::int64_t>(reader_.columns.blocks.size.size()));
    }

  private:
    using Record = RecordKind<kFields>::Record;
    using BlockRecord = RecordKind<kBlockFields>::Record;

    bool read_large(const Record& record) {
        const Value type = record.get(Field::segment_type);
        if (type != large_ && type != small_) {
            refuse_value(document_, record.at(Field::segment_type), type, "'large' or 'small'");
        }
        return type == large_;
    }

    Index read_pool(const Record& record) {
        if (!record.has(Field::segment_pool_id)) return 0;
        reader_.saw(Key::segment_pool_id);
        return reader_.tables.pool(record.get(Field::segment_pool_id),
                                   record.at(Field::segment_pool_id));
    }

    bool read_expandable(const Record& record) {
        if (!record.has(Field::is_expandable)) return false;
        reader_.saw(Key::segment_is_expandable);
        return expect_boolean(document_, record.get(Field::is_expandable),
                              record.at(Field::is_expandable));
    }

    Index read_stack(const Record& record) {
        if (!record.has(Field::frames)) return -1;
        reader_.saw(Key::segment_frames);
        return reader_.tables.stack(record.get(Field::frames), record.at(Field::frames));
    }

    // Blocks tile their segment; where they have no address (torch 2.0) that gives it.
    void read_blocks(const Record& record, std::uint64_t address, std::int64_t size) {
        const Place place = record.at(Field::blocks);
        const std::span<const Value> blocks =
            expect_items(document_, record.get(Field::blocks), place);
        reader_.take_rows(blocks.size(), place);
        const std::uint64_t end = address + static_cast<std::uint64_t>(size);
        std::uint64_t next = address;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            next = read_block(block_kind_.open(document_, blocks[i], place.at(i)), next, end);
        }
        if (next != end) {
            refuse(place,
                   "the blocks end " + std::to_string(end - next) + " bytes before their segment");
        }
    }

    // Returns where the next block must begin.
    std::uint64_t read_block(const BlockRecord& record, std::uint64_t begin, std::uint64_t end) {
        BlockColumns& out = reader_.columns.blocks;
        const Place size_at = record.at(BlockField::size);
        const std::int64_t size = expect_count(document_, record.get(BlockField::size), size_at);
        if (record.has(BlockField::address)) {
            reader_.saw(Key::block_address);
            const Place at = record.at(BlockField::address);
            const Value address = record.get(BlockField::address);
            if (expect_handle(document_, address, at) != begin) {
                refuse_value(document_, at, address,
                             ("the end of the block before, " + std::to_string(begin)).c_str());
            }
        }
        if (static_cast<std::uint64_t>(size) > end - begin) {
            refuse(size_at, "the block ends outside its segment");
        }
        if (size == 0) refuse(size_at, "a block of no bytes");
        const BlockState state = read_state(record);
        out.address.push_back(begin);
        out.size.push_back(size);
        out.state.push_back(static_cast<std::uint8_t>(state));
        read_request(record, state, size);
        return begin + static_cast<std::uint64_t>(size);
    }

    BlockState read_state(const BlockRecord& record) {
        const Value state = record.get(BlockField::state);
        if (state == inactive_) return BlockState::inactive;
        if (state == allocated_) return BlockState::active_allocated;
        if (state == pending_ || state == awaiting_) return BlockState::active_pending;
        refuse_value(document_, record.at(BlockField::state), state, "a block's state");
    }

    // The bytes asked for and the stack of who asked.
    void read_request(const BlockRecord& record, BlockState state, std::int64_t size) {
        std::int64_t requested = state == BlockState::inactive ? 0 : size;
        Index stack = -1;
        if (record.has(BlockField::history)) {
            reader_.saw(Key::block_history);
            read_history(record, state, requested, stack);
        }
        if (record.has(BlockField::requested_size)) {
            reader_.saw(Key::block_requested_size);
            requested = expect_count(document_, record.get(BlockField::requested_size),
                                     record.at(BlockField::requested_size));
        }
        if (record.has(BlockField::frames)) {
            reader_.saw(Key::block_frames);
            stack =
                reader_.tables.stack(record.get(BlockField::frames), record.at(BlockField::frames));
        }
        if (state != BlockState::inactive && requested > size) {
            refuse(record.place, "a block of " + std::to_string(size) + " bytes for a request of " +
                                     std::to_string(requested));
        }
        reader_.columns.blocks.requested.push_back(requested);
        reader_.columns.blocks.stack.push_back(stack);
    }

    void read_history(const BlockRecord& record, BlockState state, std::int64_t& requested,
                      Index& stack) {
        const Place place = record.at(BlockField::history);
        const std::span<const Value> uses =
            expect_items(document_, record.get(BlockField::history), place);
        if (uses.empty()) return;
        const Place newest_at = place.at(0);
        const auto newest = history_kind_.open(document_, uses[0], newest_at);
        if (newest.has(HistoryField::real_size)) {
            requested = expect_count(document_, newest.get(HistoryField::real_size),
                                     newest.at(HistoryField::real_size));
        }
        if (newest.has(HistoryField::frames) && state != BlockState::inactive) {
            stack = reader_.tables.stack(newest.get(HistoryField::frames),
                                         newest.at(HistoryField::frames));
        }
    }

    SnapshotReader& reader_;
    const Document& document_;
    RecordKind<kFields> kind_;
    RecordKind<kBlockFields> block_kind_;
    RecordKind<kHistoryFields> history_kind_;
    Value large_, small_, inactive_, allocated_, pending_, awaiting_;
};

void refuse_overlaps(const SegmentColumns& segments, const Place& place) {
    std::vector<std::size_t> order(segments.address.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(segments.device[a], segments.address[a]) <
               std::pair(segments.device[b], segments.address[b]);
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
        const std::size_t below = order[i - 1];
        const std::size_t above = order[i];
        if (segments.device[below] == segments.device[above] &&
            segments.address[above] - segments.address[below] <
                static_cast<std::uint64_t>(segments.size[below])) {
            refuse(place.at(above), "overlaps " + place.at(below).text());
        }
    }
}

}  // namespace

void read_segments(SnapshotReader& reader, Value segments, const Place& place) {
    const std::span<const Value> items = expect_items(reader.document, segments, place);
    reader.take_rows(items.size(), place);
    SegmentReader segment_reader(reader);
    for (std::size_t i = 0; i < items.size(); ++i) {
        segment_reader.read_segment(items[i], place.at(i));
    }
    refuse_overlaps(reader.columns.segments, place);
}

}  // namespace tenure
