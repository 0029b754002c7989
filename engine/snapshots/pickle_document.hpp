// What a pickle describes, kept small: equal strings, equal runs of items and equal key lists once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/snapshots/pickle_value.hpp"
#include "engine/snapshots/probe_table.hpp"

namespace tenure {

// Something in a pickle is not accepted; whoever knows the place adds it and throws BadInput.
struct Refusal : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The keys of a dict, in order. Half a million events share one shape.
struct Shape {
    std::vector<Value> keys;
    std::uint64_t hash = 0;
};

// A memory area whose pieces are never given back one by one.
template <typename Item>
class Area {
  public:
    Item* keep(const Item* items, std::size_t count, std::size_t room) {
        Item* taken = take(room);
        std::copy_n(items, count, taken);
        return taken;
    }

  private:
    static constexpr std::size_t kChunk = (std::size_t{1} << 19) / sizeof(Item);

    Item* take(std::size_t count) {
        if (count > left_) {
            const std::size_t size = std::max(count, kChunk);
            chunks_.push_back(std::make_unique_for_overwrite<Item[]>(size));
            if (size > kChunk) return chunks_.back().get();
            next_ = chunks_.back().get();
            left_ = size;
        }
        Item* taken = next_;
        next_ += count;
        left_ -= count;
        return taken;
    }

    std::vector<std::unique_ptr<Item[]>> chunks_;
    Item* next_ = nullptr;
    std::size_t left_ = 0;
};

// A dict as keys and values side by side, whichever way it is kept.
struct DictView {
    const Value* keys = nullptr;
    const Value* values = nullptr;
    std::size_t size = 0;
    std::size_t stride = 1;  // values from one key to the next
    Value key(std::size_t position) const { return keys[position * stride]; }
    Value value(std::size_t position) const { return values[position * stride]; }
};

class Document {
  public:
    static constexpr std::uint32_t kWide = 0xffffffffU;  // the shape of a dict that has none
    static constexpr std::size_t kShapeKeys = 64;        // keys; longer dicts keep their own
    static constexpr std::size_t kShapes = 65536;        // a snapshot has about twenty

    Document();
    Document(Document&&) = default;
    Document& operator=(Document&&) = default;

    // Building. Texts are copied; of bytes nothing is kept.
    Value text(std::string_view text);
    Value bytes() { return Value::of(Rare::bytes, 0); }
    Value integer(std::int64_t number) {
        return Value::fits(number) ? Value::small(number) : wide_integer(number < 0, number);
    }
    Value unsigned_integer(std::uint64_t number);
    Value real(double number);
    Value tuple(std::span<const Value> items);
    Value set(std::span<const Value> items);
    Value new_list();
    Value new_set();
    Value new_dict();
    void append(Value list, std::span<const Value> items);
    void assign(Value dict, std::span<const Value> pairs);  // key, value, key, value, ...

    // Reading.
    std::string_view text_of(Value text) const { return strings_[text.index()]; }
    std::span<const Value> items_of(Value list_or_tuple) const;
    DictView dict_of(Value dict) const;
    std::uint32_t shape_of(Value dict) const { return dicts_[dict.index()].shape; }
    const Value* values_of(Value dict) const { return dicts_[dict.index()].values; }
    const Shape& shape(std::uint32_t index) const { return shapes_[index]; }
    double real_of(Value real) const { return reals_[real.index()]; }
    // True, and the number, when an integer fits; wide ones are 61 to 64 bits long.
    bool signed_of(Value integer, std::int64_t& number) const;
    bool unsigned_of(Value integer, std::uint64_t& number) const;
    // Equal for lists that hold the same objects; below span_count(), or kWide for long lists.
    std::uint32_t span_of(Value list_or_tuple) const;
    std::size_t span_count() const { return spans_.size(); }
    std::size_t shape_count() const { return shapes_.size(); }
    std::size_t string_count() const { return strings_.size(); }
    std::size_t dict_count() const { return dicts_.size(); }
    // Python's word for what this is, for messages: "a list", "the string 'big'".
    std::string describe(Value value) const;

    Value root = Value::none();
    std::uint64_t pickle_bytes = 0;  // that it was read from

  private:
    struct Span {
        Value* items;
        std::uint32_t size;
    };
    struct Dict {
        Value* values;
        std::uint32_t shape;
        std::uint32_t room;  // values there is room for; of a wide dict its index
    };
    static constexpr std::uint32_t kGrowing = 0x80000000U;  // list: index into growing_
    static constexpr std::uint32_t kSharedItems = 4096;     // longer runs are not compared

    Value wide_integer(bool negative, std::int64_t number);
    std::uint32_t share(std::span<const Value> items);
    std::uint32_t extend_shape(std::uint32_t from, std::span<const Value> pairs);
    std::uint32_t add_shape(std::uint32_t from, std::span<const Value> pairs, std::uint64_t hash);
    void assign_wide(Dict& dict, std::span<const Value> pairs);

    Area<Value> values_;
    Area<char> letters_;
    std::vector<std::string_view> strings_;
    std::vector<double> reals_;
    struct Wide {
        bool negative;
        std::uint64_t bits;
    };
    std::vector<Wide> wide_integers_;
    std::vector<Span> spans_;
    std::vector<std::uint32_t> lists_;  // a span, or kGrowing | index
    std::vector<std::vector<Value>> growing_;
    std::vector<Dict> dicts_;
    std::vector<std::vector<Value>> wide_dicts_;
    std::vector<Shape> shapes_;
    ProbeTable string_table_, span_table_, shape_table_;
};

}  // namespace tenure
