// Elastic rules: knowing when work on free memory is over, waiting for it, and giving memory back.
#include <algorithm>

#include "engine/allocator.hpp"
#include "engine/elastic_rules.hpp"
#include "engine/lanes.hpp"

namespace tenure {

// --- stamps and events ---------------------------------------------------------------------------

void Allocator::note_free(StreamClock& clock, Block* block) {
    const bool due = is_mark_due(clock);
    block->stamp = ++clock.frees;
    if (due) mark(clock, clock.frees);
}

// The first event behind the stamp, recorded now if there is none. Null: its work is over, be it
// that the stream had to be waited for because the device had no event.
const StreamClock::Mark* Allocator::mark(StreamClock& clock, std::uint64_t stamp) {
    if (clock.is_done(stamp)) return nullptr;
    for (const StreamClock::Mark& known : clock.marks)
        if (known.stamp >= stamp) return &known;
    const EventHandle event = device_.record_event(clock.stream);
    if (event == 0) {
        device_.synchronize(clock.stream);
        ++elastic_.chunks.meter.counts.host_waits;
        finish_marks(clock, clock.frees);
        return nullptr;
    }
    elastic_.chunks.meter.recorded_event();
    clock.marks.push_back({clock.frees, event});
    return &clock.marks.back();
}

void Allocator::finish_marks(StreamClock& clock, std::uint64_t stamp) {
    for (; !clock.marks.empty() && clock.marks.front().stamp <= stamp; clock.marks.pop_front())
        device_.release_event(clock.marks.front().event);
    clock.done = std::max(clock.done, stamp);
}

void Allocator::wait_until(StreamClock& clock, std::uint64_t stamp) {
    const StreamClock::Mark* over = mark(clock, stamp);
    if (!over) return;
    device_.wait(over->event);
    ++elastic_.chunks.meter.counts.host_waits;
    finish_marks(clock, over->stamp);
}

// pre: no capture is underway: events of a capturing stream cannot be asked about.
void Allocator::begin_slow_path(const Request& request) {
    const Bytes wanted = reserved_ + request.rounded;
    elastic_.is_scarce = elastic_rules::is_scarce(wanted, limit_in_force()) ||
                         elastic_rules::is_scarce(wanted, soft_target(request.rounded));
    for (auto& [stream, clock] : elastic_.clocks) {
        if (elastic_.is_scarce) mark(clock, clock.frees);
        while (!clock.marks.empty() && device_.is_done(clock.marks.front().event))
            finish_marks(clock, clock.marks.front().stamp);
    }
    drain_old_mappings();
}

void Allocator::drain_old_mappings() {
    std::erase_if(elastic_.old_mappings, [&](const OldMapping& old) {
        if (!old.clock->is_done(old.stamp)) return false;
        elastic_.chunks.unmap(old);
        return true;
    });
}

// --- waiting on the host -------------------------------------------------------------------------

// Until the victim's last use is over and it has no second mapping.
void Allocator::wait_for(const Victim& victim) {
    wait_until(*victim.home->clock, victim.stamp);
    for (const OldMapping& old : elastic_.old_mappings)
        if (old.chunk == victim.chunk) wait_until(*old.clock, old.stamp);
    drain_old_mappings();
}

bool Allocator::wait_for_old_mappings() {
    if (elastic_.old_mappings.empty()) return false;
    const OldMapping oldest = elastic_.old_mappings.front();
    wait_until(*oldest.clock, oldest.stamp);
    drain_old_mappings();
    return true;
}

// One event of a pending block; false if no block waits for any.
bool Allocator::wait_for_oldest_pending() {
    if (!deferred_.empty()) resume_deferred();
    std::deque<PendingEvent>* oldest = nullptr;
    for (auto& [stream, queue] : events_)
        if (!queue.empty() && (!oldest || queue.front().order < oldest->front().order))
            oldest = &queue;
    if (!oldest && held_.empty()) return false;
    ++elastic_.chunks.meter.counts.host_waits;
    if (!oldest) {
        complete(held_.front());
        return true;
    }
    const PendingEvent pending = oldest->front();
    device_.wait(pending.event);
    oldest->pop_front();
    retire(pending);
    return true;
}

// --- giving memory back --------------------------------------------------------------------------

// Idle chunks belong to no pool; the default one carries them in the statistics.
void Allocator::count_idle(Bytes change) {
    reserved_ += change;
    statistics_.reserved_bytes.change(false, change);
}

void Allocator::destroy(ChunkIndex chunk) {
    elastic_.chunks.destroy(chunk);
    ++statistics_.num_device_free;
}

void Allocator::release_idle(ChunkIndex chunk) {
    count_idle(-elastic_.chunks[chunk].size);
    destroy(chunk);
}

// Every chunk that lies wholly in free space of the half, pinned ranges aside.
void Allocator::release_elastic(PoolHalf& half) {
    if (captures_ == 0)
        while (wait_for_old_mappings()) {
        }
    while (!elastic_.chunks.idle().empty()) release_idle(elastic_.chunks.idle().back());
    for (auto& home : half.homes) {
        std::vector<Victim> victims;
        gather_victims(*home, Window{}, victims);
        if (victims.empty()) continue;
        // A private pool's memory may have been used by graphs, on this stream or another.
        if (captures_ > 0 || half.pool->is_private())
            device_.synchronize(home->stream);
        else
            wait_until(*home->clock, home->clock->frees);
        for (const Victim& victim : victims) {
            const Chunk chunk = elastic_.chunks[victim.chunk];
            if (chunk.old_mappings > 0) continue;
            elastic_.chunks.unmap(victim.chunk);
            let_go(*home, chunk.address, chunk.size);
            destroy(victim.chunk);
        }
    }
    drop_empty_arenas(half);
}

void Allocator::drop_empty_arenas(const PoolHalf& half) {
    for (std::size_t i = segments_.size(); i-- > 0;) {
        Segment* arena = segments_[i].get();
        Block* block = arena->first;
        if (arena->home->half != &half || block->is_mapped() || block->next) continue;
        const bool has_old = std::any_of(elastic_.old_mappings.begin(), elastic_.old_mappings.end(),
                                         [&](const OldMapping& old) { return old.arena == arena; });
        if (has_old) continue;
        arena->home->unmapped.erase(block);
        device_.unreserve(arena->address, arena->size);
        drop_segment(arena);
    }
}

void Allocator::release_all_chunks() {
    for (auto& [stream, clock] : elastic_.clocks)
        if (!clock.is_done(clock.frees)) device_.synchronize(stream);
    for (const OldMapping& old : elastic_.old_mappings) elastic_.chunks.unmap(old);
    for (ChunkIndex i = 1; i < elastic_.chunks.all().size(); ++i) {
        if (elastic_.chunks[i].handle == 0) continue;
        if (elastic_.chunks[i].arena) elastic_.chunks.unmap(i);
        elastic_.chunks.destroy(i);
    }
    for (auto& [stream, clock] : elastic_.clocks) finish_marks(clock, clock.frees);
}

}  // namespace tenure
