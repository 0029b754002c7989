#include "engine/snapshots/pickle_machine.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/errors.hpp"
#include "engine/snapshots/pickle_opcodes.hpp"
#include "engine/snapshots/pickle_text.hpp"

namespace tenure {
namespace {

constexpr std::size_t kLongestInteger = 1024;  // bytes; no count in a snapshot needs more than 8

// A name out of the file, fit for a message.
std::string printable(std::string_view name) {
    std::string shown;
    for (const char c : name.substr(0, 60)) shown += c > 0x20 && c < 0x7f ? c : '?';
    return shown;
}

// The stack machine that pickle's opcodes describe. The stack holds values; marks are positions in
// it, and nothing below the last mark can be taken off.
class PickleMachine {
  public:
    explicit PickleMachine(std::span<const std::byte> bytes)
        : begin_(reinterpret_cast<const unsigned char*>(bytes.data())),
          next_(begin_),
          end_(begin_ + bytes.size()) {}

    Document run();

  private:
    void step_until_stop();
    bool simple_step(Opcode opcode);
    bool text_step(Opcode opcode);
    bool number_step(Opcode opcode);
    bool container_step(Opcode opcode);
    bool memo_step(Opcode opcode);
    [[noreturn]] void refuse_step(Opcode opcode);
    std::string called_name(Opcode opcode) const;

    // Input.
    std::size_t left() const { return static_cast<std::size_t>(end_ - next_); }
    const unsigned char* take(std::uint64_t count);
    std::string_view take_text(std::uint64_t count);
    std::string_view take_line();
    template <typename Number>
    Number take_number();
    std::int64_t take_decimal();
    std::int64_t short_integer(const unsigned char* bytes, std::size_t count) const;

    // Stack.
    void push(Value value) { stack_.push_back(value); }
    void need(std::size_t count) const;
    Value pop();
    Value& top();
    std::span<const Value> above_mark() const;
    void drop_mark();
    void push_text(std::string_view text);
    void push_integer_bytes(std::string_view bytes);
    void push_decimal(std::string_view line);
    void push_tuple(std::size_t count);
    Value container_below(std::size_t count, Kind kind, const char* wanted) const;
    Value container_below_mark(Kind kind, const char* wanted) const;
    Value checked_container(std::size_t position, std::size_t floor, Kind kind,
                            const char* wanted) const;
    void set_pairs(std::span<const Value> pairs, Value dict);

    void remember(std::uint64_t index);
    Value recall(std::uint64_t index) const;

    const unsigned char* begin_;
    const unsigned char* next_;
    const unsigned char* end_;
    const unsigned char* opcode_at_ = nullptr;
    std::size_t floor_ = 0;  // first stack position that may be taken off
    std::vector<Value> stack_;
    std::vector<std::size_t> marks_;
    std::vector<Value> memo_;
    Document document_;
};

Document PickleMachine::run() {
    try {
        step_until_stop();
        document_.root = pop();
    } catch (const Refusal& refusal) {
        const bool started = opcode_at_ != nullptr && opcode_at_ < end_;
        const std::string at = started ? " at byte " + std::to_string(opcode_at_ - begin_) +
                                             " (opcode " + opcode_name(*opcode_at_) + ")"
                                       : "";
        throw BadInput("not a readable pickle" + at + ": " + refusal.what());
    }
    return std::move(document_);
}

// Nine of ten opcodes of a snapshot are the few spelled out here.
void PickleMachine::step_until_stop() {
    for (;;) {
        if (next_ == end_) throw Refusal("it ends too early; copy the file again");
        opcode_at_ = next_;
        const auto opcode = static_cast<Opcode>(*next_++);
        switch (opcode) {
            case Opcode::binget:
                push(recall(take_number<std::uint8_t>()));
                break;
            case Opcode::long_binget:
                push(recall(take_number<std::uint32_t>()));
                break;
            case Opcode::memoize:
                remember(memo_.size());
                break;
            case Opcode::mark:
                marks_.push_back(stack_.size());
                floor_ = stack_.size();
                break;
            case Opcode::binint1:
                push(Value::small(take_number<std::uint8_t>()));
                break;
            case Opcode::binint2:
                push(Value::small(take_number<std::uint16_t>()));
                break;
            case Opcode::binint:
                push(Value::small(take_number<std::int32_t>()));
                break;
            case Opcode::long1: {
                const std::size_t count = take_number<std::uint8_t>();
                if (count > 0 && count <= 8 && left() >= 8) {
                    push(document_.integer(short_integer(take(count), count)));
                } else {
                    push_integer_bytes(take_text(count));
                }
                break;
            }
            case Opcode::short_binunicode:
                push_text(take_text(take_number<std::uint8_t>()));
                break;
            case Opcode::stop:
                return;
            default:
                if (!simple_step(opcode) && !container_step(opcode) && !memo_step(opcode) &&
                    !text_step(opcode) && !number_step(opcode)) {
                    refuse_step(opcode);
                }
        }
    }
}

bool PickleMachine::simple_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::none:
            push(Value::none());
            return true;
        case Opcode::newtrue:
            push(Value::boolean(true));
            return true;
        case Opcode::newfalse:
            push(Value::boolean(false));
            return true;
        case Opcode::pop:
            if (stack_.size() == floor_ && !marks_.empty()) {
                drop_mark();
            } else {
                pop();
            }
            return true;
        case Opcode::pop_mark:
            above_mark();
            drop_mark();
            return true;
        case Opcode::dup:
            push(top());
            return true;
        case Opcode::proto:
            if (const int version = take_number<std::uint8_t>(); version > 5) {
                throw Refusal("protocol " + std::to_string(version) + " does not exist");
            }
            return true;
        case Opcode::frame:
            if (take_number<std::uint64_t>() > left()) {
                throw Refusal("it ends too early; copy the file again");
            }
            return true;
        default:
            return false;
    }
}

bool PickleMachine::container_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::empty_dict:
            push(document_.new_dict());
            return true;
        case Opcode::empty_list:
            push(document_.new_list());
            return true;
        case Opcode::empty_set:
            push(document_.new_set());
            return true;
        case Opcode::empty_tuple:
            push(document_.tuple({}));
            return true;
        case Opcode::setitems: {
            const std::span<const Value> pairs = above_mark();
            set_pairs(pairs, container_below_mark(Kind::dict, "a dict"));
            drop_mark();
            return true;
        }
        case Opcode::setitem: {
            need(2);
            const std::span<const Value> pair(stack_.end() - 2, stack_.end());
            set_pairs(pair, container_below(2, Kind::dict, "a dict"));
            stack_.resize(stack_.size() - 2);
            return true;
        }
        case Opcode::appends: {
            const std::span<const Value> items = above_mark();
            document_.append(container_below_mark(Kind::list, "a list"), items);
            drop_mark();
            return true;
        }
        case Opcode::append: {
            need(1);
            const Value item = top();
            document_.append(container_below(1, Kind::list, "a list"), {&item, 1});
            stack_.pop_back();
            return true;
        }
        case Opcode::tuple1:
            push_tuple(1);
            return true;
        case Opcode::tuple2:
            push_tuple(2);
            return true;
        case Opcode::tuple3:
            push_tuple(3);
            return true;
        case Opcode::additems: {
            const std::span<const Value> items = above_mark();
            document_.append(container_below_mark(Kind::rare, "a set"), items);
            drop_mark();
            return true;
        }
        case Opcode::tuple:
        case Opcode::frozenset:
        case Opcode::list:
        case Opcode::dict: {
            const std::span<const Value> items = above_mark();
            Value made = Value::none();
            if (opcode == Opcode::tuple) made = document_.tuple(items);
            if (opcode == Opcode::frozenset) made = document_.set(items);
            if (opcode == Opcode::list) document_.append(made = document_.new_list(), items);
            if (opcode == Opcode::dict) set_pairs(items, made = document_.new_dict());
            drop_mark();
            push(made);
            return true;
        }
        default:
            return false;
    }
}

bool PickleMachine::memo_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::binput:
            remember(take_number<std::uint8_t>());
            return true;
        case Opcode::long_binput:
            remember(take_number<std::uint32_t>());
            return true;
        case Opcode::put_line:
            remember(static_cast<std::uint64_t>(take_decimal()));
            return true;
        case Opcode::get_line:
            push(recall(static_cast<std::uint64_t>(take_decimal())));
            return true;
        default:
            return false;
    }
}

bool PickleMachine::text_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::binunicode:
            push_text(take_text(take_number<std::uint32_t>()));
            return true;
        case Opcode::binunicode8:
            push_text(take_text(take_number<std::uint64_t>()));
            return true;
        case Opcode::unicode_line:
            push(document_.owned_text(decode_unicode_line(take_line())));
            return true;
        case Opcode::string_line:
            push(document_.owned_text(decode_quoted_line(take_line())));
            return true;
        case Opcode::short_binstring:
            push_text(take_text(take_number<std::uint8_t>()));
            return true;
        case Opcode::binstring:
            push_text(take_text(take_number<std::uint32_t>()));
            return true;
        case Opcode::short_binbytes:
            push(document_.bytes(take_text(take_number<std::uint8_t>())));
            return true;
        case Opcode::binbytes:
            push(document_.bytes(take_text(take_number<std::uint32_t>())));
            return true;
        case Opcode::binbytes8:
        case Opcode::bytearray8:
            push(document_.bytes(take_text(take_number<std::uint64_t>())));
            return true;
        default:
            return false;
    }
}

bool PickleMachine::number_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::long4:
            push_integer_bytes(take_text(take_number<std::uint32_t>()));
            return true;
        case Opcode::int_line:
        case Opcode::long_line: {
            const std::string_view line = take_line();
            if (opcode == Opcode::int_line && (line == "00" || line == "01")) {
                push(Value::boolean(line == "01"));
            } else {
                push_decimal(line);
            }
            return true;
        }
        case Opcode::binfloat: {
            const unsigned char* bytes = take(8);
            std::uint64_t word = 0;
            for (int i = 0; i < 8; ++i) word = word << 8 | bytes[i];
            push(document_.real(std::bit_cast<double>(word)));
            return true;
        }
        case Opcode::float_line: {
            const std::string_view line = take_line();
            double number = 0;
            const auto [end, error] =
                std::from_chars(line.data(), line.data() + line.size(), number);
            if (error != std::errc() || end != line.data() + line.size()) {
                throw Refusal("a float that is not a number");
            }
            push(document_.real(number));
            return true;
        }
        default:
            return false;
    }
}

void PickleMachine::refuse_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::global:
        case Opcode::stack_global:
        case Opcode::inst:
        case Opcode::reduce:
        case Opcode::build:
        case Opcode::obj:
        case Opcode::newobj:
        case Opcode::newobj_ex:
        case Opcode::ext1:
        case Opcode::ext2:
        case Opcode::ext4:
        case Opcode::persid:
        case Opcode::binpersid:
            throw Refusal("it asks to run code" + called_name(opcode) +
                          "; refused, a snapshot needs none: do not open this file");
        case Opcode::next_buffer:
        case Opcode::readonly_buffer:
            throw Refusal("it wants data from outside the file; a snapshot needs none");
        default:
            throw Refusal("the file is damaged or no pickle at all");
    }
}

// " (posix.system)" where the opcode says what it would run.
std::string PickleMachine::called_name(Opcode opcode) const {
    if (opcode == Opcode::stack_global) {
        if (stack_.size() < floor_ + 2) return "";
        const Value module = stack_[stack_.size() - 2];
        const Value name = stack_.back();
        if (!module.is(Kind::text) || !name.is(Kind::text)) return "";
        return " (" + printable(document_.text_of(module)) + "." +
               printable(document_.text_of(name)) + ")";
    }
    if (opcode != Opcode::global && opcode != Opcode::inst) return "";
    const std::string_view rest(reinterpret_cast<const char*>(next_),
                                std::min<std::size_t>(left(), 200));
    const std::size_t first = rest.find('\n');
    if (first == std::string_view::npos) return "";
    const std::size_t second = rest.find('\n', first + 1);
    if (second == std::string_view::npos) return "";
    return " (" + printable(rest.substr(0, first)) + "." +
           printable(rest.substr(first + 1, second - first - 1)) + ")";
}

const unsigned char* PickleMachine::take(std::uint64_t count) {
    if (count > left()) {
        throw Refusal("it announces " + std::to_string(count) + " bytes and only " +
                      std::to_string(left()) + " are left; copy the file again");
    }
    const unsigned char* taken = next_;
    next_ += count;
    return taken;
}

std::string_view PickleMachine::take_text(std::uint64_t count) {
    return {reinterpret_cast<const char*>(take(count)), static_cast<std::size_t>(count)};
}

std::string_view PickleMachine::take_line() {
    const void* end = left() == 0 ? nullptr : std::memchr(next_, '\n', left());
    if (end == nullptr) throw Refusal("a line without an end; copy the file again");
    std::string_view line =
        take_text(static_cast<std::uint64_t>(static_cast<const unsigned char*>(end) - next_));
    ++next_;
    return line;
}

template <typename Number>
Number PickleMachine::take_number() {
    static_assert(std::endian::native == std::endian::little);
    Number number;
    std::memcpy(&number, take(sizeof(Number)), sizeof(Number));
    return number;
}

// The argument of GET and PUT; never negative.
std::int64_t PickleMachine::take_decimal() {
    const std::string_view line = take_line();
    std::int64_t number = -1;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
    if (error != std::errc() || end != line.data() + line.size() || number < 0) {
        throw Refusal("a memo index that is not a number");
    }
    return number;
}

// Two's complement, little endian; eight bytes are readable, though not all of them belong to it.
std::int64_t PickleMachine::short_integer(const unsigned char* bytes, std::size_t count) const {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    const auto unused = static_cast<int>(8 * (8 - count));
    return static_cast<std::int64_t>(word << unused) >> unused;
}

void PickleMachine::need(std::size_t count) const {
    if (stack_.size() - floor_ < count) throw Refusal("it takes a value that is not there");
}

Value PickleMachine::pop() {
    need(1);
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
}

Value& PickleMachine::top() {
    need(1);
    return stack_.back();
}

std::span<const Value> PickleMachine::above_mark() const {
    if (marks_.empty()) throw Refusal("it goes back to a mark that is not there");
    return std::span<const Value>(stack_).subspan(marks_.back());
}

void PickleMachine::drop_mark() {
    stack_.resize(marks_.back());
    marks_.pop_back();
    floor_ = marks_.empty() ? 0 : marks_.back();
}

void PickleMachine::push_text(std::string_view text) {
    push(is_utf8(text) ? document_.text(text) : document_.owned_text(mend_utf8(text)));
}

void PickleMachine::push_integer_bytes(std::string_view bytes) {
    if (bytes.size() > kLongestInteger) throw Refusal("an integer of more than 1024 bytes");
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    const char sign = negative ? '\xff' : '\0';
    while (!bytes.empty() && bytes.back() == sign) bytes.remove_suffix(1);
    unsigned char word[8];
    std::memset(word, sign, sizeof(word));
    if (bytes.size() > 8) return push(Value::of(Rare::huge_integer, 0));
    if (!bytes.empty()) std::memcpy(word, bytes.data(), bytes.size());
    const std::int64_t number = short_integer(word, 8);
    if (negative && number >= 0) return push(Value::of(Rare::huge_integer, 0));
    push(negative ? document_.integer(number)
                  : document_.unsigned_integer(static_cast<std::uint64_t>(number)));
}

void PickleMachine::push_decimal(std::string_view line) {
    if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
    if (line.size() > kLongestInteger) throw Refusal("an integer of more than 1024 digits");
    const char* end = line.data() + line.size();
    std::int64_t number = 0;
    if (const auto read = std::from_chars(line.data(), end, number);
        read.ec == std::errc() && read.ptr == end) {
        return push(document_.integer(number));
    }
    std::uint64_t large = 0;
    const auto read = std::from_chars(line.data(), end, large);
    if (read.ec == std::errc() && read.ptr == end) return push(document_.unsigned_integer(large));
    const std::size_t digits = line.starts_with('-') ? 1 : 0;
    if (line.size() == digits ||
        line.find_first_not_of("0123456789", digits) != std::string_view::npos) {
        throw Refusal("an integer that is not a number");
    }
    push(Value::of(Rare::huge_integer, 0));
}

void PickleMachine::push_tuple(std::size_t count) {
    need(count);
    const Value made = document_.tuple(std::span<const Value>(stack_).last(count));
    stack_.resize(stack_.size() - count);
    push(made);
}

// The container that the topmost values are to be put into.
Value PickleMachine::container_below(std::size_t count, Kind kind, const char* wanted) const {
    return checked_container(stack_.size() - count, floor_, kind, wanted);
}

// The container that everything above the last mark is to be put into.
Value PickleMachine::container_below_mark(Kind kind, const char* wanted) const {
    const std::size_t floor = marks_.size() >= 2 ? marks_[marks_.size() - 2] : 0;
    return checked_container(marks_.back(), floor, kind, wanted);
}

Value PickleMachine::checked_container(std::size_t position, std::size_t floor, Kind kind,
                                       const char* wanted) const {
    if (position <= floor) throw Refusal("it takes a value that is not there");
    const Value container = stack_[position - 1];
    const bool right = kind == Kind::rare ? container.is(Rare::set) : container.is(kind);
    if (!right) {
        throw Refusal("it puts items into " + document_.describe(container) + " where " + wanted +
                      " is needed");
    }
    return container;
}

void PickleMachine::set_pairs(std::span<const Value> pairs, Value dict) {
    if (pairs.size() % 2 != 0) throw Refusal("a dict key without its value");
    if (!pairs.empty()) document_.assign(dict, pairs);
}

// Python numbers what it remembers in order. A gap is let through as far as there were bytes, so
// that a huge index cannot ask for memory.
void PickleMachine::remember(std::uint64_t index) {
    const Value value = top();
    if (index == memo_.size()) {
        memo_.push_back(value);
        return;
    }
    if (index > static_cast<std::uint64_t>(next_ - begin_)) {
        throw Refusal("memo index " + std::to_string(index) +
                      " is larger than the number of objects so far");
    }
    if (index > memo_.size()) memo_.resize(index + 1, Value::absent());
    memo_[index] = value;
}

Value PickleMachine::recall(std::uint64_t index) const {
    if (index >= memo_.size() || memo_[index] == Value::absent()) {
        throw Refusal("memo " + std::to_string(index) + " was never set");
    }
    return memo_[index];
}

// Every pickle of a snapshot starts so: PROTO, or in protocols 0 and 1 a dict or a list.
bool looks_like_pickle(std::span<const std::byte> bytes) {
    const auto first = static_cast<unsigned char>(bytes[0]);
    if (first == 0x80) return bytes.size() < 2 || static_cast<unsigned char>(bytes[1]) <= 5;
    if (first == '}' || first == ']') return true;
    const auto second = bytes.size() < 2 ? '\0' : static_cast<char>(bytes[1]);
    return first == '(' && (second == 'd' || second == 'l');
}

}  // namespace

Document read_pickle(std::span<const std::byte> bytes) {
    if (bytes.empty()) throw BadInput("the file is empty; record and dump the snapshot again");
    if (!looks_like_pickle(bytes)) {
        throw BadInput(
            "not a pickle; give a file from torch.cuda.memory._dump_snapshot (plain, .xz, .gz or "
            ".zst)");
    }
    return PickleMachine(bytes).run();
}

}  // namespace tenure
