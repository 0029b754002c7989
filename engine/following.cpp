// Following the record, in the replay of a recording that began late: what it did that the state
// before its first event does not explain.
#include "engine/allocator.hpp"

namespace tenure {

using namespace torch_rules;

std::vector<Address> Allocator::collectable() const {
    std::vector<Address> addresses;
    for (const Block* block : garbage()) addresses.push_back(block->address);
    return addresses;
}

bool Allocator::release_at(Address address) {
    for (auto& segment : segments_) {
        if (address < segment->address ||
            address - segment->address >= static_cast<Address>(segment->size))
            continue;
        Block* block = segment->first;
        while (address >= block->end()) block = block->next;
        if (block->state != BlockState::cached) return false;
        if (!segment->is_arena() && block->is_split()) return false;
        if (segment->is_arena())
            release_in_arena(block);
        else
            release_segment(block);
        return true;
    }
    return false;
}

// A segment made for the request just before the recording began: the request gets it whatever a
// search would find.
Block* Allocator::allocate_whole(Address address, Bytes requested, Stream stream, PoolId pool) {
    const Request request = plan(requested, stream, pool);
    for (auto& segment : segments_) {
        Block* block = segment->first;
        if (block->address != address || segment->is_arena()) continue;
        if (segment->home != request.home || segment->size != request.segment) return nullptr;
        if (block->state != BlockState::cached || block->is_split()) return nullptr;
        request.home->free.erase(block);
        return hand_out(block, request);
    }
    return nullptr;
}

// A request that was searched for, in vain, before the recording began.
Block* Allocator::allocate_new(Bytes requested, Stream stream, PoolId pool) {
    const Request request = plan(requested, stream, pool);
    Block* block = grow(request, false);
    if (!block) fail(request);
    return hand_out(block, request);
}

}  // namespace tenure
