// The pickle machine: what it reads, what it refuses, and that it believes no length.
#include "engine/snapshots/pickle_machine.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/errors.hpp"
#include "engine/tests/check.hpp"

using namespace std::string_literals;
using namespace tenure;

namespace {

Document read(std::string_view pickle, std::size_t piece = 1 << 20) {
    MemorySource source(std::as_bytes(std::span(pickle)), piece);
    return read_pickle(source);
}

// The one value of a list: PROTO 2, EMPTY_LIST, the given opcodes, APPEND, STOP.
Document read_value(const std::string& opcodes) { return read("\x80\x02]"s + opcodes + "a."); }

std::int64_t signed_value(const std::string& opcodes) {
    const Document document = read_value(opcodes);
    std::int64_t number = 0;
    CHECK(document.signed_of(document.items_of(document.root)[0], number));
    return number;
}

std::uint64_t unsigned_value(const std::string& opcodes) {
    const Document document = read_value(opcodes);
    std::uint64_t number = 0;
    CHECK(document.unsigned_of(document.items_of(document.root)[0], number));
    return number;
}

std::string text_value(const std::string& opcodes) {
    const Document document = read_value(opcodes);
    const Value value = document.items_of(document.root)[0];
    CHECK(value.is(Kind::text));
    return std::string(document.text_of(value));
}

std::string described(const std::string& opcodes) {
    const Document document = read_value(opcodes);
    return document.describe(document.items_of(document.root)[0]);
}

void integers() {
    CHECK_EQUAL(signed_value("K\xff"), 255);
    CHECK_EQUAL(signed_value("M\xff\xff"), 65535);
    CHECK_EQUAL(signed_value("J\xff\xff\xff\xff"), -1);
    CHECK_EQUAL(signed_value("\x8a\x00"s), 0);
    CHECK_EQUAL(signed_value("\x8a\x01\x80"), -128);
    CHECK_EQUAL(signed_value("\x8a\x02\x80\x00"s), 128);
    CHECK_EQUAL(signed_value("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s),
                std::numeric_limits<std::int64_t>::min());
    CHECK_EQUAL(unsigned_value("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"s),
                std::numeric_limits<std::uint64_t>::max());
    CHECK_EQUAL(signed_value("\x8b\x02\x00\x00\x00\x01\x02"s), 513);
    CHECK_EQUAL(signed_value("I-17\n"), -17);
    CHECK_EQUAL(signed_value("L123456789012345678L\n"), 123456789012345678);
    CHECK_EQUAL(unsigned_value("L18446744073709551615L\n"),
                std::numeric_limits<std::uint64_t>::max());
    CHECK_EQUAL(described("L18446744073709551616L\n"), "an integer of more than 64 bits"s);
    CHECK_EQUAL(described("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01"s),
                "an integer of more than 64 bits"s);
    CHECK_EQUAL(described("I01\n"), "True"s);
    CHECK_EQUAL(described("G\x3f\xf8\x00\x00\x00\x00\x00\x00"s), "the float 1.5"s);
    CHECK_EQUAL(described("F0.25\n"), "the float 0.25"s);
    CHECK_THROWS(read_value("I1x\n"), BadInput, "not a number");
    CHECK_THROWS(read_value("\x8b\x00\x00\x00\x7f"s), BadInput, "copy the file again");
}

void edges_of_small_integers() {
    for (const std::int64_t number :
         {Value::kLargest, Value::kLargest + 1, -Value::kLargest - 1, -Value::kLargest - 2}) {
        CHECK_EQUAL(signed_value("I" + std::to_string(number) + "\n"), number);
    }
}

void texts() {
    CHECK_EQUAL(text_value("X\x02\x00\x00\x00hi"s), "hi"s);
    CHECK_EQUAL(text_value("\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi"s), "hi"s);
    CHECK_EQUAL(text_value("\x8c\x02\xc3\xa9"s), "\xc3\xa9"s);
    CHECK_EQUAL(text_value("V\\u00e9\xe9\\U0001f600\n"), "\xc3\xa9\xc3\xa9\xf0\x9f\x98\x80"s);
    CHECK_EQUAL(text_value("S'a\\n\\'\\x41\\101'\n"), "a\n'AA"s);
    CHECK_EQUAL(text_value("U\x02hi"), "hi"s);
    // A lone surrogate, as Python writes an undecodable file name: it can be printed afterwards.
    CHECK_EQUAL(text_value("\x8c\x03\xed\xb2\x80"s), "\xef\xbf\xbd"s);
    CHECK_THROWS(read_value("\x8c\x02\xff\xfe"s), BadInput, "not UTF-8");
    CHECK_THROWS(read_value("\x8c\x02\xc0\x80"s), BadInput, "not UTF-8");
    CHECK_THROWS(read_value("Sabc\n"), BadInput, "quotes");
    CHECK_EQUAL(described("C\x03\xff\xff\xff"s), "bytes"s);
}

void containers() {
    const Document document = read(
        "\x80\x02}q\x00(X\x01\x00\x00\x00"
        "a]q\x01(K\x01K\x02"
        "eX\x01\x00\x00\x00"
        "bK\x03K\x04\x86u."s);
    const DictView dict = document.dict_of(document.root);
    CHECK_EQUAL(dict.size, 2U);
    CHECK_EQUAL(document.text_of(dict.key(0)), "a");
    CHECK_EQUAL(document.items_of(dict.value(0)).size(), 2U);
    CHECK(dict.value(1).is(Kind::tuple));
    CHECK_EQUAL(document.items_of(dict.value(1))[1].number(), 4);
}

// Filled one by one, as protocol 0 does, and past the length that has a shape.
void large_dict() {
    std::string pickle = "\x80\x02}";
    for (int i = 0; i < 200; ++i) {
        pickle += "I" + std::to_string(i) + "\nI" + std::to_string(i * i) + "\ns";
        const Document document = read(pickle + ".");
        const DictView dict = document.dict_of(document.root);
        CHECK_EQUAL(dict.size, static_cast<std::size_t>(i + 1));
        CHECK_EQUAL(dict.key(dict.size - 1).number(), i);
        CHECK_EQUAL(dict.value(dict.size - 1).number(), i * i);
        CHECK_EQUAL(dict.value(0).number(), 0);
    }
}

// Lists with equal items share them, but not what is added to one of them later.
void shared_items_stay_apart() {
    const Document document = read(
        "\x80\x02(](K\x01K\x02"
        "e](K\x01K\x02"
        "eK\x03"
        "a](K\x01K\x02"
        "el."s);
    const auto lists = document.items_of(document.root);
    CHECK_EQUAL(document.span_of(lists[0]), document.span_of(lists[2]));
    CHECK_EQUAL(document.items_of(lists[0]).size(), 2U);
    CHECK_EQUAL(document.items_of(lists[1]).size(), 3U);
}

void refusals() {
    const std::string run = "run code";
    CHECK_THROWS(read("\x80\x04(cposix\nsystem\n."), BadInput, "(posix.system)");
    CHECK_THROWS(read("\x80\x04\x8c\x05posix\x8c\x06system\x93."s), BadInput, "(posix.system)");
    CHECK_THROWS(read("\x80\x02(iposix\nsystem\n."), BadInput, "(posix.system)");
    for (const char* opcode : {"R", "b", "o", "\x81", "\x82", "\x83", "\x84", "P", "Q", "\x92"}) {
        CHECK_THROWS(read("\x80\x02}}"s + opcode + "."), BadInput, run);
    }
    for (const char* opcode : {"\x97", "\x98"}) {
        CHECK_THROWS(read("\x80\x05}"s + opcode + "."), BadInput, "outside the file");
    }
    CHECK_THROWS(read("\x80\x02\xff"), BadInput, "damaged");
    CHECK_THROWS(read("\x80\x02}}}u."), BadInput, "mark");
    CHECK_THROWS(read("\x80\x02(a."), BadInput, "not there");
    CHECK_THROWS(read("\x80\x02](K\x01"s + "a."), BadInput, "not there");
    CHECK_THROWS(read("\x80\x02}K\x01"s + "a."), BadInput, "where a list is needed");
    CHECK_THROWS(read("\x80\x02}(K\x01u."), BadInput, "without its value");
    CHECK_THROWS(read("\x80\x02}(]Nu."), BadInput, "whose key is a list");
    CHECK_THROWS(read("\x80\x02}(K\x01NK\x01Nu."), BadInput, "twice");
    CHECK_THROWS(read("\x80\x02h\x05."), BadInput, "never set");
    CHECK_THROWS(read("\x80\x02."), BadInput, "not there");
    CHECK_THROWS(read(""), BadInput, "empty");
    CHECK_THROWS(read("hello"), BadInput, "not a pickle");
    CHECK_THROWS(read("\x80\x06}."), BadInput, "not a pickle");
}

void announced_lengths_are_not_believed() {
    for (const std::string& opcode :
         {"X\xff\xff\xff\xff"s, "T\xff\xff\xff\x7f"s, "B\xff\xff\xff\xff"s, "\x8b\xff\xff\xff\x7f"s,
          "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s, "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"s,
          "\x96\xff\xff\xff\xff\xff\xff\xff\xff"s}) {
        CHECK_THROWS(read_value(opcode + "abc"), BadInput, "copy the file again");
    }
    CHECK_THROWS(read("\x80\x02]r\xff\xff\xff\x7f."), BadInput, "memo index");
    CHECK_THROWS(read("\x80\x02]p99999999999999999999\n."), BadInput, "memo index");
}

void nesting_needs_no_stack() {
    const std::string deep = "\x80\x02" + std::string(1'000'000, ']') + std::string(999'999, 'a');
    const Document document = read(deep + ".");
    CHECK_EQUAL(document.items_of(document.root).size(), 1U);
    const Document marks =
        read("\x80\x02" + std::string(1'000'000, '(') + std::string(1'000'000, '1') + "N.");
    CHECK(marks.root == Value::none());
}

// The same whatever pieces the bytes come in; cut anywhere, refused.
void pieces_and_cuts() {
    const std::string pickle =
        "\x80\x04\x95\x40\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x04name\x94\x8c\x03"
        "abc\x94\x8c\x04line\x94M\x02\x01\x8c\x04"
        "addr\x94\x8a\x06\x00\x00\x00\x00\x22\x7fu."s;
    for (std::size_t piece = 1; piece < 40; ++piece) {
        const Document document = read(pickle, piece);
        const DictView dict = document.dict_of(document.root);
        CHECK_EQUAL(dict.size, 3U);
        CHECK_EQUAL(document.text_of(dict.value(0)), "abc");
        CHECK_EQUAL(dict.value(1).number(), 258);
        CHECK_EQUAL(dict.value(2).number(), 0x7f2200000000);
    }
    for (std::size_t size = 0; size < pickle.size(); ++size) {
        CHECK_THROWS(read(pickle.substr(0, size)), BadInput, "");
    }
}

}  // namespace

int main() {
    integers();
    edges_of_small_integers();
    texts();
    containers();
    large_dict();
    shared_items_stay_apart();
    refusals();
    announced_lengths_are_not_believed();
    nesting_needs_no_stack();
    pieces_and_cuts();
    return tenure::testing::result();
}
