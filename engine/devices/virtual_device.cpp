#include "engine/devices/virtual_device.hpp"

namespace tenure {

Address VirtualDevice::create_segment(Bytes size) {
    if (!take(size)) return 0;
    if (placement_ == Placement::ascending) {
        const Address address = ascending_;
        ascending_ += static_cast<Address>(size);
        return address;
    }
    descending_ -= static_cast<Address>(size);
    descending_ -= descending_ % (2 * MiB);
    return descending_;
}

Address VirtualDevice::reserve(Bytes size, Bytes) {
    const Address address = reservation_;
    reservation_ += static_cast<Address>(round_up(size, 2 * MiB) + 2 * MiB);
    return address;
}

}  // namespace tenure
