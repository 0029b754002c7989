// Typed access to the dicts of a snapshot, with messages that say where.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/snapshots/pickle_document.hpp"

namespace tenure {

// Where in the snapshot a value is: a chain up to the top, put into words only for a message.
struct Place {
    const Place* above = nullptr;
    const char* name = nullptr;  // a key, or nullptr for a position in a list
    std::size_t position = 0;

    Place at(std::size_t index) const { return Place{this, nullptr, index}; }
    Place key(const char* key) const { return Place{this, key, 0}; }
    std::string text() const;  // "device_traces[0][3].addr"
};

// Throws BadInput: the place, what is wrong, and what to do.
[[noreturn]] void refuse(const Place& place, const std::string& wrong);
[[noreturn]] void refuse_value(const Document& document, const Place& place, Value found,
                               const char* wanted);

// Checked readings of one value.
std::span<const Value> expect_items(const Document& document, Value value, const Place& place);
std::int64_t expect_integer(const Document& document, Value value, const Place& place);
std::int64_t expect_count(const Document& document, Value value, const Place& place);  // >= 0
// An address or a handle; PyTorch writes some of them as signed integers.
std::uint64_t expect_handle(const Document& document, Value value, const Place& place);
std::int32_t expect_small(const Document& document, Value value, const Place& place);
bool expect_boolean(const Document& document, Value value, const Place& place);
std::string_view expect_text(const Document& document, Value value, const Place& place);

// The keys that one kind of dict may have, and where they lie in each shape seen.
template <std::size_t count>
class RecordKind {
  public:
    RecordKind(Document& document, const std::array<const char*, count>& names) : names_(names) {
        for (std::size_t i = 0; i < count; ++i) keys_[i] = document.text(names[i]);
    }

    // One dict of this kind. Field is an enum whose values index the names.
    class Record {
      public:
        template <typename Field>
        bool has(Field field) const {
            return slots_[static_cast<std::size_t>(field)] >= 0;
        }
        template <typename Field>
        Value get(Field field) const {
            const int slot = slots_[static_cast<std::size_t>(field)];
            if (slot < 0) refuse(place, std::string("no ") + name(field));
            return values_[slot];
        }
        template <typename Field>
        const char* name(Field field) const {
            return kind_.names_[static_cast<std::size_t>(field)];
        }
        template <typename Field>
        Place at(Field field) const {
            return place.key(name(field));
        }
        Place place;

      private:
        friend class RecordKind;
        Record(const RecordKind& kind, const std::int8_t* slots, const Value* values, Place place)
            : place(place), kind_(kind), slots_(slots), values_(values) {}
        const RecordKind& kind_;
        const std::int8_t* slots_;
        const Value* values_;
    };

    Record open(const Document& document, Value value, const Place& place) {
        if (!value.is(Kind::dict)) refuse_value(document, place, value, "a dict");
        const std::uint32_t shape = document.shape_of(value);
        if (shape == Document::kWide) refuse(place, "a dict with far too many keys");
        return Record(*this, slots_for(document, shape), document.values_of(value), place);
    }

  private:
    using Slots = std::array<std::int8_t, count>;

    const std::int8_t* slots_for(const Document& document, std::uint32_t shape) {
        if (slots_.empty()) slots_.resize(document.shape_count());
        if (slots_[shape] == nullptr) {
            Slots slots;
            slots.fill(-1);
            const std::vector<Value>& keys = document.shape(shape).keys;
            for (std::size_t at = 0; at < keys.size(); ++at) {
                for (std::size_t i = 0; i < count; ++i) {
                    if (keys[at] == keys_[i]) slots[i] = static_cast<std::int8_t>(at);
                }
            }
            slots_[shape] = std::make_unique<Slots>(slots);
        }
        return slots_[shape]->data();
    }

    std::array<const char*, count> names_;
    std::array<Value, count> keys_;
    std::vector<std::unique_ptr<Slots>> slots_;
};

}  // namespace tenure
