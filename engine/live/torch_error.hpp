// PyTorch's own exception, without its headers: what Python then sees is a torch.OutOfMemoryError.
#pragma once

#include <string>

namespace tenure::live {

// Throws c10::OutOfMemoryError with the text; std::runtime_error where PyTorch's libraries, or the
// parts of them that this takes, are not in the process.
[[noreturn]] void throw_torch_out_of_memory(const std::string& text);

// Whether the first of the two is what will be thrown.
bool has_torch_out_of_memory();

}  // namespace tenure::live
