#include "engine/snapshots/pickle_machine.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "engine/errors.hpp"
#include "engine/snapshots/pickle_input.hpp"
#include "engine/snapshots/pickle_numbers.hpp"
#include "engine/snapshots/pickle_opcodes.hpp"
#include "engine/snapshots/pickle_text.hpp"

namespace tenure {
namespace {

// A name out of the file, fit for a message.
std::string printable(std::string_view name) {
    std::string shown;
    for (const char c : name.substr(0, 60)) shown += c > 0x20 && c < 0x7f ? c : '?';
    return shown;
}

template <typename Number>
Number load(const char* bytes) {
    Number number;
    std::memcpy(&number, bytes, sizeof(Number));
    return number;
}

constexpr std::size_t kLongestPush = 10;  // bytes of an opcode that `pushed` understands

// Reads an opcode that only pushes a value and returns its length; 0 for any other, and for
// whatever is unusual, which is left to the ordinary steps.
std::size_t pushed(const char* at, std::span<const Value> memo, Value& value) {
    const auto recall = [&](std::size_t index, std::size_t length) -> std::size_t {
        if (index >= memo.size()) return 0;
        value = memo[index];
        return value == Value::absent() ? 0 : length;
    };
    switch (static_cast<Opcode>(*at)) {
        case Opcode::binget:
            return recall(load<std::uint8_t>(at + 1), 2);
        case Opcode::long_binget:
            return recall(load<std::uint32_t>(at + 1), 5);
        case Opcode::binint1:
            value = Value::small(load<std::uint8_t>(at + 1));
            return 2;
        case Opcode::binint2:
            value = Value::small(load<std::uint16_t>(at + 1));
            return 3;
        case Opcode::binint:
            value = Value::small(load<std::int32_t>(at + 1));
            return 5;
        case Opcode::long1: {
            const std::size_t bytes = load<std::uint8_t>(at + 1);
            if (bytes == 0 || bytes > 7) return 0;
            value = Value::small(short_integer(at + 2, bytes));
            return 2 + bytes;
        }
        default:
            return 0;
    }
}

// Every pickle of a snapshot starts so: PROTO, or in protocols 0 and 1 a dict or a list.
void refuse_other_files(PickleInput& input) {
    const std::size_t known = input.peek(2);
    if (known == 0) throw BadInput("the file is empty; record and dump the snapshot again");
    const char first = input.window()[0];
    const char second = known < 2 ? '\0' : input.window()[1];
    const bool binary = first == '\x80' && second >= 0 && second <= 5;
    const bool text = first == '(' && (second == 'd' || second == 'l');
    if (!binary && !text && first != '}' && first != ']') {
        throw BadInput(
            "not a pickle; give a file from torch.cuda.memory._dump_snapshot (plain, .xz, .gz or "
            ".zst)");
    }
}

// The stack machine that pickle's opcodes describe. The stack holds values; marks are positions in
// it, and nothing below the last mark can be taken off.
class PickleMachine {
  public:
    explicit PickleMachine(ByteSource& source) : input_(source) {}

    Document run();

  private:
    void push_run();
    void step_until_stop();
    bool simple_step(Opcode opcode);
    bool text_step(Opcode opcode);
    bool number_step(Opcode opcode);
    bool fill_step(Opcode opcode);
    bool container_step(Opcode opcode);
    bool memo_step(Opcode opcode);
    [[noreturn]] void refuse_step(Opcode opcode);
    std::string called_name(Opcode opcode);

    // Numbers and text.
    void push_text(std::string_view text);
    void push_bytes(std::uint64_t count);

    // Stack.
    void push(Value value) { stack_.push_back(value); }
    void need(std::size_t count) const;
    Value pop();
    Value& top();
    std::span<const Value> above_mark() const;
    void drop_mark();
    void push_tuple(std::size_t count);
    Value container_below(std::size_t count, Kind kind, const char* wanted) const;
    Value container_below_mark(Kind kind, const char* wanted) const;
    Value checked_container(std::size_t position, std::size_t floor, Kind kind,
                            const char* wanted) const;
    void set_pairs(std::span<const Value> pairs, Value dict);

    void remember(std::uint64_t index);
    Value recall(std::uint64_t index) const;

    PickleInput input_;
    std::uint64_t opcode_at_ = 0;  // byte of the pickle
    std::uint8_t opcode_ = 0;
    std::size_t floor_ = 0;  // first stack position that may be taken off
    std::vector<Value> stack_;
    std::vector<std::size_t> marks_;
    std::vector<Value> memo_;
    Document document_;
};

Document PickleMachine::run() {
    refuse_other_files(input_);
    try {
        step_until_stop();
        document_.root = pop();
    } catch (const Refusal& refusal) {
        throw BadInput("not a readable pickle at byte " + std::to_string(opcode_at_) + " (" +
                       opcode_name(opcode_) + "): " + refusal.what());
    }
    document_.pickle_bytes = input_.offset();
    return std::move(document_);
}

// Four of five opcodes of a snapshot do no more than push a value. They are taken together as long
// as they come and the window lasts: with positions in locals that is twice as fast.
void PickleMachine::push_run() {
    Value run[64];
    std::size_t count = 0;
    const std::string_view window = input_.window();
    if (window.size() < kLongestPush) return;
    const char* at = window.data();
    const char* const last = at + window.size() - kLongestPush;
    const std::span<const Value> memo(memo_);
    while (at <= last && count < std::size(run)) {
        const std::size_t length = pushed(at, memo, run[count]);
        if (length == 0) break;
        at += length;
        ++count;
    }
    input_.take(static_cast<std::size_t>(at - window.data()));
    stack_.insert(stack_.end(), run, run + count);
}

void PickleMachine::step_until_stop() {
    for (;;) {
        push_run();
        opcode_at_ = input_.offset();
        opcode_ = input_.number<std::uint8_t>();
        const auto opcode = static_cast<Opcode>(opcode_);
        switch (opcode) {
            case Opcode::memoize:
                remember(memo_.size());
                break;
            case Opcode::mark:
                marks_.push_back(stack_.size());
                floor_ = stack_.size();
                break;
            case Opcode::short_binunicode:
                push_text(input_.take(input_.number<std::uint8_t>()));
                break;
            case Opcode::stop:
                return;
            default:
                if (!fill_step(opcode) && !container_step(opcode) && !simple_step(opcode) &&
                    !memo_step(opcode) && !text_step(opcode) && !number_step(opcode)) {
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
            if (const int version = input_.number<std::uint8_t>(); version > 5) {
                throw Refusal("protocol " + std::to_string(version) + " does not exist");
            }
            return true;
        case Opcode::frame:
            input_.number<std::uint64_t>();  // a promise of so many bytes, which nothing needs
            return true;
        default:
            return false;
    }
}

// Puts what is on top into the container below it.
bool PickleMachine::fill_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::setitems: {
            const std::span<const Value> pairs = above_mark();
            set_pairs(pairs, container_below_mark(Kind::dict, "a dict"));
            drop_mark();
            return true;
        }
        case Opcode::appends: {
            const std::span<const Value> items = above_mark();
            document_.append(container_below_mark(Kind::list, "a list"), items);
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
        case Opcode::append: {
            const Value item = top();
            document_.append(container_below(1, Kind::list, "a list"), {&item, 1});
            stack_.pop_back();
            return true;
        }
        case Opcode::additems: {
            const std::span<const Value> items = above_mark();
            document_.append(container_below_mark(Kind::rare, "a set"), items);
            drop_mark();
            return true;
        }
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
        case Opcode::tuple1:
            push_tuple(1);
            return true;
        case Opcode::tuple2:
            push_tuple(2);
            return true;
        case Opcode::tuple3:
            push_tuple(3);
            return true;
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
        case Opcode::binget:
            push(recall(input_.number<std::uint8_t>()));
            return true;
        case Opcode::long_binget:
            push(recall(input_.number<std::uint32_t>()));
            return true;
        case Opcode::binput:
            remember(input_.number<std::uint8_t>());
            return true;
        case Opcode::long_binput:
            remember(input_.number<std::uint32_t>());
            return true;
        case Opcode::put_line:
            remember(index_of_line(input_.line()));
            return true;
        case Opcode::get_line:
            push(recall(index_of_line(input_.line())));
            return true;
        default:
            return false;
    }
}

bool PickleMachine::text_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::binunicode:
            push_text(input_.take(input_.number<std::uint32_t>()));
            return true;
        case Opcode::binunicode8:
            push_text(input_.take(input_.number<std::uint64_t>()));
            return true;
        case Opcode::unicode_line:
            push(document_.text(decode_unicode_line(input_.line())));
            return true;
        case Opcode::string_line:
            push(document_.text(decode_quoted_line(input_.line())));
            return true;
        case Opcode::short_binstring:
            push_text(input_.take(input_.number<std::uint8_t>()));
            return true;
        case Opcode::binstring:
            push_text(input_.take(input_.number<std::uint32_t>()));
            return true;
        case Opcode::short_binbytes:
            push_bytes(input_.number<std::uint8_t>());
            return true;
        case Opcode::binbytes:
            push_bytes(input_.number<std::uint32_t>());
            return true;
        case Opcode::binbytes8:
        case Opcode::bytearray8:
            push_bytes(input_.number<std::uint64_t>());
            return true;
        default:
            return false;
    }
}

bool PickleMachine::number_step(Opcode opcode) {
    switch (opcode) {
        case Opcode::binint1:
            push(Value::small(input_.number<std::uint8_t>()));
            return true;
        case Opcode::binint2:
            push(Value::small(input_.number<std::uint16_t>()));
            return true;
        case Opcode::binint:
            push(Value::small(input_.number<std::int32_t>()));
            return true;
        case Opcode::long1:
            push(integer_of_bytes(document_, input_.take(input_.number<std::uint8_t>())));
            return true;
        case Opcode::long4:
            push(integer_of_bytes(document_, input_.take(input_.number<std::uint32_t>())));
            return true;
        case Opcode::int_line:
        case Opcode::long_line: {
            const std::string_view line = input_.line();
            if (opcode == Opcode::int_line && (line == "00" || line == "01")) {
                push(Value::boolean(line == "01"));
            } else {
                push(integer_of_line(document_, line));
            }
            return true;
        }
        case Opcode::binfloat: {
            std::uint64_t word = 0;
            for (const char byte : input_.take(8))
                word = word << 8 | static_cast<unsigned char>(byte);
            push(document_.real(std::bit_cast<double>(word)));
            return true;
        }
        case Opcode::float_line: {
            push(document_.real(real_of_line(input_.line())));
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
                          "; refused: a snapshot needs none, do not unpickle this file");
        case Opcode::next_buffer:
        case Opcode::readonly_buffer:
            throw Refusal("it wants data from outside the file; a snapshot needs none");
        default:
            throw Refusal("the file is damaged or no pickle at all");
    }
}

// " (posix.system)" where the opcode says what it would run.
std::string PickleMachine::called_name(Opcode opcode) {
    std::string module, name;
    if (opcode == Opcode::stack_global) {
        if (stack_.size() < floor_ + 2) return "";
        const Value below = stack_[stack_.size() - 2];
        if (!below.is(Kind::text) || !top().is(Kind::text)) return "";
        module = document_.text_of(below);
        name = document_.text_of(top());
    } else if (opcode == Opcode::global || opcode == Opcode::inst) {
        module = input_.line();
        name = input_.line();
    } else {
        return "";
    }
    return " (" + printable(module) + "." + printable(name) + ")";
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
    push(document_.text(is_utf8(text) ? text : mend_utf8(text)));
}

void PickleMachine::push_bytes(std::uint64_t count) {
    constexpr std::uint64_t kPiece = 65536;
    for (; count > kPiece; count -= kPiece) input_.take(kPiece);
    input_.take(count);
    push(document_.bytes());
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
    if (index > input_.offset()) {
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

}  // namespace

Document read_pickle(ByteSource& source) { return PickleMachine(source).run(); }

}  // namespace tenure
