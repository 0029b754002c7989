#include "engine/snapshots/stack_tables.hpp"

#include <algorithm>
#include <limits>

namespace tenure {
namespace {

enum class FrameField { filename, line, name };
constexpr std::array<const char*, 3> kFrameNames{"filename", "line", "name"};

constexpr Index kUnread = -2;  // not looked at yet

Index next_index(std::size_t size, const Place& place) {
    if (size >= static_cast<std::size_t>(std::numeric_limits<Index>::max())) {
        refuse(place, "more than two thousand million entries");
    }
    return static_cast<Index>(size);
}

}  // namespace

StackTables::StackTables(Document& document, SnapshotColumns& columns)
    : document_(document), columns_(columns), frame_kind_(document, kFrameNames) {}

Index StackTables::string(Value text) {
    if (string_of_.empty()) string_of_.resize(document_.string_count(), kUnread);
    Index& known = string_of_[text.index()];
    if (known == kUnread) {
        known = next_index(columns_.strings.size(), Place{});
        columns_.strings.emplace_back(document_.text_of(text));
    }
    return known;
}

Index StackTables::frame(Value dict, const Place& place) {
    if (frame_of_.empty()) frame_of_.resize(document_.dict_count(), kUnread);
    if (!dict.is(Kind::dict)) refuse_value(document_, place, dict, "a frame's dict");
    Index& known = frame_of_[dict.index()];
    if (known != kUnread) return known;
    const auto record = frame_kind_.open(document_, dict, place);
    const Value file_text = record.get(FrameField::filename);
    const Value name_text = record.get(FrameField::name);
    expect_text(document_, file_text, record.at(FrameField::filename));
    expect_text(document_, name_text, record.at(FrameField::name));
    const Index line = read_line(record.get(FrameField::line), record.at(FrameField::line));
    const Index file = string(file_text);
    const Index name = string(name_text);
    FrameColumns& frames = columns_.frames;
    const std::uint64_t hash = mix_hash(
        mix_hash(mix_hash(0, static_cast<std::uint64_t>(file)), static_cast<std::uint64_t>(line)),
        static_cast<std::uint64_t>(name));
    const std::uint32_t found = frame_table_.find(hash, [&](std::uint32_t id) {
        return frames.file[id] == file && frames.line[id] == line && frames.name[id] == name;
    });
    if (found != ProbeTable::kMissing) return known = static_cast<Index>(found);
    known = next_index(frames.file.size(), place);
    frames.file.push_back(file);
    frames.line.push_back(line);
    frames.name.push_back(name);
    frame_table_.insert(hash, static_cast<std::uint32_t>(known));
    return known;
}

// Python says -1 for code without a line, and PyTorch passes that on as 2^64 - 1.
Index StackTables::read_line(Value value, const Place& place) {
    const std::uint64_t line = expect_handle(document_, value, place);
    if (line == std::numeric_limits<std::uint64_t>::max()) return 0;
    return expect_small(document_, value, place);
}

Index StackTables::stack(Value list, const Place& place) {
    const std::span<const Value> frames = expect_items(document_, list, place);
    if (frames.empty()) return -1;
    const std::uint32_t span = document_.span_of(list);
    if (span == Document::kWide) {
        const auto [entry, fresh] = stack_of_list_.try_emplace(list.bits, kUnread);
        if (fresh) entry->second = add_stack(frames, place);
        return entry->second;
    }
    if (stack_of_.empty()) stack_of_.resize(document_.span_count(), kUnread);
    Index& known = stack_of_[span];
    if (known == kUnread) known = add_stack(frames, place);
    return known;
}

Index StackTables::add_stack(std::span<const Value> frames, const Place& place) {
    building_.clear();
    std::uint64_t hash = frames.size();
    for (std::size_t i = 0; i < frames.size(); ++i) {
        building_.push_back(frame(frames[i], place.at(i)));
        hash = mix_hash(hash, static_cast<std::uint64_t>(building_.back()));
    }
    StackColumns& stacks = columns_.stacks;
    const std::uint32_t found = stack_table_.find(hash, [&](std::uint32_t id) {
        return std::equal(building_.begin(), building_.end(),
                          stacks.frame.begin() + stacks.offset[id],
                          stacks.frame.begin() + stacks.offset[id + 1]);
    });
    if (found != ProbeTable::kMissing) return static_cast<Index>(found);
    const Index index = next_index(stacks.offset.size() - 1, place);
    stacks.frame.insert(stacks.frame.end(), building_.begin(), building_.end());
    stacks.offset.push_back(next_index(stacks.frame.size(), place));
    stack_table_.insert(hash, static_cast<std::uint32_t>(index));
    return index;
}

Index StackTables::pool(Value pair, const Place& place) {
    const std::span<const Value> items = expect_items(document_, pair, place);
    if (items.size() != 2) refuse(place, "a pool id that is not a pair");
    const std::uint32_t span = document_.span_of(pair);
    if (pool_of_.empty()) pool_of_.resize(document_.span_count(), kUnread);
    if (span != Document::kWide && pool_of_[span] != kUnread) return pool_of_[span];
    const std::pair id(expect_handle(document_, items[0], place.at(0)),
                       expect_handle(document_, items[1], place.at(1)));
    auto& pools = columns_.pools;
    const std::uint64_t hash = mix_hash(mix_hash(0, id.first), id.second);
    std::uint32_t found =
        id == pools[0] ? 0
                       : pool_table_.find(hash, [&](std::uint32_t at) { return pools[at] == id; });
    if (found == ProbeTable::kMissing) {
        found = static_cast<std::uint32_t>(next_index(pools.size(), place));
        pools.push_back(id);
        pool_table_.insert(hash, found);
    }
    if (span != Document::kWide) pool_of_[span] = static_cast<Index>(found);
    return static_cast<Index>(found);
}

}  // namespace tenure
