// Memory for other processes (CUDA IPC): one names a live block, another maps what it lies in.
//
// Only what came from cudaMalloc can be named, as under PyTorch's default rules; memory that is
// mapped in chunks cannot. The block must stay live until the last borrower let go, which PyTorch
// and its like see to.
#pragma once

#include <string>

#include "engine/live/front.hpp"

namespace tenure::live {

struct SharedBlock {
    std::string name;  // one line of text
    Bytes offset = 0;  // of the block, in what a borrower maps
};

// Names the live block. Throws UsageError: no such block, or its memory cannot be shared.
SharedBlock share(Front& front, void* pointer);

// What another process named, mapped here for as long as this lives.
class BorrowedBlock {
  public:
    // For a device of this process. Throws UsageError, with the reason, if it cannot be had.
    BorrowedBlock(Front& front, const std::string& name, int device);
    ~BorrowedBlock();  // waits for the device: its work may use the memory
    BorrowedBlock(const BorrowedBlock&) = delete;

    void* data() const { return reinterpret_cast<void*>(base_); }

  private:
    DeviceFront& front_;
    Address base_ = 0;
};

}  // namespace tenure::live
