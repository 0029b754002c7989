// One NVIDIA GPU through the driver's calls. Segments are cuMemAlloc, chunks are cuMemCreate, and
// every call leaves the thread's current context and capture mode as they were.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/devices/device.hpp"
#include "engine/devices/driver_api.hpp"

namespace tenure {

class CudaDevice final : public Device {
  public:
    // Starts the driver and holds the device's primary context, which PyTorch uses too. Throws
    // UsageError where there is no driver or no such device.
    explicit CudaDevice(int number);

    static int count();  // devices that the driver shows; 0 without a driver
    // Whether a device says that it can map memory; asked without making it ready for use.
    static bool can_map(int number);

    Address create_segment(Bytes size) override;
    void destroy_segment(Address address, Bytes size) override;
    Address reserve(Bytes size, Bytes granule) override;
    void unreserve(Address address, Bytes size) override;
    ChunkHandle create_chunk(Bytes size) override;
    void destroy_chunk(ChunkHandle chunk, Bytes size) override;
    bool map_chunk(Address address, ChunkHandle chunk, Bytes size) override;
    void unmap_chunk(Address address, Bytes size) override;

    EventHandle record_event(Stream stream) override;
    bool is_done(EventHandle event) override;
    void wait(EventHandle event) override;
    void release_event(EventHandle event) override;
    void synchronize(Stream stream) override;
    bool make_stream_wait(Stream stream, EventHandle event) override;

    Bytes total_memory() const override { return total_; }

    int number() const { return number_; }
    bool has_virtual_memory() const { return virtual_memory_; }
    Bytes free_memory() const;  // of the whole device, as the driver says now
    std::string pci_bus_id() const;

    // Lets another device reach what is mapped here, now and later; false if it cannot, and then
    // nothing that is mapped later is for it.
    bool grant_access(int peer);

    // Memory for other processes, and of theirs, as segments.
    bool export_segment(Address address, driver::IpcHandle& handle) const;
    Address open_segment(const driver::IpcHandle& handle);  // 0 if it cannot
    void close_segment(Address address);
    void synchronize_all() const;  // all streams

    // What the last call that could have given memory ended with; out_of_memory unless the device
    // is in trouble.
    driver::Result last_result() const { return last_result_; }

  private:
    bool note(driver::Result result);
    EventHandle record_elsewhere(Stream stream);
    driver::Result set_access(Address address, Bytes size) const;
    driver::AllocationProperties properties() const;

    const driver::Functions& driver_;
    int number_;
    driver::DeviceNumber device_ = 0;
    driver::Context context_ = nullptr;
    Bytes total_ = 0;
    bool virtual_memory_ = false;
    bool has_peers_ = false;
    driver::Result last_result_ = driver::success;
    std::vector<driver::AccessDescription> access_;  // this device, then those granted
    std::map<Address, Bytes> mapped_;                // kept only where there are other devices
    std::vector<driver::EventPointer> spare_events_;
    std::set<driver::EventPointer> foreign_events_;  // of other devices' streams
};

}  // namespace tenure
