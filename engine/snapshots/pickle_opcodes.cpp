#include "engine/snapshots/pickle_opcodes.hpp"

#include <array>
#include <utility>

namespace tenure {

namespace {

using enum Opcode;

constexpr std::array<std::pair<Opcode, const char*>, 68> kNames{{
    {mark, "MARK"},
    {stop, "STOP"},
    {pop, "POP"},
    {pop_mark, "POP_MARK"},
    {dup, "DUP"},
    {float_line, "FLOAT"},
    {int_line, "INT"},
    {binint, "BININT"},
    {binint1, "BININT1"},
    {long_line, "LONG"},
    {binint2, "BININT2"},
    {none, "NONE"},
    {persid, "PERSID"},
    {binpersid, "BINPERSID"},
    {reduce, "REDUCE"},
    {string_line, "STRING"},
    {binstring, "BINSTRING"},
    {short_binstring, "SHORT_BINSTRING"},
    {unicode_line, "UNICODE"},
    {binunicode, "BINUNICODE"},
    {append, "APPEND"},
    {build, "BUILD"},
    {global, "GLOBAL"},
    {dict, "DICT"},
    {empty_dict, "EMPTY_DICT"},
    {appends, "APPENDS"},
    {get_line, "GET"},
    {binget, "BINGET"},
    {inst, "INST"},
    {long_binget, "LONG_BINGET"},
    {list, "LIST"},
    {empty_list, "EMPTY_LIST"},
    {obj, "OBJ"},
    {put_line, "PUT"},
    {binput, "BINPUT"},
    {long_binput, "LONG_BINPUT"},
    {setitem, "SETITEM"},
    {tuple, "TUPLE"},
    {empty_tuple, "EMPTY_TUPLE"},
    {setitems, "SETITEMS"},
    {binfloat, "BINFLOAT"},
    {proto, "PROTO"},
    {newobj, "NEWOBJ"},
    {ext1, "EXT1"},
    {ext2, "EXT2"},
    {ext4, "EXT4"},
    {tuple1, "TUPLE1"},
    {tuple2, "TUPLE2"},
    {tuple3, "TUPLE3"},
    {newtrue, "NEWTRUE"},
    {newfalse, "NEWFALSE"},
    {long1, "LONG1"},
    {long4, "LONG4"},
    {binbytes, "BINBYTES"},
    {short_binbytes, "SHORT_BINBYTES"},
    {short_binunicode, "SHORT_BINUNICODE"},
    {binunicode8, "BINUNICODE8"},
    {binbytes8, "BINBYTES8"},
    {empty_set, "EMPTY_SET"},
    {additems, "ADDITEMS"},
    {frozenset, "FROZENSET"},
    {newobj_ex, "NEWOBJ_EX"},
    {stack_global, "STACK_GLOBAL"},
    {memoize, "MEMOIZE"},
    {frame, "FRAME"},
    {bytearray8, "BYTEARRAY8"},
    {next_buffer, "NEXT_BUFFER"},
    {readonly_buffer, "READONLY_BUFFER"},
}};

}  // namespace

const char* opcode_name(std::uint8_t opcode) {
    for (const auto& [code, name] : kNames) {
        if (static_cast<std::uint8_t>(code) == opcode) return name;
    }
    return "an unknown opcode";
}

}  // namespace tenure
