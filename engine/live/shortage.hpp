// A request that could not be served, with what is known about why.
#pragma once

#include <string>
#include <vector>

#include "engine/allocator.hpp"
#include "engine/live/event_ring.hpp"

namespace tenure::live {

struct Shortage {
    // Live blocks that one stack made.
    struct Holder {
        StackId stack = 0;
        Bytes bytes = 0;  // allocated
        std::int64_t blocks = 0;
    };

    int device = 0;
    Bytes requested = 0;
    Bytes segment = 0;  // what PyTorch would have asked the driver for
    Stream stream = 0;
    PoolId pool;
    Rules rules = Rules::torch;
    TorchVersion torch_version;

    Bytes total = 0;  // of the device
    Bytes free = 0;   // on the device, for anybody
    Bytes limit = unlimited;

    Bytes allocated = 0;      // in live blocks
    Bytes reserved = 0;       // what the driver gave us
    Bytes pending = 0;        // in blocks that wait for events
    Bytes cached = 0;         // free in the request's own pool and stream
    Bytes largest = 0;        // free block among these
    Bytes other_streams = 0;  // free in the request's pool on other streams
    Bytes private_free = 0;   // free in private pools

    std::string pci_bus_id;
    std::vector<Holder> holders;  // most bytes first
};

// Fills in what the allocator's own state says. The fields of the request are set before.
void describe(const Allocator& allocator, Shortage& shortage);

// PyTorch's own message to the letter, up to the advice that only its own rules make true.
std::string first_line(const Shortage& shortage);
// What the counts mean, one statement a line, each beginning with a line break.
std::string causes(const Shortage& shortage);

// As PyTorch writes sizes in messages: "20.00 MiB".
std::string format_size(Bytes size);

// "Including non-PyTorch memory, this process has 3.10 GiB memory in use. " and the like for other
// processes, as NVIDIA's management library says; empty without it.
std::string processes_on(const std::string& pci_bus_id);

}  // namespace tenure::live
