#include "engine/snapshots/record.hpp"

#include <limits>

#include "engine/errors.hpp"

namespace tenure {

std::string Place::text() const {
    const std::string before = above == nullptr ? "" : above->text();
    if (name == nullptr) {
        return above == nullptr ? "" : before + "[" + std::to_string(position) + "]";
    }
    return before.empty() ? name : before + "." + name;
}

void refuse(const Place& place, const std::string& wrong) {
    const std::string where = place.text();
    throw BadInput((where.empty() ? "" : where + ": ") + wrong +
                   "; is this a file from torch.cuda.memory._dump_snapshot?");
}

void refuse_value(const Document& document, const Place& place, Value found, const char* wanted) {
    refuse(place, "found " + document.describe(found) + " instead of " + wanted);
}

std::span<const Value> expect_items(const Document& document, Value value, const Place& place) {
    if (!value.is(Kind::list) && !value.is(Kind::tuple)) {
        refuse_value(document, place, value, "a list");
    }
    return document.items_of(value);
}

std::int64_t expect_integer(const Document& document, Value value, const Place& place) {
    std::int64_t number = 0;
    if (!document.signed_of(value, number)) {
        refuse_value(document, place, value, "an integer of 64 bits");
    }
    return number;
}

std::int64_t expect_count(const Document& document, Value value, const Place& place) {
    std::int64_t number = 0;
    if (!document.signed_of(value, number) || number < 0) {
        refuse_value(document, place, value, "a number of at least 0");
    }
    return number;
}

std::uint64_t expect_handle(const Document& document, Value value, const Place& place) {
    std::uint64_t number = 0;
    if (document.unsigned_of(value, number)) return number;
    std::int64_t negative = 0;
    if (!document.signed_of(value, negative)) {
        refuse_value(document, place, value, "an integer of 64 bits");
    }
    return static_cast<std::uint64_t>(negative);
}

std::int32_t expect_small(const Document& document, Value value, const Place& place) {
    std::int64_t number = 0;
    if (!document.signed_of(value, number) || number < 0 ||
        number > std::numeric_limits<std::int32_t>::max()) {
        refuse_value(document, place, value, "a number from 0 to 2147483647");
    }
    return static_cast<std::int32_t>(number);
}

bool expect_boolean(const Document& document, Value value, const Place& place) {
    if (value != Value::boolean(true) && value != Value::boolean(false)) {
        refuse_value(document, place, value, "True or False");
    }
    return value == Value::boolean(true);
}

std::string_view expect_text(const Document& document, Value value, const Place& place) {
    if (!value.is(Kind::text)) refuse_value(document, place, value, "a string");
    return document.text_of(value);
}

}  // namespace tenure
