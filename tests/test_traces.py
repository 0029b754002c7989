"""Traces: pairing events, undoing them, what the start must have been, and what stays open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recorder import DEFAULT, KINDS, MIB, NO_STACKS, Recorder
from tenure.errors import BadInputError
from tenure.replays import recorded_replay, replay, state_at
from tenure.settings import AllocatorSettings
from tenure.traces import Action, Blocks, Events, Segments, State, Trace, make_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PLAIN = AllocatorSettings()
ARENAS = AllocatorSettings(expandable_segments=True)
NEWEST = AllocatorSettings(torch_version=(2, 13))
USER_POOL = (0, 1)
SIDE = 7  # a stream

Operation = tuple[str, int, int, int]  # what, and three numbers for it


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


def texts(trace: Trace, code: str) -> str:
    return "\n".join(note.text for note in trace.notes if note.code == code)


def events_of(rows: Sequence[tuple[int, int, int]]) -> Events:
    """Events from (action, address, size), on the default stream."""
    columns = [[row[i] for row in rows] for i in range(3)]
    rest = [[value] * len(rows) for value in (0, 0, -1, -1, -1, -1)]
    return Events(*(np.array(c, kind) for c, kind in zip([*columns, *rest], KINDS, strict=True)))


def state_of(segments: Sequence[tuple[int, int, bool, Sequence[tuple[int, int, int]]]]) -> State:
    """A state from (address, size, small, blocks), each block (address, size, state)."""
    blocks = [(i, *block) for i, segment in enumerate(segments) for block in segment[3]]
    count = len(segments)
    return State(
        Segments(
            np.array([s[0] for s in segments], np.uint64),
            np.array([s[1] for s in segments], np.int64),
            np.zeros(count, np.uint64),
            np.zeros(count, np.int32),
            np.array([s[2] for s in segments], bool),
            np.zeros(count, bool),
            np.full(count, -1, np.int32),
        ),
        Blocks(
            np.array([b[0] for b in blocks], np.int64),
            np.array([b[1] for b in blocks], np.uint64),
            np.array([b[2] for b in blocks], np.int64),
            np.array([b[2] for b in blocks], np.int64),
            np.array([b[3] for b in blocks], np.uint8),
            np.full(len(blocks), -1, np.int32),
        ),
    )


def trace_of(events: Events, end: State, rules: AllocatorSettings = PLAIN) -> Trace:
    return make_trace(
        events,
        end,
        device=0,
        pools=(DEFAULT,),
        stacks=NO_STACKS,
        annotations=(),
        settings=rules,
    )


# --- pairing -------------------------------------------------------------------------------------

HOME = 0x7F00_0000_0000
EMPTY = state_of([(HOME, 2 * MIB, True, [(HOME, 2 * MIB, 0)])])


def test_each_use_of_an_address_is_an_allocation_of_its_own() -> None:
    rows = [
        (Action.FREE_REQUESTED, HOME, 100),
        (Action.FREE_COMPLETED, HOME, 100),
        (Action.ALLOC, HOME, 200),
        (Action.FREE_REQUESTED, HOME, 200),
        (Action.FREE_COMPLETED, HOME, 200),
    ]
    trace = trace_of(events_of(rows), EMPTY)
    assert trace.events.allocation.tolist() == [0, 0, 1, 1, 1]
    assert trace.allocations.before == 1
    assert trace.allocations.requested.tolist() == [100, 200]
    assert trace.allocations.born.tolist() == [-1, 2]
    assert trace.allocations.freed.tolist() == [0, 3]
    assert trace.allocations.done.tolist() == [1, 4]
    assert "trace.contradiction" not in codes(trace)
    assert recorded_replay(trace).exact


def test_a_completion_alone_is_of_a_block_that_was_pending() -> None:
    trace = trace_of(events_of([(Action.FREE_COMPLETED, HOME, 100)]), EMPTY)
    assert trace.allocations.pending_before.tolist() == [True]
    assert trace.start[0].blocks[0].pending
    result = recorded_replay(trace)
    assert result.exact
    assert (result.peak.allocated, result.peak.active) == (0, 512)


def test_a_block_freed_twice_is_a_contradiction_and_a_divergence() -> None:
    rows = [
        (Action.FREE_REQUESTED, HOME, 100),
        (Action.FREE_COMPLETED, HOME, 100),
        (Action.FREE_REQUESTED, HOME, 100),
        (Action.FREE_COMPLETED, HOME, 100),
    ]
    trace = trace_of(events_of(rows), EMPTY)
    assert trace.allocations.freed.tolist() == [0]
    assert "the first is 0x7f0000000000" in texts(trace, "trace.contradiction")
    result = recorded_replay(trace)
    assert result.divergence is not None
    assert (result.divergence.event, "not live" in result.divergence.what) == (2, True)


def test_two_allocations_at_one_address_are_a_contradiction_and_a_divergence() -> None:
    end = state_of([(HOME, 2 * MIB, True, [(HOME, 512, 1), (HOME + 512, 2 * MIB - 512, 0)])])
    rows = [(Action.ALLOC, HOME, 512), (Action.ALLOC, HOME, 512)]
    trace = trace_of(events_of(rows), end)
    assert "trace.contradiction" in codes(trace)
    result = recorded_replay(trace)
    assert result.divergence is not None
    assert result.divergence.event == 1


def test_a_free_outside_all_segments_is_a_contradiction_and_a_divergence() -> None:
    rows = [(Action.FREE_REQUESTED, 4096, 512), (Action.FREE_COMPLETED, 4096, 512)]
    trace = trace_of(events_of(rows), EMPTY)
    assert "trace.contradiction" in codes(trace)
    assert recorded_replay(trace).divergence is not None


def test_a_block_inside_another_is_cut_short() -> None:
    end = state_of([(HOME, 2 * MIB, True, [(HOME, 4096, 1), (HOME + 4096, 2 * MIB - 4096, 0)])])
    rows = [(Action.FREE_REQUESTED, HOME + 512, 512), (Action.FREE_COMPLETED, HOME + 512, 512)]
    trace = trace_of(events_of(rows), end)
    assert "trace.contradiction" in codes(trace)
    assert [b.size for b in trace.start[0].blocks] == [512, 512]
    assert not recorded_replay(trace).exact


@pytest.mark.parametrize("missing", [Action.FREE_REQUESTED, Action.FREE_COMPLETED])
def test_a_recording_without_one_kind_of_free_still_replays(missing: Action) -> None:
    run = Recorder(PLAIN)
    for size in (600, 3 * MIB, 20 * MIB):
        address = run.allocate(size)
        assert address
        run.allocate(size // 2)
        run.free(address)
    lost = [i for i, row in enumerate(run.rows) if row.action == missing]
    assert lost
    trace = run.trace(without=lost)
    assert "trace.contradiction" not in codes(trace)
    assert recorded_replay(trace).exact


def test_only_a_state_has_no_events_to_replay() -> None:
    trace = trace_of(events_of([]), EMPTY)
    assert len(trace.start) == 1
    with pytest.raises(BadInputError, match="no events to replay"):
        replay(trace)


@pytest.mark.parametrize(
    "row",
    [
        (Action.ALLOC, HOME, -512),
        (Action.ALLOC, HOME, 1 << 50),
        (Action.SEGMENT_FREE, 1 << 63, 2 * MIB),
        (Action.OOM, 0, 1 << 61),
    ],
)
def test_numbers_that_cannot_be_are_refused(row: tuple[int, int, int]) -> None:
    with pytest.raises(BadInputError, match=r"device 0: event 0, .* the file is damaged"):
        trace_of(events_of([row]), EMPTY)


def test_a_block_beyond_its_segment_is_refused() -> None:
    end = state_of([(HOME, 2 * MIB, True, [(HOME, 4 * MIB, 1)])])
    with pytest.raises(BadInputError, match="block 0, of 4,194,304 bytes"):
        trace_of(events_of([]), end)


# --- sizes of blocks seen only being freed -------------------------------------------------------


def freed_from(asked: int, gap: int, *, later: int | None = None) -> Trace:
    """One block at the front of a 20 MiB segment, `gap` bytes to the next, freed at the end.

    `later`: an allocation at that offset is made, and freed, before.
    """
    behind = HOME + asked + gap
    size = 20 * MIB
    cached = (HOME, asked + gap, 0)
    end = state_of([(HOME, size, False, [cached, (behind, HOME + size - behind, 1)])])
    rows = []
    if later is not None:
        rows += [(Action.ALLOC, HOME + later, 2 * MIB)]
        rows += [(a, HOME + later, 2 * MIB) for a in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
    rows += [(a, HOME, asked) for a in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
    return trace_of(events_of(rows), end)


def test_what_is_too_small_to_split_off_belongs_to_the_block() -> None:
    trace = freed_from(2 * MIB, MIB)
    assert (trace.start[0].blocks[0].size, trace.start[0].blocks[0].slack) == (3 * MIB, 0)
    assert "trace.ambiguous" not in codes(trace)


def test_a_block_made_later_shows_where_the_one_before_it_ends() -> None:
    trace = freed_from(2 * MIB, 5 * MIB, later=2 * MIB + 4096)
    assert (trace.start[0].blocks[0].size, trace.start[0].blocks[0].slack) == (2 * MIB + 4096, 0)
    assert recorded_replay(trace).exact


def test_a_size_that_nothing_shows_is_named() -> None:
    trace = freed_from(2 * MIB, 5 * MIB)
    assert (trace.start[0].blocks[0].size, trace.start[0].blocks[0].slack) == (2 * MIB, MIB)
    assert "up to 1.0 MiB higher" in texts(trace, "trace.ambiguous")
    assert recorded_replay(trace).exact


def test_a_gap_leaves_no_more_open_than_keeps_it_whole() -> None:
    """A free range of the large pool has more than 1 MiB, else it would be part of the block."""
    assert freed_from(2 * MIB, MIB + 1024).start[0].blocks[0].slack == 512


def test_a_choice_shows_that_a_block_is_larger() -> None:
    """The free range behind the block would serve a request that the record serves elsewhere."""
    other = HOME + 64 * MIB
    behind = HOME + 4 * MIB
    rest = HOME + 20 * MIB - behind
    end = state_of(
        [
            (HOME, 20 * MIB, False, [(HOME, 4 * MIB, 0), (behind, rest, 1)]),
            (other, 20 * MIB, False, [(other, 2 * MIB, 1), (other + 2 * MIB, 18 * MIB, 0)]),
        ]
    )
    rows = [
        (Action.ALLOC, other, 2 * MIB),
        (Action.FREE_REQUESTED, HOME, 2 * MIB),
        (Action.FREE_COMPLETED, HOME, 2 * MIB),
    ]
    trace = trace_of(events_of(rows), end)
    assert trace.start[1].blocks[0].size == 2 * MIB
    result = recorded_replay(trace)
    assert result.exact
    assert result.trace.start[1].blocks[0].size == 2 * MIB + 512
    assert result.peak.allocated == rest + 4 * MIB + 512


# --- arenas --------------------------------------------------------------------------------------


def test_runs_of_an_arena_belong_together_and_its_base_shows_later() -> None:
    run = Recorder(ARENAS)
    first = [run.allocate(30 * MIB) for _ in range(3)]
    small = run.allocate(512)
    assert first[0] and first[1] and small
    base = first[0]
    run.free(base)
    run.empty_cache()
    lost = len(run.rows)
    run.allocate(2 * MIB)
    run.allocate(12 * MIB)
    trace = run.trace(lost)
    large = next(s for s in trace.start if not s.small)
    assert large.address == base
    assert sum(size for _, size in large.runs) < 100 * MIB
    assert len(large.runs) == 1
    assert len([s for s in trace.start if s.small]) == 1
    assert recorded_replay(trace).exact


def test_an_unmapped_range_belongs_to_the_half_of_what_lay_in_it() -> None:
    """Ten chunks of a small pool unmapped at once are as large as one of a large pool."""
    run = Recorder(ARENAS)
    blocks = [run.allocate(MIB) for _ in range(20)]
    run.allocate(3 * MIB)
    lost = len(run.rows)
    for block in blocks:
        assert block
        run.free(block)
    run.empty_cache()
    assert (Action.SEGMENT_UNMAP, 20 * MIB) in {(r.action, r.size) for r in run.rows}
    trace = run.trace(lost)
    assert sorted(s.small for s in trace.start) == [False, True]
    assert recorded_replay(trace).exact


# --- ages and order ------------------------------------------------------------------------------


def equal_segments(rules: AllocatorSettings) -> tuple[Recorder, int]:
    """Two cached segments of one size, then one of them is used again after the cut."""
    run = Recorder(rules)
    made = [run.allocate(12 * MIB) for _ in range(4)]
    for address in made:
        assert address
        run.free(address)
    lost = len(run.rows)
    for _ in range(4):
        run.allocate(12 * MIB)
    return run, lost


@pytest.mark.parametrize("version", [(2, 11), (2, 12), (2, 13)])
def test_of_equal_segments_the_older_is_guessed_from_the_address(version: tuple[int, int]) -> None:
    run, lost = equal_segments(AllocatorSettings(torch_version=version))
    trace = run.trace(lost)
    assert [s.address for s in trace.start] == sorted(
        (s.address for s in trace.start), reverse=True
    )
    assert ("by it to choose" in texts(trace, "trace.ambiguous")) == (version > (2, 11))
    assert recorded_replay(trace).exact


@pytest.mark.parametrize("version", [(2, 12), (2, 13)])
def test_a_wrong_guess_of_ages_is_put_right_by_the_record(version: tuple[int, int]) -> None:
    run, lost = equal_segments(AllocatorSettings(torch_version=version))
    trace = run.trace(lost)
    upside_down = replace(trace, start=trace.start[::-1])
    assert recorded_replay(upside_down).exact


def test_a_collection_of_unknown_ages_follows_the_record() -> None:
    rules = AllocatorSettings(garbage_collection_threshold=0.5, limit=100 * MIB)
    run = Recorder(rules)
    old, young, kept = run.allocate(12 * MIB), run.allocate(14 * MIB), run.allocate(30 * MIB)
    assert old and young and kept
    run.free(old)
    for _ in range(30):
        again = run.allocate(14 * MIB - 512) if young not in run.given else None
        if again:
            run.free(again)
        elif young in run.given:
            run.free(young)
    lost = len(run.rows)
    run.allocate(40 * MIB)
    returned = [r.address for r in run.rows[lost:] if r.action == Action.SEGMENT_FREE]
    assert returned == [old]
    for limit in (100 * MIB, -1):
        trace = run.trace(lost, settings=replace(rules, limit=limit))
        assert "garbage collection" in texts(trace, "trace.ambiguous")
        assert recorded_replay(trace).exact


def test_a_returned_segment_without_a_pool_id_may_be_a_private_one() -> None:
    run = Recorder(PLAIN)
    shared, private = run.allocate(12 * MIB), run.allocate(14 * MIB, 0, USER_POOL)
    assert shared and private
    run.free(shared)
    lost = len(run.rows)
    run.empty_cache()
    assert "trace.ambiguous" not in codes(run.trace(0))
    assert "which does not say" in texts(run.trace(lost), "trace.ambiguous")


# --- runs cut anywhere ---------------------------------------------------------------------------

SIZES = (
    1,
    512,
    600,
    4096,
    100_000,
    MIB,
    MIB + 1,
    1_300_000,
    3 * MIB,
    9_900_000,
    12 * MIB,
    33 * MIB,
)
RULES: dict[str, Callable[[AllocatorSettings], AllocatorSettings]] = {
    "plain": lambda rules: rules,
    "arenas": lambda rules: replace(rules, expandable_segments=True),
    "split": lambda rules: replace(rules, max_split_size=20 * MIB),
    "roundup": lambda rules: replace(rules, roundup_power2_divisions=(4,) * 16),
    "limit": lambda rules: replace(rules, limit=100 * MIB),
    "arenas under a limit": lambda rules: replace(rules, expandable_segments=True, limit=100 * MIB),
    "collection": lambda rules: replace(rules, garbage_collection_threshold=0.5, limit=120 * MIB),
}


def play(rules: AllocatorSettings, operations: Sequence[Operation]) -> Recorder:
    """Runs random operations; pools need pool ids, and waits for events an open limit."""
    run = Recorder(rules)
    for what, first, second, third in operations:
        live = run.live()
        if what == "allocate":
            private = third and rules.torch_version >= (2, 12)
            stream = SIDE if second else 0
            run.allocate(SIZES[first % len(SIZES)], stream, USER_POOL if private else DEFAULT)
        elif what == "empty_cache":
            run.empty_cache()
        elif what == "finish":
            run.finish(5)
        elif live and what == "free":
            run.free(live[first % len(live)])
        elif live and rules.limit < 0:
            run.record_stream(live[first % len(live)], 5)
    return run


numbers = st.integers(0, 1000)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), numbers, st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.sampled_from(["allocate", "free", "free"]), numbers, st.just(0), st.just(0)),
        st.tuples(
            st.sampled_from(["record_stream", "finish", "empty_cache"]),
            numbers,
            st.just(0),
            st.just(0),
        ),
    ),
    min_size=2,
    max_size=60,
)
versions = st.sampled_from([(2, 11), (2, 12), (2, 13)])
fuzzing = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", RULES)
@given(version=versions, done=operations, part=st.floats(0, 1))
@fuzzing
def test_a_run_cut_anywhere_replays_exactly(
    name: str, version: tuple[int, int], done: list[Operation], part: float
) -> None:
    rules = RULES[name](AllocatorSettings(torch_version=version))
    run = play(rules, done)
    lost = int(part * len(run.rows))
    trace = run.trace(lost, settings=rules)
    if not len(trace.events):
        return
    result = recorded_replay(trace)
    assert "trace.contradiction" not in codes(trace)
    assert result.divergence is None
    assert result.exact
    ours, real = result.peak.as_dict(), run.peaks(lost)
    open_bytes = sum(block.slack for segment in trace.start for block in segment.blocks)
    for label in ours:
        allowed = open_bytes if label in {"allocated", "active"} else 0
        assert 0 <= real[label] - ours[label] <= allowed, label


@given(version=versions, done=operations, data=st.data())
@fuzzing
def test_a_run_with_events_missing_ends_and_says_so(
    version: tuple[int, int], done: list[Operation], data: st.DataObject
) -> None:
    rules = RULES[data.draw(st.sampled_from(sorted(RULES)))](
        AllocatorSettings(torch_version=version)
    )
    run = play(rules, done)
    missing = data.draw(st.sets(st.integers(0, max(len(run.rows) - 1, 0)), max_size=8))
    trace = run.trace(without=sorted(missing), settings=rules)
    if not len(trace.events):
        return
    result = recorded_replay(trace)
    assert result.exact or result.divergence is not None or result.end_state_mismatches
    if not result.exact and trace.starts_empty:
        assert missing
    state_at(trace, len(trace.events) // 2)
    replay(trace, conf="expandable_segments:True")
