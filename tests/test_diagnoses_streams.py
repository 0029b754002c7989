"""Each finding about streams and private pools: where it is due, and where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scene import AUTOGRAD, Scene, layer, line
from tenure.diagnoses import Confidence, explain
from tenure.lifetimes import block_sizes
from tenure.reports import explanation_text
from tenure.streams import stream_usage
from tenure.traces import Action
from tenure.units import MIB

if TYPE_CHECKING:
    from tenure.streams import StreamUsage
    from tenure.traces import Trace

SIDE = 0x51
POOL = (0, 7)


def usage_of(trace: Trace) -> tuple[StreamUsage, ...]:
    return stream_usage(trace, block_sizes(trace))


def recorded(rounds: int, *, ahead: int, wait_us: int = 10) -> Scene:
    """A side stream uses each buffer; the host frees it and runs on, so many rounds ahead."""
    scene = Scene()
    for i in range(rounds):
        buffer = scene.make(32, line(5))
        scene.record_stream(buffer, SIDE)
        scene.drop(buffer, where=line(7))
        if i % ahead == ahead - 1:
            scene.clock += wait_us
            scene.finish(SIDE)
    scene.make(1, line(9))
    return scene


def test_frees_that_wait_for_another_stream_are_pending() -> None:
    scene = recorded(16, ahead=8)
    finding = scene.explain().findings[0]
    assert finding.code == "stream.pending"
    assert finding.bytes == 8 * 32 * MIB
    text = "\n".join(finding.evidence)
    assert "up to 8 of them at a time" in text
    assert "of train.py:5 main" in text
    (usage,) = [u for u in usage_of(scene.recording()) if u.stream == 0]
    assert (usage.pending_blocks, usage.waited) == (8, 16)


def test_a_thread_interrupted_within_a_free_shows_no_wait() -> None:
    """Between the two events of one call the clock may jump; their stacks are one."""
    scene = Scene()
    for _ in range(6):
        scene.drop(scene.make(64, line(5)), where=line(7))
        scene._times[-1] += 5_000
        scene.clock += 5_000
    assert [u.waited for u in usage_of(scene.recording())] == [0]
    assert not any(f.code.startswith("stream") for f in scene.explain().findings)


def test_a_recording_that_begins_within_a_free_shows_no_wait() -> None:
    scene = Scene()
    scene.drop(scene.make(64, line(2)), where=line(3))
    for _ in range(8):
        scene.drop(scene.make(32, line(5)), where=line(7))
    first = next(i for i, row in enumerate(scene.rows) if row.action == Action.FREE_COMPLETED)
    usages = usage_of(scene.recording(first))
    assert [u.pending_peak for u in usages] == [0]
    assert not any(f.code == "stream.pending" for f in explain(scene.recording(first)).findings)


def test_without_another_stream_nothing_waits() -> None:
    scene = Scene()
    for _ in range(16):
        scene.drop(scene.make(32, line(5)), where=line(7))
    assert not any(f.code.startswith("stream") for f in scene.explain().findings)


def test_single_blocks_that_wait_long_have_a_late_event() -> None:
    finding = recorded(10, ahead=1, wait_us=8_000).finding("stream.late_event")
    assert finding is not None
    assert finding.confidence is Confidence.INFERRED
    assert recorded(10, ahead=1, wait_us=8_000).finding("stream.pending") is None
    assert recorded(16, ahead=8, wait_us=8_000).finding("stream.late_event") is None


def test_a_stream_that_is_done_strands_its_cache() -> None:
    scene = Scene()
    for stream in (SIDE, SIDE + 1):
        scene.drop(scene.make(128, line(3), stream=stream), where=line(3))
    for _ in range(30):
        scene.drop(scene.make(64, line(5)), where=line(5))
    finding = scene.explain().findings[0]
    assert finding.code == "stream.stranded"
    assert finding.bytes == 256 * MIB
    assert "0x51" in finding.title


def test_a_stream_that_goes_on_working_strands_nothing() -> None:
    scene = Scene()
    for _ in range(30):
        scene.drop(scene.make(64, line(3), stream=SIDE), where=line(3))
        scene.drop(scene.make(64, line(5)), where=line(5))
        both = scene.make(64, line(3), stream=SIDE), scene.make(64, line(5))
        scene.drop(*both, where=line(6))
    assert scene.finding("stream.stranded") is None


def test_streams_that_take_turns_each_keep_their_own_cache() -> None:
    scene = Scene()
    for i in range(16):
        acts = [scene.make(48, line(5), stream=SIDE + i % 4) for _ in range(3)]
        scene.drop(*acts, where=line(6))
    finding = scene.explain().findings[0]
    assert finding.code == "stream.stranded"
    assert "take turns" in finding.title
    assert finding.bytes == 3 * 144 * MIB


def captures(sizes: list[int]) -> Scene:
    scene = Scene()
    scene._allocator.create_pool(POOL)
    scene.make(16, line(2))
    for size in sizes:
        x = scene.make(size, line(5, "capture"), pool=POOL)
        y = scene.make(size, line(5, "capture"), pool=POOL)
        scene.drop(x, y, where=line(6))
    return scene


def test_captures_from_small_to_large_would_need_less_the_other_way_round() -> None:
    finding = captures([2, 4, 8, 16, 32, 64, 128]).finding("pool.graph_order")
    assert finding is not None
    # What the other order really saves is what was promised.
    best = captures([128, 64, 32, 16, 8, 4, 2])
    before = captures([2, 4, 8, 16, 32, 64, 128]).explain().replay.peak.reserved
    assert before - best.explain().replay.peak.reserved == finding.bytes
    assert best.finding("pool.graph_order") is None


def test_captures_of_one_size_have_no_better_order() -> None:
    assert captures([64, 64, 64, 64]).finding("pool.graph_order") is None


def test_memory_free_inside_private_pools_is_idle() -> None:
    scene = Scene()
    scene.make(16, line(2))
    for number in range(3):
        pool = (0, 10 + number)
        scene._allocator.create_pool(pool)
        x = scene.make(40, line(5), pool=pool)
        scene.make(4, line(5), pool=pool)
        scene.drop(x, where=line(6))
    finding = scene.finding("pool.idle")
    assert finding is not None
    assert "3 private pools" in finding.title
    assert finding.bytes >= 3 * 40 * MIB
    full = Scene()
    full._allocator.create_pool(POOL)
    full.make(40, line(5), pool=POOL)
    assert full.finding("pool.idle") is None


def test_reserved_is_split_by_stream_and_pool_into_parts_that_add_up() -> None:
    scene = captures([8, 40])
    scene.drop(scene.make(64, line(3), stream=SIDE), where=line(3))
    scene.make(30, layer("linear", 6))
    split = scene.explain().split
    owners = {(p.stream, p.pool) for p in split.pools}
    assert owners == {(0, (0, 0)), (0, POOL), (SIDE, (0, 0))}
    assert sum(p.reserved for p in split.pools) == split.reserved
    for p in split.pools:
        assert p.live + p.pending + p.whole + p.pinned == p.reserved
    parts = (
        split.live,
        split.pending,
        split.whole,
        split.remainders,
        split.other_streams,
        split.private,
    )
    assert sum(part.bytes for part in parts) == split.reserved


def test_workspaces_are_normal_and_named_by_stream() -> None:
    scene = Scene()
    for stream in (0, SIDE):
        scene.make(32, layer("linear", 6), stream=stream)
        scene.make(1, layer("linear", 6), stream=stream)
    finding = scene.finding("normal.workspace")
    assert finding is not None
    assert finding.bytes == 66 * MIB
    assert "stream 0x51" in finding.evidence[0]


def test_an_allocator_that_is_empty_at_the_end_has_a_floor_that_is_not_its_own() -> None:
    scene = Scene()
    scene.drop(scene.make(64, line(3)), where=line(4))
    scene.clean(line(5))
    finding = scene.finding("normal.floor")
    assert finding is not None
    assert "nothing is cached" in finding.title
    busy = Scene()
    busy.make(64, line(3))
    assert busy.finding("normal.floor") is None


def test_what_has_no_frames_is_told_with_how_much_of_it_is_placed() -> None:
    scene = Scene()
    acts = [scene.make(16, layer("linear", 6)) for _ in range(4)]
    for act in reversed(acts):
        scene.make(16, AUTOGRAD)
        scene.drop(act)
    finding = scene.finding("trace.no_frames")
    assert finding is not None
    assert "4 allocations in the recording have no frames; 4 of them" in finding.evidence[0]
    plain = Scene()
    plain.make(16, line(3))
    assert plain.finding("trace.no_frames") is None


@pytest.mark.parametrize("late", [True, False])
def test_a_ring_that_was_overwritten_is_not_a_recording_that_began_late(late: bool) -> None:
    """Blocks from before the first event that have stacks were made while history was on."""
    scene = Scene()
    if late:
        scene.make(64, AUTOGRAD)
    else:
        scene.make(64, line(2))
    first = len(scene.rows)
    for _ in range(20):
        scene.drop(scene.make(16, line(3)), where=line(4))
    codes = [f.code for f in explain(scene.recording(first)).findings]
    assert ("trace.truncated" in codes) is not late
    assert ("trace.late" in codes) is late


def test_a_file_without_events_is_told_by_its_state_alone() -> None:
    scene = Scene()
    scene.make(64, line(2))
    scene.drop(scene.make(40, line(3)), where=line(3))
    explanation = explain(scene.recording(len(scene.rows)))
    codes = {f.code for f in explanation.findings}
    assert not codes & {"trace.late", "trace.truncated"}
    text = explanation_text(explanation)
    assert text.startswith("Only the state when the file was written: 64.00 MiB live")
    assert "event -1" not in text
    assert explanation.by_site[0].label == "train.py:2 main"


def test_sizes_of_blocks_are_those_of_the_engine() -> None:
    scene = captures([3, 5])
    trace = scene.recording()
    assert (block_sizes(trace) % 512 == 0).all()
