#include "engine/snapshots/pickle_document.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

namespace tenure {
namespace {

std::uint64_t hash_bytes(std::string_view text) {
    std::uint64_t hash = text.size();
    const char* at = text.data();
    std::size_t left = text.size();
    for (; left >= 8; at += 8, left -= 8) {
        std::uint64_t word;
        std::memcpy(&word, at, 8);
        hash = mix_hash(hash, word);
    }
    std::uint64_t word = 0;
    if (left > 0) std::memcpy(&word, at, left);
    return mix_hash(hash, word);
}

std::uint32_t checked_index(std::size_t count) {
    if (count >= 0x7fffffffU) throw Refusal("more objects than a snapshot can have");
    return static_cast<std::uint32_t>(count);
}

// Text for a message: one line, printable, short.
std::string quoted(std::string_view text) {
    constexpr std::size_t kShown = 40;
    std::string shown = "'";
    for (const char c : text.substr(0, kShown)) {
        shown += c >= 0x20 && c < 0x7f ? c : '?';
    }
    return shown + (text.size() > kShown ? "...'" : "'");
}

// At most a dozen characters, however large the number.
std::string short_text(double number) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", number);
    return text;
}

}  // namespace

Document::Document() {
    shapes_.emplace_back();
    spans_.push_back(Span{nullptr, 0});
}

Value Document::text(std::string_view text) {
    const std::uint64_t hash = hash_bytes(text);
    std::uint32_t index =
        string_table_.find(hash, [&](std::uint32_t id) { return strings_[id] == text; });
    if (index == ProbeTable::kMissing) {
        index = checked_index(strings_.size());
        strings_.emplace_back(letters_.keep(text.data(), text.size(), text.size()), text.size());
        string_table_.insert(hash, index);
    }
    return Value::of(Kind::text, index);
}

Value Document::wide_integer(bool negative, std::int64_t number) {
    wide_integers_.push_back(Wide{negative, static_cast<std::uint64_t>(number)});
    return Value::of(Rare::wide_integer, wide_integers_.size() - 1);
}

Value Document::unsigned_integer(std::uint64_t number) {
    if (number <= static_cast<std::uint64_t>(Value::kLargest)) {
        return Value::small(static_cast<std::int64_t>(number));
    }
    return wide_integer(false, static_cast<std::int64_t>(number));
}

Value Document::real(double number) {
    reals_.push_back(number);
    return Value::of(Kind::real, reals_.size() - 1);
}

// The span with these items; an equal one is used again, since spans never change.
std::uint32_t Document::share(std::span<const Value> items) {
    if (items.empty()) return 0;
    std::uint64_t hash = items.size();
    const bool shared = items.size() <= kSharedItems;
    if (shared) {
        for (const Value item : items) hash = mix_hash(hash, item.bits);
        const std::uint32_t found = span_table_.find(hash, [&](std::uint32_t id) {
            return spans_[id].size == items.size() &&
                   std::memcmp(spans_[id].items, items.data(), items.size_bytes()) == 0;
        });
        if (found != ProbeTable::kMissing) return found;
    }
    const std::uint32_t index = checked_index(spans_.size());
    Value* kept = values_.keep(items.data(), items.size(), items.size());
    spans_.push_back(Span{kept, checked_index(items.size())});
    if (shared) span_table_.insert(hash, index);
    return index;
}

Value Document::tuple(std::span<const Value> items) { return Value::of(Kind::tuple, share(items)); }

Value Document::set(std::span<const Value> items) {
    const Value made = new_set();
    lists_.back() = share(items);
    return made;
}

Value Document::new_list() {
    const std::uint32_t index = checked_index(lists_.size());
    lists_.push_back(0);
    return Value::of(Kind::list, index);
}

Value Document::new_set() { return Value::of(Rare::set, new_list().index()); }

Value Document::new_dict() {
    const std::uint32_t index = checked_index(dicts_.size());
    dicts_.push_back(Dict{nullptr, 0, 0});
    return Value::of(Kind::dict, index);
}

void Document::append(Value list, std::span<const Value> items) {
    if (items.empty()) return;
    std::uint32_t& entry = lists_[list.is(Rare::set) ? list.rare_index() : list.index()];
    if (entry == 0) {
        entry = share(items);
        return;
    }
    if ((entry & kGrowing) == 0) {
        const Span& old = spans_[entry];
        const std::uint32_t index = checked_index(growing_.size());
        growing_.emplace_back(old.items, old.items + old.size);
        entry = kGrowing | index;
    }
    std::vector<Value>& own = growing_[entry & ~kGrowing];
    own.insert(own.end(), items.begin(), items.end());
}

void Document::assign(Value dict_value, std::span<const Value> pairs) {
    Dict& dict = dicts_[dict_value.index()];
    const std::size_t before = dict.shape == kWide ? 0 : shapes_[dict.shape].keys.size();
    const std::size_t after = before + pairs.size() / 2;
    if (dict.shape == kWide || after > kShapeKeys) return assign_wide(dict, pairs);
    dict.shape = extend_shape(dict.shape, pairs);
    if (after > dict.room) {
        // Filled in one go, as usual: exactly that; one by one: room to grow.
        const std::size_t room = before == 0 ? after : 2 * after;
        dict.values = values_.keep(dict.values, before, room);
        dict.room = static_cast<std::uint32_t>(room);
    }
    for (std::size_t i = before, from = 1; i < after; ++i, from += 2) dict.values[i] = pairs[from];
}

void Document::assign_wide(Dict& dict, std::span<const Value> pairs) {
    if (dict.shape != kWide) {
        std::vector<Value> own;
        const Shape& shape = shapes_[dict.shape];
        for (std::size_t i = 0; i < shape.keys.size(); ++i) {
            own.push_back(shape.keys[i]);
            own.push_back(dict.values[i]);
        }
        dict.shape = kWide;
        dict.room = checked_index(wide_dicts_.size());
        wide_dicts_.push_back(std::move(own));
    }
    std::vector<Value>& own = wide_dicts_[dict.room];
    own.insert(own.end(), pairs.begin(), pairs.end());
}

std::uint32_t Document::extend_shape(std::uint32_t from, std::span<const Value> pairs) {
    const std::size_t before = shapes_[from].keys.size();
    const std::size_t added = pairs.size() / 2;
    std::uint64_t hash = shapes_[from].hash;
    for (std::size_t i = 0; i < added; ++i) hash = mix_hash(hash, pairs[2 * i].bits);
    const std::uint32_t found = shape_table_.find(hash, [&](std::uint32_t id) {
        const std::vector<Value>& keys = shapes_[id].keys;
        if (keys.size() != before + added) return false;
        for (std::size_t i = 0; i < added; ++i) {
            if (keys[before + i] != pairs[2 * i]) return false;
        }
        return std::equal(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(before),
                          shapes_[from].keys.begin());
    });
    return found == ProbeTable::kMissing ? add_shape(from, pairs, hash) : found;
}

std::uint32_t Document::add_shape(std::uint32_t from, std::span<const Value> pairs,
                                  std::uint64_t hash) {
    if (shapes_.size() >= kShapes) throw Refusal("more kinds of dict than a snapshot can have");
    Shape made{shapes_[from].keys, hash};
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
        const Value key = pairs[i];
        if (key.is(Kind::list) || key.is(Kind::dict) || key.is(Rare::set)) {
            throw Refusal("a dict whose key is " + describe(key));
        }
        if (std::find(made.keys.begin(), made.keys.end(), key) != made.keys.end()) {
            throw Refusal("a dict with the key " + describe(key) + " twice");
        }
        made.keys.push_back(key);
    }
    const auto index = static_cast<std::uint32_t>(shapes_.size());
    shapes_.push_back(std::move(made));
    shape_table_.insert(hash, index);
    return index;
}

std::span<const Value> Document::items_of(Value value) const {
    std::uint64_t entry = value.index();
    if (!value.is(Kind::tuple)) entry = lists_[value.is(Rare::set) ? value.rare_index() : entry];
    if ((entry & kGrowing) != 0) return growing_[entry & ~std::uint64_t{kGrowing}];
    return {spans_[entry].items, spans_[entry].size};
}

std::uint32_t Document::span_of(Value value) const {
    const std::uint64_t entry =
        value.is(Kind::tuple) ? value.index() : std::uint64_t{lists_[value.index()]};
    return (entry & kGrowing) != 0 ? kWide : static_cast<std::uint32_t>(entry);
}

DictView Document::dict_of(Value value) const {
    const Dict& dict = dicts_[value.index()];
    if (dict.shape != kWide) {
        const std::vector<Value>& keys = shapes_[dict.shape].keys;
        return DictView{keys.data(), dict.values, keys.size(), 1};
    }
    const std::vector<Value>& own = wide_dicts_[dict.room];
    return DictView{own.data(), own.data() + 1, own.size() / 2, 2};
}

bool Document::signed_of(Value value, std::int64_t& number) const {
    if (value.is(Kind::integer)) {
        number = value.number();
        return true;
    }
    if (!value.is(Rare::wide_integer)) return false;
    const Wide& wide = wide_integers_[value.rare_index()];
    number = static_cast<std::int64_t>(wide.bits);
    return wide.negative == (number < 0);
}

bool Document::unsigned_of(Value value, std::uint64_t& number) const {
    if (value.is(Kind::integer)) {
        number = static_cast<std::uint64_t>(value.number());
        return value.number() >= 0;
    }
    if (!value.is(Rare::wide_integer)) return false;
    number = wide_integers_[value.rare_index()].bits;
    return !wide_integers_[value.rare_index()].negative;
}

std::string Document::describe(Value value) const {
    switch (value.kind()) {
        case Kind::integer:
            return "the integer " + std::to_string(value.number());
        case Kind::text:
            return "the string " + quoted(text_of(value));
        case Kind::list:
            return "a list";
        case Kind::dict:
            return "a dict";
        case Kind::tuple:
            return "a tuple";
        case Kind::real:
            return "the float " + short_text(real_of(value));
        case Kind::constant:
            if (value == Value::absent()) return "nothing";
            return value == Value::none() ? "None"
                                          : (value == Value::boolean(true) ? "True" : "False");
        case Kind::rare:
            break;
    }
    if (value.is(Rare::bytes)) return "bytes";
    if (value.is(Rare::set)) return "a set";
    std::uint64_t number = 0;
    std::int64_t negative = 0;
    if (unsigned_of(value, number)) return "the integer " + std::to_string(number);
    if (signed_of(value, negative)) return "the integer " + std::to_string(negative);
    return "an integer of more than 64 bits";
}

}  // namespace tenure
