// The devices without a GPU keep the contract of device.hpp.
#include "engine/tests/device_contract.hpp"

#include "engine/devices/host_device.hpp"
#include "engine/devices/virtual_device.hpp"

using namespace tenure;
using testing::Subject;

namespace {

void finish(Device& device, Stream stream) { static_cast<ManualDevice&>(device).finish(stream); }
void stay_busy(Device&, Stream) {}  // streams of these devices end no work until told to

Subject virtual_subject(const char* name, Placement placement) {
    Subject subject{};
    subject.name = name;
    subject.make = [placement](Bytes capacity) {
        return std::make_unique<VirtualDevice>(capacity, placement);
    };
    subject.start_work = stay_busy;
    subject.finish_work = finish;
    return subject;
}

Subject host_subject() {
    Subject subject{};
    subject.name = "host";
    subject.make = [](Bytes capacity) { return std::make_unique<HostDevice>(capacity); };
    subject.write = [](Address at, unsigned char value) {
        *reinterpret_cast<volatile unsigned char*>(at) = value;
    };
    subject.read = [](Address at) { return *reinterpret_cast<volatile unsigned char*>(at); };
    subject.start_work = stay_busy;
    subject.finish_work = finish;
    return subject;
}

// The addresses that docs and recorded runs rely on.
void test_virtual_addresses() {
    VirtualDevice descending;
    CHECK_EQUAL(descending.create_segment(2 * MiB), 0x7f00'0000'0000u - 2 * MiB);
    CHECK_EQUAL(descending.create_segment(20 * MiB), 0x7f00'0000'0000u - 22 * MiB);
    VirtualDevice ascending(unlimited, Placement::ascending);
    CHECK_EQUAL(ascending.create_segment(2 * MiB), 0x7000'0000'0000u);
    CHECK_EQUAL(ascending.create_segment(20 * MiB), 0x7000'0000'0000u + 2 * MiB);
    CHECK_EQUAL(ascending.reserve(20 * MiB, 20 * MiB), 0x3'0200'0000u);
    CHECK_EQUAL(ascending.reserve(20 * MiB, 20 * MiB), 0x3'0200'0000u + 22 * MiB);
}

}  // namespace

int main() {
    testing::check_device_contract(virtual_subject("virtual, descending", Placement::descending));
    testing::check_device_contract(virtual_subject("virtual, ascending", Placement::ascending));
    testing::check_device_contract(host_subject());
    test_virtual_addresses();
    return testing::result();
}
