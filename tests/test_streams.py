"""Happens-before between streams: against reachability, and against every interleaving."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_programs import HOST_BUFFER, SIZE, Step, check, outcomes, placed, reference, valid
from tenure.streams import Checker, Clocks, Kind, PendingFrees, Site, StreamId, Use, dense

if TYPE_CHECKING:
    from collections.abc import Callable

MAIN, SIDE, THIRD = StreamId(0, 0), StreamId(0, 0x10), StreamId(0, 0x20)
LINE = [Site("train.py", number, "step") for number in range(20)]

cells = st.tuples(st.sampled_from([0, 0, 1, 2]), st.integers(0, 1))
host_cells = st.just((HOST_BUFFER, 0)) | st.just((HOST_BUFFER, 1))
streams = st.integers(0, 2)
events = st.integers(0, 1)


def some(
    kind: st.SearchStrategy[tuple[int, int]],
) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    return st.lists(kind, max_size=2, unique=True).map(tuple)


def steps(what: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    drawn: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(fields)
    return drawn.map(lambda values: Step(what, **values))


launches = steps("launch", stream=streams, reads=some(cells | host_cells), writes=some(cells))
copies = steps("launch", stream=streams, reads=some(cells), writes=some(host_cells))
host_accesses = steps("host", reads=some(host_cells), writes=some(host_cells))
orders = st.one_of(
    steps("record", stream=streams, event=events),
    steps("wait", stream=streams, event=events),
    steps("host_wait", event=events),
    steps("sync", stream=streams),
    steps("sync_all"),
)
memory = st.one_of(
    steps("free", buffer=st.integers(0, 1)),
    steps("make", stream=streams, buffer=st.integers(0, 1)),
    steps("keep", stream=streams, buffer=st.integers(0, 1)),
)
accessing = st.lists(launches | orders | host_accesses | copies, max_size=12).map(valid)
freeing = st.tuples(
    st.lists(launches | orders, min_size=1, max_size=6),
    st.lists(memory, max_size=4),
    st.lists(launches | orders | memory, max_size=5),
).map(lambda parts: valid([step for part in parts for step in part]))


@settings(max_examples=300, deadline=None)
@given(accessing)
def test_a_conflict_is_told_exactly_where_no_chain_of_waits_leads(program: list[Step]) -> None:
    graph = reference(program)
    expected = {node.step for node in graph.nodes if graph.unordered(node)}
    assert check(program).steps == expected


@settings(max_examples=300, deadline=None)
@given(freeing)
def test_a_free_is_told_exactly_where_a_request_may_meet_a_use(program: list[Step]) -> None:
    assert check(program).freed == reference(program).reusable


@settings(max_examples=300, deadline=None)
@given(accessing)
def test_programs_called_clean_have_one_result_and_others_more(program: list[Step]) -> None:
    graph = reference(program)
    if len(graph.nodes) > 6:
        return
    results = outcomes(graph, placed(program))
    races = check(program).races
    if not races:
        assert len(results) == 1
    elif any(race.kind is Kind.READ for race in races):
        assert len(results) > 1


@settings(max_examples=300, deadline=None)
@given(freeing)
def test_programs_called_clean_have_one_result_though_memory_is_reused(
    program: list[Step],
) -> None:
    graph = reference(program)
    if len(graph.nodes) > 6:
        return
    where = placed(program)
    if not check(program, where).races:
        assert len(outcomes(graph, where)) == 1


# --- the reported patterns -----------------------------------------------------------------------


def reuse_program(*, wait: bool = False, keep: bool = False) -> list[Step]:
    program = [
        Step("record", 0, 0),
        Step("wait", 1, 0),
        Step("launch", 1, reads=((0, 0),), writes=((1, 0),)),
    ]
    if wait:
        program += [Step("record", 1, 1), Step("wait", 0, 1)]
    if keep:
        program.append(Step("keep", 1, buffer=0))
    program += [
        Step("free", buffer=0),
        Step("make", 0, buffer=0),
        Step("launch", 0, writes=((0, 0),)),
    ]
    return valid(program)


def test_memory_reused_under_a_read_differs_and_is_told_with_its_three_lines() -> None:
    program = reuse_program()
    where = placed(program)
    (race,) = check(program, where).races
    assert (race.kind, race.reused) == (Kind.REUSE, True)
    assert race.freed is not None
    assert (race.earlier.site.line, race.freed.line, race.site.line) == (2, 3, 4)
    assert len(outcomes(reference(program), where)) > 1


def test_without_addresses_the_reuse_is_told_as_possible() -> None:
    (race,) = check(reuse_program()).races
    assert (race.kind, race.reused) == (Kind.REUSE, False)


@pytest.mark.parametrize("cure", ["wait", "keep"])
def test_a_wait_or_record_stream_cures_the_reuse(cure: str) -> None:
    program = reuse_program(wait=cure == "wait", keep=cure == "keep")
    where = placed(program)
    assert check(program, where).races == ()
    assert len(outcomes(reference(program), where)) == 1


def test_a_wait_between_free_and_request_is_early_enough() -> None:
    program = reuse_program()
    program[4:4] = [Step("record", 1, 1), Step("wait", 0, 1)]
    assert check(program, placed(program)).races == ()


def test_a_request_of_another_pool_cannot_be_given_the_memory() -> None:
    checker = Checker()
    checker.born(1, 4 << 20, MAIN, LINE[0])
    checker.launch(MAIN, [Use(1, dense(0, 4 << 20), writes=True)], "full", LINE[0])
    checker.clocks.wait(SIDE, checker.clocks.record(MAIN))
    checker.launch(SIDE, [Use(1, dense(0, 4 << 20), writes=False)], "mul", LINE[1])
    checker.died(1, LINE[2])
    assert checker.born(2, 512, MAIN, LINE[3], what="empty") == []
    (race,) = checker.born(3, 2 << 20, MAIN, LINE[4], what="empty")
    assert (race.bytes, race.site, race.freed) == (4 << 20, LINE[4], LINE[2])


def test_memory_given_back_to_the_driver_is_not_reused() -> None:
    checker = Checker()
    checker.born(1, SIZE, MAIN, LINE[0], address=512)
    checker.launch(SIDE, [Use(1, dense(0, SIZE), writes=False)], "mul", LINE[1])
    checker.died(1, LINE[2])
    checker.cache_emptied()
    assert checker.born(2, SIZE, MAIN, LINE[3], address=512) == []


def test_the_first_use_of_new_memory_on_another_stream_meets_its_former_use() -> None:
    checker = Checker()
    checker.clocks.launch(SIDE)
    checker.born(1, SIZE, MAIN, LINE[0], address=512)
    checker.launch(MAIN, [Use(1, dense(0, SIZE), writes=False)], "sum", LINE[1])
    checker.died(1, LINE[2])
    assert checker.born(2, SIZE, MAIN, LINE[3], address=512) == []
    use = [Use(2, dense(0, SIZE), writes=True)]
    (conflict,) = checker.conflicts(SIDE, use)
    assert conflict.kind is Kind.REUSE
    checker.clocks.wait(SIDE, checker.clocks.record(MAIN))
    assert checker.conflicts(SIDE, use) == []


def test_a_finding_is_kept_once_with_its_count() -> None:
    program = [Step("launch", 0, writes=((0, 0),)), Step("launch", 1, reads=((0, 0),))]
    checker = Checker()
    checker.born(0, SIZE, MAIN, LINE[0])
    for _ in program * 3:
        checker.launch(MAIN, [Use(0, dense(0, SIZE), writes=True)], "fill_", LINE[1])
        use = [Use(0, dense(0, SIZE), writes=False)]
        checker.report(checker.conflicts(SIDE, use), SIDE, "add", LINE[2])
        checker.launch(SIDE, use, "add", LINE[2])
    reads = [race for race in checker.races if race.kind is Kind.READ]
    assert [race.count for race in reads] == [6]


def test_record_stream_on_the_owners_stream_is_told_and_protects_nothing() -> None:
    checker = Checker()
    checker.born(1, SIZE, MAIN, LINE[0])
    checker.launch(SIDE, [Use(1, dense(0, SIZE), writes=False)], "mul", LINE[1])
    assert checker.record_stream(1, SIDE, LINE[2])
    assert not checker.record_stream(1, MAIN, LINE[3])
    checker = Checker()
    checker.born(1, SIZE, MAIN, LINE[0])
    checker.launch(SIDE, [Use(1, dense(0, SIZE), writes=False)], "mul", LINE[1])
    assert not checker.record_stream(1, MAIN, LINE[2])
    checker.died(1, LINE[3])
    (race,) = checker.born(2, SIZE, MAIN, LINE[4])
    assert race.self_recorded == LINE[2]


def test_what_autograd_used_on_another_stream_is_autograds_to_keep() -> None:
    checker = Checker()
    checker.born(1, SIZE, MAIN, LINE[0])
    use = [Use(1, dense(0, SIZE), writes=False)]
    checker.launch(SIDE, use, "MulBackward0", LINE[1], by_autograd=True)
    checker.died(1, LINE[2])
    assert checker.born(2, SIZE, MAIN, LINE[3]) == []


# --- order ---------------------------------------------------------------------------------------


def test_waits_carry_over_from_stream_to_stream() -> None:
    clocks = Clocks()
    number = clocks.launch(MAIN)
    clocks.wait(SIDE, clocks.record(MAIN))
    clocks.wait(THIRD, clocks.record(SIDE))
    assert clocks.before(MAIN, number, THIRD)
    assert not clocks.before(SIDE, clocks.launch(SIDE), THIRD)


def test_an_event_covers_what_came_before_it_and_no_more() -> None:
    clocks = Clocks()
    first = clocks.launch(MAIN)
    event = clocks.record(MAIN)
    second = clocks.launch(MAIN)
    clocks.wait(SIDE, event)
    assert clocks.before(MAIN, first, SIDE)
    assert not clocks.before(MAIN, second, SIDE)


def test_a_device_synchronises_its_own_streams_only() -> None:
    clocks = Clocks()
    other = StreamId(1, 0)
    here, there = clocks.launch(MAIN), clocks.launch(other)
    clocks.host_waits_for_device(0)
    assert clocks.before(MAIN, here, SIDE)
    assert not clocks.before(other, there, SIDE)


def test_side_streams_do_not_wait_for_the_default_stream_unless_made_so() -> None:
    clocks = Clocks()
    number = clocks.launch(MAIN)
    assert not clocks.before(MAIN, number, SIDE)
    clocks.blocking.add(SIDE)
    assert clocks.before(MAIN, number, SIDE)
    assert clocks.before(SIDE, clocks.launch(SIDE), MAIN)
    assert not clocks.before(MAIN, number, THIRD)


# --- frees that wait -----------------------------------------------------------------------------


def pending_frees(count: int, done: Callable[[], bool] | None = None) -> PendingFrees:
    checker, pending = Checker(), PendingFrees()
    for number in range(count):
        checker.born(number, 32, MAIN, LINE[0])
        checker.launch(SIDE, [Use(number, dense(0, 32), writes=True)], "mul_", LINE[1])
        checker.launch(SIDE, [], "other", LINE[2])
        checker.record_stream(number, SIDE, LINE[3])
        pending.add(checker.blocks[number], LINE[4], checker.clocks, done)
        pending.settle(checker.clocks)
    checker.clocks.host_waits_for_stream(SIDE)
    pending.settle(checker.clocks)
    return pending


def test_frees_wait_until_the_host_knows() -> None:
    pending = pending_frees(5)
    assert (pending.peak, pending.peak_blocks, pending.ahead) == (160, 5, 10)
    assert not pending.measured
    assert pending.late == {(LINE[3], LINE[4]): 1}


def test_a_device_that_says_done_ends_the_wait() -> None:
    pending = pending_frees(5, done=lambda: True)
    assert (pending.peak, pending.measured) == (0, True)


def test_no_more_than_the_oldest_are_asked() -> None:
    asked = itertools.count()
    pending_frees(30, done=lambda: next(asked) < 0)
    assert next(asked) < 30 * 9


# --- streams that are done -----------------------------------------------------------------------


def one_shot(*, emptied: bool = False) -> dict[StreamId, int]:
    checker = Checker()
    checker.born(0, 64 << 20, SIDE, LINE[0])
    checker.died(0, LINE[1])
    if emptied:
        checker.cache_emptied()
    for number in range(1, 100):
        checker.born(number, 64 << 20, MAIN, LINE[2])
        checker.died(number, LINE[3])
    return checker.memories.stranded()


def test_a_stream_that_is_done_keeps_its_memory() -> None:
    assert one_shot() == {SIDE: 64 << 20}


def test_an_emptied_cache_keeps_nothing() -> None:
    assert one_shot(emptied=True) == {}
