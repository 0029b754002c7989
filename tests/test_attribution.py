"""Blocks of the allocator met with holders: every allocated byte under one heading, none twice."""

from __future__ import annotations

import numpy as np
import pytest

from recorder import MIB, Recorder
from tenure.lifetimes.chains import Heading
from tenure.lifetimes.holders import Holder, Holders
from tenure.live.runs.attribution import ELSEWHERE, GRAPHS, ROUNDING, UNKNOWN, attribute, event_at
from tenure.live.runs.naming import name_births
from tenure.live.runs.record import Look, Record
from tenure.live.runs.stepping import StepMark
from tenure.settings import AllocatorSettings


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(AllocatorSettings())


def holder(address: int, size: int, heading: Heading, chain: str = "global x") -> Holder:
    return Holder(address, size, "cuda:0", heading, chain, address=address)


def now(recorder: Recorder) -> int:
    return len(recorder.rows)


def rows(recorder: Recorder, *holders: Holder, **more: object) -> dict[str, int]:
    found = attribute(recorder.trace(), now(recorder), holders, **more)  # type: ignore[arg-type]
    assert sum(row.bytes for row in found.rows) == found.allocated
    return {row.heading: row.bytes for row in found.rows}


def test_storages_are_put_under_their_headings_and_rounding_apart(recorder: Recorder) -> None:
    weight, momentum = recorder.allocate(3 * MIB), recorder.allocate(1000)
    assert weight
    assert momentum
    table = rows(
        recorder,
        holder(weight, 3 * MIB, Heading.PARAMETER),
        holder(momentum, 1000, Heading.OPTIMIZER),
    )
    assert table == {"parameters": 3 * MIB, "optimizer state": 1000, ROUNDING: 24}


def test_a_block_that_nothing_leads_to_is_unknown_with_its_size(recorder: Recorder) -> None:
    recorder.allocate(5 * MIB)
    assert rows(recorder) == {UNKNOWN: 5 * MIB}


def test_a_freed_block_and_a_storage_of_another_allocator_do_not_count(recorder: Recorder) -> None:
    gone, kept = recorder.allocate(4 * MIB), recorder.allocate(4 * MIB)
    assert gone
    assert kept
    recorder.free(gone)
    foreign = holder(1 << 50, 7 * MIB, Heading.VARIABLE)
    stale = holder(gone, 4 * MIB, Heading.VARIABLE)
    table = rows(recorder, holder(kept, 4 * MIB, Heading.GRAPH), foreign, stale)
    assert table == {"autograd graph": 4 * MIB}


def test_two_storages_in_one_block_count_once(recorder: Recorder) -> None:
    address = recorder.allocate(8 * MIB)
    assert address
    inner = holder(address + 512, MIB, Heading.CONTAINER)
    table = rows(recorder, inner, holder(address, 8 * MIB, Heading.GRADIENT))
    assert table == {"gradients": 8 * MIB}


def test_what_only_another_process_holds_and_graph_pools_have_headings(recorder: Recorder) -> None:
    sent = recorder.allocate(64 * MIB)
    assert sent
    recorder.allocate(2 * MIB, pool=(0, 3))
    table = rows(recorder, shared={sent: "held by another process: 17 (Process-1)"})
    assert table == {ELSEWHERE: 64 * MIB, GRAPHS: 2 * MIB}


def test_pending_bytes_come_on_top(recorder: Recorder) -> None:
    address = recorder.allocate(32 * MIB)
    assert address
    recorder.record_stream(address, 7)
    recorder.free(address)
    found = attribute(recorder.trace(), now(recorder), [])
    assert (found.allocated, found.pending, found.rows) == (0, 32 * MIB, ())


def test_a_moment_is_between_the_events_before_and_after_it(recorder: Recorder) -> None:
    first = recorder.allocate(2 * MIB)
    before = now(recorder)
    recorder.allocate(30 * MIB)
    trace = recorder.trace()
    moment = (int(trace.events.time_us[before - 1]) + 0.5) / 1e6
    assert event_at(trace, moment) == before
    assert first
    found = attribute(trace, event_at(trace, moment), [holder(first, 2 * MIB, Heading.BUFFER)])
    assert {row.heading: row.bytes for row in found.rows} == {"buffers": 2 * MIB}
    assert event_at(trace, float(np.iinfo(np.int32).max)) == len(trace.events)


def test_a_storage_whose_making_was_not_watched_gets_the_steps_of_the_trace(
    recorder: Recorder,
) -> None:
    early = recorder.allocate(3 * MIB)
    assert early
    first_step = now(recorder)
    late = recorder.allocate(4 * MIB)
    assert late
    looked_at = now(recorder)
    recorder.free(late)
    second_step = now(recorder)
    recorder.allocate(2 * MIB)
    trace = recorder.trace()

    def moment(event: int) -> float:
        return (int(trace.events.time_us[event - 1]) + 0.5) / 1e6

    held = Holders(
        "cuda",
        7 * MIB,
        (
            holder(early, 3 * MIB, Heading.VARIABLE),
            holder(late, 4 * MIB, Heading.GRAPH),
            holder(1 << 50, MIB, Heading.VARIABLE),
        ),
        complete=True,
        seconds=0.0,
    )
    look = Look("step", 0, 0, 7 * MIB, held, {}, (), (), True, time=moment(looked_at))
    marks = [StepMark(i + 1, moment(e), 0, 0) for i, e in enumerate((first_step, second_step))]
    name_births(Record(looks=[look], passes=2, steps=marks), trace)
    assert sorted(look.births) == [early, late]
    assert (look.births[early].passes, look.births[early].fate) == (0, "")
    assert (look.births[late].passes, look.births[late].fate) == (1, "backward")
    assert look.births[late].fate_passes == 1
