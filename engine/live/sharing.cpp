#include "engine/live/sharing.hpp"

#include <charconv>

#include "engine/errors.hpp"

namespace tenure::live {

namespace {

const std::string begin_of_names = "tenure-segment-1 ";

[[noreturn]] void refuse(const std::string& why) {
    throw UsageError("tenure: memory cannot be shared with another process: " + why);
}

std::string hexadecimal(const driver::IpcHandle& handle) {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : handle.bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

driver::IpcHandle from_hexadecimal(const std::string& text) {
    driver::IpcHandle handle{};
    if (text.size() != 2 * sizeof handle.bytes) refuse("the name is damaged");
    for (std::size_t i = 0; i < sizeof handle.bytes; ++i) {
        const char* begin = text.data() + 2 * i;
        if (std::from_chars(begin, begin + 2, handle.bytes[i], 16).ptr != begin + 2)
            refuse("the name is damaged");
    }
    return handle;
}

}  // namespace

SharedBlock share(Front& front, void* pointer) {
    if (is_forked()) refuse("this process was forked from one that used the GPU");
    SharedBlock shared;
    driver::IpcHandle handle{};
    bool is_chunked = false;
    bool exported = false;
    const auto address = reinterpret_cast<Address>(pointer);
    const bool found = front.with_live(address, [&](DeviceFront& device, Block* block) {
        is_chunked = block->segment->is_arena();
        exported = !is_chunked && device.device.export_segment(block->segment->address, handle);
        shared.offset = static_cast<Bytes>(address - block->segment->address);
    });
    if (!found) refuse("it is not a live block of tenure's");
    if (is_chunked)
        refuse(
            "it is mapped in chunks (elastic rules, expandable_segments); send a copy on the host "
            "(tensor.cpu()), or use tenure.install(\"torch\") without expandable_segments");
    if (!exported) refuse("the driver does not export it here");
    shared.name = begin_of_names + hexadecimal(handle);
    return shared;
}

BorrowedBlock::BorrowedBlock(Front& front, const std::string& name, int device)
    : front_(front.device(device)) {
    if (!name.starts_with(begin_of_names))
        refuse("the process that sent it does not allocate through this version of tenure");
    const driver::IpcHandle handle = from_hexadecimal(name.substr(begin_of_names.size()));
    const Held held(front_);
    base_ = front_.device.open_segment(handle);
    if (base_ == 0) refuse("the driver does not open it here");
}

BorrowedBlock::~BorrowedBlock() {
    if (is_forked()) return;
    front_.device.synchronize_all();
    const Held held(front_);
    front_.device.close_segment(base_);
}

}  // namespace tenure::live
