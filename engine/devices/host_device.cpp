#include "engine/devices/host_device.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace tenure {

namespace {

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

// A new range at any address, or exactly at `at`; 0 on failure. Untouched pages cost nothing.
Address map_range(Address at, Bytes size, int protection, int flags, int file = -1) {
    if (at != 0) flags |= MAP_FIXED;
    void* range = mmap(pointer(at), static_cast<std::size_t>(size), protection, flags, file, 0);
    return range == MAP_FAILED ? 0 : reinterpret_cast<Address>(range);
}

constexpr int private_memory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

Address HostDevice::create_segment(Bytes size) {
    if (!take(size)) return 0;
    const Address address = map_range(0, size, PROT_READ | PROT_WRITE, private_memory);
    if (address == 0) give_back(size);
    return address;
}

void HostDevice::destroy_segment(Address address, Bytes size) {
    finish_all();
    munmap(pointer(address), static_cast<std::size_t>(size));
    give_back(size);
}

Address HostDevice::reserve(Bytes size, Bytes) {
    return map_range(0, size, PROT_NONE, private_memory);
}

void HostDevice::unreserve(Address address, Bytes size) {
    munmap(pointer(address), static_cast<std::size_t>(size));
}

ChunkHandle HostDevice::create_chunk(Bytes size) {
    if (!take(size)) return 0;
    const int file = memfd_create("tenure-chunk", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, size) == 0) return static_cast<ChunkHandle>(file) + 1;
    if (file >= 0) close(file);
    give_back(size);
    return 0;
}

void HostDevice::destroy_chunk(ChunkHandle chunk, Bytes size) {
    close(static_cast<int>(chunk - 1));
    give_back(size);
}

bool HostDevice::map_chunk(Address address, ChunkHandle chunk, Bytes size) {
    return map_range(address, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                     static_cast<int>(chunk - 1)) != 0;
}

void HostDevice::unmap_chunk(Address address, Bytes size) {
    map_range(address, size, PROT_NONE, private_memory);
}

}  // namespace tenure
