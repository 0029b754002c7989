// The whole surface between the engine and a device: memory that fails politely, and events.
//
// Every call that can run out returns 0 or false and changes nothing; the engine must be able to
// carry on from any such failure. No call may call back into the engine.
#pragma once

#include "engine/units.hpp"

namespace tenure {

using ChunkHandle = std::uint64_t;  // one physical piece of memory; 0 is none
using EventHandle = std::uint64_t;  // a point in a stream's work; 0 is none

class Device {
  public:
    virtual ~Device() = default;

    // pre: size > 0, a multiple of 2 MiB. post: memory at the address, aligned to 512; or 0.
    virtual Address create_segment(Bytes size) = 0;
    // pre: from create_segment, no work pending that the device does not wait for itself.
    virtual void destroy_segment(Address address, Bytes size) = 0;

    // pre: size > 0, a multiple of `granule`. post: addresses without memory; or 0.
    virtual Address reserve(Bytes size, Bytes granule) = 0;
    // pre: from reserve, nothing mapped in it.
    virtual void unreserve(Address address, Bytes size) = 0;

    // post: physical memory of `size` bytes, not yet visible anywhere; or 0.
    virtual ChunkHandle create_chunk(Bytes size) = 0;
    // pre: not mapped.
    virtual void destroy_chunk(ChunkHandle chunk, Bytes size) = 0;
    // pre: [address, address + size) is reserved and unmapped. post: readable and writable; or
    // false.
    virtual bool map_chunk(Address address, ChunkHandle chunk, Bytes size) = 0;
    // pre: mapped by one map_chunk call. post: addresses stay reserved, the chunk stays alive.
    virtual void unmap_chunk(Address address, Bytes size) = 0;

    // post: an event behind all work queued on the stream so far; or 0, then the engine waits.
    virtual EventHandle record_event(Stream stream) = 0;
    virtual bool is_done(EventHandle event) = 0;
    virtual void wait(EventHandle event) = 0;
    virtual void release_event(EventHandle event) = 0;
    virtual void synchronize(Stream stream) = 0;
    // post: work queued on the stream from now on begins after the event; or false, and the host
    // waits instead.
    virtual bool make_stream_wait(Stream stream, EventHandle event) = 0;
    // Whether a chunk may be mapped at a second address while work through the first still runs.
    virtual bool can_alias() const { return true; }

    // Bytes of memory in all; used for messages only.
    virtual Bytes total_memory() const = 0;
};

}  // namespace tenure
