"""Plans of recorded runs: near the bound, sound, and found out where something is planted."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared_data import ABSENT, EXAMPLES, GOLDEN, name_of, traces
from tenure import _engine
from tenure.cli import commands
from tenure.errors import BadInputError, UsageError
from tenure.plans import Buffers, FaultKind, Plan, buffers_of, check, load, plan, save
from tenure.snapshots import load as load_trace

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.traces import Trace

STREAMS = EXAMPLES / "prefetch_streams.pickle.xz"
SLOW = {"llama_generate"}  # 175,116 buffers
DEFAULT = [
    pytest.param(path, id=name_of(path), marks=[pytest.mark.slow] * (name_of(path) in SLOW))
    for path in traces()
    if "." not in name_of(path)
]
TAGGED = [path for path in traces() if "." in name_of(path)]


@cache
def traced(path: Path) -> Trace:
    return load_trace(path)


@cache
def planned(path: Path) -> Plan:
    return plan(traced(path))


def slow_peak(buffers: Buffers) -> int:
    """Live bytes summed at every moment, from the columns alone."""
    change = np.zeros(int(buffers.end.max()) + 1, np.int64)
    np.add.at(change, buffers.begin, buffers.size)
    np.subtract.at(change, buffers.end, buffers.size)
    return int(change.cumsum().max())


# --- what a plan comes to ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "buffers", "live_peak", "size"),
    [
        ("cuda_graph", 111, 147_198_976, 147_198_976),
        ("leak_cycle", 54, 537_935_872, 537_935_872),
        ("leak_graph", 1_189, 1_305_723_904, 1_305_723_904),
        ("oom", 37, 7_160_692_736, 7_160_692_736),
        ("prefetch_streams", 1_789, 3_201_696_768, 3_201_696_768),
    ],
)
def test_golden_traces_have_these_plans(name: str, buffers: int, live_peak: int, size: int) -> None:
    made = planned(GOLDEN / f"{name}.pickle.xz")
    assert (len(made.buffers), made.live_peak, made.size) == (buffers, live_peak, size)
    assert made.checked


def is_near_the_bound(path: Path) -> None:
    trace = load_trace(path)
    made = plan(trace)
    assert made.checked
    assert check(made, trace) is None
    assert len(made.offsets) == len(made.buffers) == len(trace.allocations)
    assert made.live_peak == slow_peak(made.buffers)
    assert made.live_peak <= made.size <= 1.01 * made.live_peak
    assert made.seconds <= 5


@pytest.mark.skipif(not DEFAULT, reason=ABSENT)
@pytest.mark.parametrize("path", DEFAULT)
def test_every_default_trace_is_placed_within_one_percent_of_the_bound(path: Path) -> None:
    is_near_the_bound(path)


@pytest.mark.skipif(not TAGGED, reason=ABSENT)
@pytest.mark.slow
@pytest.mark.parametrize("path", TAGGED, ids=name_of)
def test_every_other_trace_too(path: Path) -> None:
    is_near_the_bound(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.pickle.xz")), ids=name_of)
def test_every_example_too(path: Path) -> None:
    is_near_the_bound(path)


def test_the_same_trace_gives_the_same_plan() -> None:
    again = plan(traced(STREAMS))
    assert np.array_equal(again.offsets, planned(STREAMS).offsets)


def test_sizes_are_rounded_and_lives_are_from_alloc_to_free_completed() -> None:
    trace = traced(STREAMS)
    buffers, allocations = buffers_of(trace), trace.allocations
    assert not (buffers.size % 512).any()
    assert (buffers.size - allocations.requested < 512).all()
    assert (buffers.begin == allocations.born + 1).all()
    kept = allocations.done < 0
    assert kept.any()
    assert (buffers.end[kept] == len(trace.events) + 1).all()
    assert (buffers.end[~kept] == allocations.done[~kept] + 1).all()


def test_a_recording_that_begins_late_keeps_what_was_there_before() -> None:
    """The end of a trace as if recorded from its middle: earlier allocations live from moment 0."""
    trace = traced(GOLDEN / "leak_graph.pickle.xz")
    allocations = replace(
        trace.allocations, born=np.where(trace.allocations.born < 2_000, -1, trace.allocations.born)
    )
    late = replace(trace, allocations=allocations)
    made = plan(late)
    assert check(made, late) is None
    assert (made.buffers.begin == 0).sum() == (trace.allocations.born < 2_000).sum()
    assert made.live_peak == slow_peak(made.buffers)


# --- streams -------------------------------------------------------------------------------------


def test_hand_overs_between_streams_are_counted() -> None:
    streams = planned(STREAMS).streams
    assert streams.count == 2
    assert streams.hand_overs > 0
    assert not streams.apart
    assert planned(GOLDEN / "leak_graph.pickle.xz").streams.hand_overs == 0


def test_streams_apart_never_use_the_same_byte() -> None:
    made = plan(traced(STREAMS), streams_apart=True)
    assert made.checked
    assert made.streams.apart
    assert made.streams.hand_overs == 0
    assert check(made, traced(STREAMS)) is None
    ranges = []
    for stream in np.unique(made.buffers.stream):
        mine = made.buffers.stream == stream
        ends = made.offsets[mine] + made.buffers.size[mine]
        ranges.append((made.offsets[mine].min(), ends.max()))
    ranges.sort()
    assert ranges[0][1] <= ranges[1][0]
    assert made.size > planned(STREAMS).size


# --- the checker ---------------------------------------------------------------------------------


def with_columns(made: Plan, **changed: Any) -> Plan:
    return replace(made, buffers=replace(made.buffers, **changed))


def edited(column: np.ndarray, index: int, value: int) -> np.ndarray:
    changed = column.copy()
    changed[index] = value
    return changed


def picked(buffers: Buffers, chosen: np.ndarray) -> Buffers:
    return Buffers(
        buffers.begin[chosen], buffers.end[chosen], buffers.size[chosen], buffers.stream[chosen]
    )


def alive_together(buffers: Buffers, index: int) -> np.ndarray:
    together = (buffers.begin < buffers.end[index]) & (buffers.end > buffers.begin[index])
    together[index] = False
    return np.flatnonzero(together)


PLANS = st.sampled_from([STREAMS, GOLDEN / "leak_graph.pickle.xz", GOLDEN / "oom.pickle.xz"])


@given(path=PLANS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_planted_overlap_is_found(path: Path, data: st.DataObject) -> None:
    made, trace = planned(path), traced(path)
    index = data.draw(st.integers(0, len(made.buffers) - 1))
    others = alive_together(made.buffers, index)
    assume(len(others))
    other = int(others[data.draw(st.integers(0, len(others) - 1))])
    units = st.integers(0, int(made.buffers.size[other]) // 512 - 1)
    offset = int(made.offsets[other]) + 512 * data.draw(units)
    assume(offset + made.buffers.size[index] <= made.size)
    fault = check(replace(made, offsets=edited(made.offsets, index, offset)), trace)
    assert fault is not None
    assert fault.kind is FaultKind.OVERLAP
    assert index in {fault.buffer, fault.other}
    assert str(fault.buffer) in fault.text
    assert str(fault.other) in fault.text


@given(path=PLANS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_else_is_planted_is_named(path: Path, data: st.DataObject) -> None:
    made, trace = planned(path), traced(path)
    index = data.draw(st.integers(0, len(made.buffers) - 1))
    offset, size = int(made.offsets[index]), int(made.buffers.size[index])
    beyond = made.size - size + 512 * data.draw(st.integers(1, 1 << 40))
    wrong = {
        FaultKind.MISSING: replace(made, offsets=edited(made.offsets, index, -1)),
        FaultKind.OUT_OF_RANGE: replace(made, offsets=edited(made.offsets, index, beyond)),
        FaultKind.MISALIGNED: replace(made, offsets=edited(made.offsets, index, offset + 8)),
        FaultKind.WRONG_SIZE: with_columns(
            made, size=edited(made.buffers.size, index, size + data.draw(st.integers(1, 4096)))
        ),
        FaultKind.WRONG_LIFE: with_columns(
            made, end=edited(made.buffers.end, index, int(made.buffers.begin[index]))
        ),
    }
    for kind, plan_of_kind in wrong.items():
        fault = check(plan_of_kind, trace)
        assert fault is not None
        assert (fault.kind, fault.buffer, fault.other) == (kind, index, -1)
        assert str(index) in fault.text


def test_a_plan_that_is_cut_short_too_long_too_small_or_boastful_is_found() -> None:
    made, trace = planned(STREAMS), traced(STREAMS)
    n = len(made.buffers)
    places = np.arange(n)
    short, long = (
        replace(made, offsets=made.offsets[chosen], buffers=picked(made.buffers, chosen))
        for chosen in (places[:-1], np.append(places, 0))
    )
    for wrong, kind, buffer in (
        (short, FaultKind.MISSING, n - 1),
        (long, FaultKind.SURPLUS, n),
        (replace(made, live_peak=made.live_peak - 512), FaultKind.WRONG_BOUND, -1),
    ):
        fault = check(wrong, trace)
        assert fault is not None
        assert (fault.kind, fault.buffer) == (kind, buffer)
    small = check(replace(made, size=made.size - 512), trace)
    assert small is not None
    assert small.kind is FaultKind.OUT_OF_RANGE


def test_a_plan_for_another_trace_is_not_one_for_this() -> None:
    assert check(planned(STREAMS), traced(GOLDEN / "leak_graph.pickle.xz")) is not None


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 64), st.integers(0, 2)),
        max_size=40,
    )
)
@settings(max_examples=100, deadline=None)
def test_any_buffers_are_placed_and_checked_against_every_pair(
    rows: list[tuple[int, int, int, int]],
) -> None:
    begin, life, units, stream = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    columns = (begin, begin + life, units * 512, stream.astype(np.uint64))
    packed = _engine.pack_plan(columns, seconds=0.05)
    start, end = packed["offsets"], packed["offsets"] + columns[2]
    assert packed["size"] == end.max(initial=0)
    for i in range(len(rows)):
        together = (columns[0] < columns[1][i]) & (columns[1] > columns[0][i])
        together[i] = False
        assert not (together & (start < end[i]) & (end > start[i])).any()
    verdict = _engine.check_plan(
        columns, columns, packed["offsets"], size=packed["size"], live_peak=packed["live_peak"]
    )
    assert verdict == ("none", -1, -1)


# --- what cannot be planned ----------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="seconds"):
        plan(traced(STREAMS), seconds=seconds)


def test_allocations_that_cannot_be_are_refused() -> None:
    trace = traced(GOLDEN / "oom.pickle.xz")
    for column, value, why in (
        ("requested", -1, "asks for -1 bytes"),
        ("requested", 1 << 62, "asks for"),
        ("done", 0, "freed before it is made"),
        ("born", len(trace.events), "not there"),
    ):
        changed = edited(getattr(trace.allocations, column), 5, value)
        columns: dict[str, Any] = {column: changed}
        broken = replace(trace, allocations=replace(trace.allocations, **columns))
        with pytest.raises(BadInputError, match=why):
            plan(broken)


# --- files ---------------------------------------------------------------------------------------


def test_a_plan_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    made, path = planned(STREAMS), tmp_path / "plan.json.gz"
    save(made, path)
    back = load(path)
    assert back.checked
    assert check(back, traced(STREAMS)) is None
    for mine, theirs in zip(made.buffers.columns, back.buffers.columns, strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(made.offsets, back.offsets)
    assert replace(back, buffers=made.buffers, offsets=made.offsets).streams == made.streams
    assert (back.size, back.live_peak, back.device, back.events) == (
        made.size, made.live_peak, made.device, made.events,
    )  # fmt: skip


def test_nothing_is_overwritten_unasked_and_bytes_are_reproducible(tmp_path: Path) -> None:
    path, other = tmp_path / "plan.json.gz", tmp_path / "again.json.gz"
    save(planned(STREAMS), path)
    with pytest.raises(UsageError, match="exists"):
        save(planned(STREAMS), path)
    save(planned(STREAMS), path, force=True)
    save(plan(traced(STREAMS)), other)
    assert path.read_bytes() == other.read_bytes()
    with pytest.raises(UsageError, match="cannot be written"):
        save(planned(STREAMS), tmp_path / "absent" / "plan.json.gz")


def saved(tmp_path: Path, *, columns: dict[str, Any] | None = None, **facts: Any) -> Path:
    """A saved plan as plain JSON, with columns changed and facts replaced."""
    path = tmp_path / "plan.json"
    save(planned(GOLDEN / "oom.pickle.xz"), path)
    value = json.loads(gzip.decompress(path.read_bytes()))
    for name, change in (columns or {}).items():
        value["buffers"][name] = change(value["buffers"][name])
    path.write_text(json.dumps({**value, **facts}))
    return path


def test_plain_json_is_read_too(tmp_path: Path) -> None:
    assert load(saved(tmp_path)).size == planned(GOLDEN / "oom.pickle.xz").size


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("format", "pickle", "format"),
        ("version", 2, "version is 2"),
        ("unit", 256, "256 bytes"),
        ("size", 1.5, "size is not a whole number"),
        ("size", True, "size is not a whole number"),
        ("size", 512, "is not inside the plan's 512 bytes"),
        ("live_peak", 512, "live at the peak"),
        ("live_peak", 1 << 70, "live_peak is not a whole number"),
        ("device", -1, "device is not a whole number"),
        ("events", 3, "outlives the trace"),
        ("streams_apart", 1, "neither true nor false"),
        ("streams", [], "stream that is not listed"),
        ("streams", [1 << 70], "too large"),
        ("streams", [-1], "too large"),
        ("buffers", [], "no buffers"),
    ],
)
def test_facts_that_cannot_be_are_refused(tmp_path: Path, name: str, value: Any, why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        load(saved(tmp_path, **{name: value}))


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("offset", lambda c: [0] * len(c), "both alive"),
        ("offset", lambda c: c[:-1], "different lengths"),
        ("offset", lambda c: [None, *c[1:]], "offset is not a list of whole numbers"),
        ("offset", lambda c: [str(c[0]), *c[1:]], "offset is not a list of whole numbers"),
        ("offset", lambda c: [float(c[0]), *c[1:]], "offset is not a list of whole numbers"),
        ("offset", lambda c: [1 << 63, *c[1:]], "too large"),
        ("offset", lambda c: [-1, *c[1:]], "has no place"),
        ("offset", lambda c: [(1 << 63) - 512, *c[1:]], "is not inside"),
        ("size", lambda c: [0, *c[1:]], "no multiple of 512"),
        ("size", lambda c: [1 << 62, *c[1:]], "any device"),
        ("begin", lambda c: [-5, *c[1:]], "moment -5"),
        ("begin", lambda c: c[::-1], "moment"),
        ("stream", lambda c: [7, *c[1:]], "stream that is not listed"),
        ("stream", lambda c: [-1, *c[1:]], "stream that is not listed"),
        ("stream", lambda _: {}, "stream is not a list"),
    ],
)
def test_columns_that_cannot_be_are_refused(
    tmp_path: Path, name: str, change: Any, why: str
) -> None:
    with pytest.raises(BadInputError, match=why):
        load(saved(tmp_path, columns={name: change}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04K\x01.",
        b"[]",
        b"null",
        b"[" * 200_000,
        b'{"format": "tenure plan", "version": ' + b"9" * 5_000 + b"}",
        b"\x1f\x8b\x08\x00broken",
        gzip.compress(b"{}" * 1_000)[:-9],
        gzip.compress(b"\xff\xfe"),
    ],
    ids=["empty", "pickle", "list", "null", "nested", "long", "gzip", "cut", "bytes"],
)
def test_a_file_that_is_anything_else_is_refused_in_one_line(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "plan.json.gz"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.plans.files.LARGEST_BYTES", 1 << 20)
    path = tmp_path / "plan.json.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(BadInputError, match="more than 1,048,576 bytes"):
        load(path)
    with pytest.raises(BadInputError, match="cannot be read"):
        load(tmp_path / "absent")


# --- the command ---------------------------------------------------------------------------------


def run(*args: object) -> Any:
    return CliRunner().invoke(commands, ["plan", *map(str, args)], standalone_mode=False)


def test_json_has_the_fields_of_the_contract() -> None:
    shown = run(STREAMS, "--json")
    value = json.loads(shown.stdout)
    made = planned(STREAMS)
    assert value["live_peak"] == made.live_peak
    assert value["size"] == made.size
    assert value["checked"] is True
    assert value["buffers"] == 1_789
    assert 0 < value["seconds"] < 5
    assert value["file"] == str(STREAMS)
    assert value["device"] == 0
    assert value["streams"] == {
        "count": 2, "hand_overs": made.streams.hand_overs, "apart": False,
    }  # fmt: skip
    assert value["graph_buffers"] == 0
    assert value["notes"] == []


def test_the_text_answers_first_and_keeps_to_80_columns() -> None:
    for args in ((), ("--streams-apart",)):
        text = run(STREAMS, *args).stdout
        assert text.startswith("All 1,789 allocations fit into ")
        assert "no two that live together share a byte" in text
        assert ("times memory goes from one stream to" in text) is (not args)
        assert max(map(len, text.replace(str(STREAMS), "FILE").splitlines())) <= 80
    assert "private pools" in run(GOLDEN / "cuda_graph.pickle.xz").stdout


def test_the_plan_is_saved_where_asked_and_not_over_another(tmp_path: Path) -> None:
    path = tmp_path / "plan.json.gz"
    shown = run(STREAMS, "-o", path, "--json", "--seconds", "0.5")
    assert json.loads(shown.stdout)["buffers"] == 1_789
    assert load(path).size == planned(STREAMS).size
    assert isinstance(run(STREAMS, "-o", path).exception, UsageError)
    assert run(STREAMS, "-o", path, "--force").exception is None
    assert f"saved as    {path}" in run(STREAMS, "-o", path, "--force").stdout
