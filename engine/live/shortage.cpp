// The words of an out-of-memory: PyTorch's line first, since programs read it, then the causes.
#include "engine/live/shortage.hpp"

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "engine/live/front.hpp"

namespace tenure::live {

namespace {

constexpr std::size_t most_holders = 10;

Bytes free_in(const Home& home) {
    Bytes bytes = 0;
    for (const Block* block = home.free.first(); block; block = home.free.after(block))
        bytes += block->size;
    return bytes;
}

void describe_pools(const Allocator& allocator, Shortage& shortage) {
    const Bytes rounded = torch_rules::round_size(allocator.settings(), shortage.requested);
    const bool small = torch_rules::is_small(rounded);
    for (const auto& [id, pool] : allocator.pools())
        for (PoolHalf* half : {&pool->small, &pool->large})
            for (const auto& home : half->homes) {
                const Bytes bytes = free_in(*home);
                if (pool->is_private()) shortage.private_free += bytes;
                if (id != shortage.pool) continue;
                if (home->stream != shortage.stream) {
                    shortage.other_streams += bytes;
                } else if (half->small == small) {
                    shortage.cached += bytes;
                    if (const Block* last = home->free.last()) shortage.largest = last->size;
                }
            }
}

void describe_holders(const Allocator& allocator, Shortage& shortage) {
    std::unordered_map<StackId, Shortage::Holder> holders;
    for (const BlockView& view : allocator.blocks()) {
        if (view.state == BlockState::pending) shortage.pending += view.size;
        if (view.state != BlockState::live) continue;
        Shortage::Holder& holder = holders[BlockNote::of(view.tag).stack];
        holder.stack = BlockNote::of(view.tag).stack;
        holder.bytes += view.size;
        ++holder.blocks;
    }
    for (const auto& [stack, holder] : holders) shortage.holders.push_back(holder);
    std::sort(shortage.holders.begin(), shortage.holders.end(),
              [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    if (shortage.holders.size() > most_holders) shortage.holders.resize(most_holders);
}

}  // namespace

std::string format_size(Bytes size) {
    char text[64];
    if (size <= KiB) return std::to_string(size) + " bytes";
    const auto bytes = static_cast<double>(size);
    if (size <= MiB)
        std::snprintf(text, sizeof text, "%.2f KiB", bytes / static_cast<double>(KiB));
    else if (size <= GiB)
        std::snprintf(text, sizeof text, "%.2f MiB", bytes / static_cast<double>(MiB));
    else
        std::snprintf(text, sizeof text, "%.2f GiB", bytes / static_cast<double>(GiB));
    return text;
}

void describe(const Allocator& allocator, Shortage& shortage) {
    const Statistics& statistics = allocator.statistics();
    shortage.rules = allocator.settings().rules;
    shortage.torch_version = allocator.settings().torch_version;
    shortage.limit = allocator.settings().limit;
    shortage.allocated = statistics.allocated_bytes.all.current;
    shortage.reserved = allocator.reserved();
    describe_pools(allocator, shortage);
    describe_holders(allocator, shortage);
}

std::string first_line(const Shortage& s) {
    if (s.segment == 0 || s.requested >= torch_rules::refuse_at)
        return "CUDA out of memory. Tried to allocate more than 1EB memory.";
    std::string text = "CUDA out of memory. Tried to allocate " + format_size(s.segment) +
                       ". GPU " + std::to_string(s.device) + " has a total capacity of " +
                       format_size(s.total) + " of which " + format_size(s.free) + " is free. " +
                       processes_on(s.pci_bus_id);
    if (s.limit != unlimited) text += format_size(s.limit) + " allowed; ";
    text += "Of the allocated memory " + format_size(s.allocated + s.private_free) +
            " is allocated by PyTorch, ";
    if (s.private_free > 0)
        text += "with " + format_size(s.private_free) +
                " allocated in private pools (e.g., CUDA Graphs), ";
    text += "and " + format_size(s.reserved - s.allocated - s.private_free) +
            " is reserved by PyTorch but unallocated.";
    if (s.rules == Rules::elastic) return text;  // the advice is about PyTorch's own rules
    text +=
        " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
        "expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (";
    text += s.torch_version >= TorchVersion{2, 8}
                ? "https://docs.pytorch.org/docs/stable/notes/cuda.html"
                  "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
                : "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables";
    return text + ")";
}

std::string causes(const Shortage& s) {
    std::string text = "\n\ntenure: " + format_size(s.requested) + " were asked for on stream " +
                       std::to_string(s.stream) + "; allocated " + format_size(s.allocated) +
                       ", reserved " + format_size(s.reserved);
    if (s.limit != unlimited) text += " of the limit of " + format_size(s.limit);
    text += ".";
    if (s.limit != unlimited && s.allocated + s.requested > s.limit)
        text += "\n- The live tensors and this request exceed the limit by " +
                format_size(s.allocated + s.requested - s.limit) +
                ": no arrangement of memory can serve it.";
    else if (s.limit == unlimited && s.requested > s.free + (s.reserved - s.allocated))
        text +=
            "\n- The request exceeds all that is free, on the device and in the cache: no "
            "arrangement of memory can serve it.";
    else
        text += "\n- Free in this stream's cache: " + format_size(s.cached) +
                "; the largest piece: " + format_size(s.largest) + ".";
    if (s.other_streams > 0)
        text += "\n- Free in the cache of other streams: " + format_size(s.other_streams) + ".";
    if (s.pending > 0)
        text += "\n- Freed, but still in use by other streams (record_stream): " +
                format_size(s.pending) + ".";
    if (s.private_free > 0)
        text += "\n- Free in private pools, where only their graphs may use it: " +
                format_size(s.private_free) + ".";
    const Bytes others = s.total - s.free - s.reserved;
    if (others > GiB)
        text +=
            "\n- In use on the device outside this cache (contexts, kernels, other "
            "processes): " +
            format_size(others) + ".";
    return text;
}

}  // namespace tenure::live
