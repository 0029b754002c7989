"""Recordings that begin late: a run's first events are cut off, the rest replays exactly."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from scene import Scene, line
from shared_data import ABSENT, GOLDEN, name_of, traces
from tenure.diagnoses import explain
from tenure.replays import recorded_replay, replay
from tenure.snapshots import Snapshot, read_snapshot, to_trace
from tenure.traces import Action
from tenure.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tenure.replays import Replay
    from tenure.traces import Trace

    Counts = dict[str, NDArray[np.int64]]

TORCH = (2, 11)  # which recorded them all
SMALL = sorted(GOLDEN.glob("*.pickle.xz"))
SHARED = traces()
PARTS = (0.1, 0.5, 0.9)
LABELS = ("requested", "allocated", "active", "reserved")


def limit_of(path: Path) -> int | None:
    truth = json.loads(path.with_name(name_of(path) + ".json").read_text(encoding="utf-8"))
    limit = truth["limit_bytes"]
    return None if limit is None else int(limit)


@lru_cache(maxsize=1)
def snapshot_of(path: Path) -> Snapshot:
    return read_snapshot(path)


def device_of(snapshot: Snapshot) -> int:
    return int(np.argmax([len(events) for events in snapshot.devices]))


def without_first(snapshot: Snapshot, lost: int) -> Snapshot:
    """The snapshot with the first events gone; the end state is kept."""
    device = device_of(snapshot)
    events = snapshot.devices[device]
    columns = {f.name: getattr(events, f.name) for f in fields(events)}
    there = {name: column[lost:] for name, column in columns.items() if column is not None}
    kept = replace(events, **there)
    devices = [kept if i == device else other for i, other in enumerate(snapshot.devices)]
    return replace(snapshot, devices=devices)


@lru_cache(maxsize=1)
def whole(path: Path) -> tuple[Trace, Counts]:
    """The trace from its first event on, and the four counts after each event."""
    trace = to_trace(snapshot_of(path), torch_version=TORCH)
    result = replay(trace, capacity=limit_of(path), timeline=True)
    assert result.exact
    counts = counts_after_each(trace, result)
    peak = result.peak.as_dict()
    assert {label: int(counts[label].max()) for label in LABELS} == peak
    return trace, counts


def counts_after_each(trace: Trace, result: Replay) -> Counts:
    """The counts event by event; a timeline has those of a request's own events together."""
    action, number = trace.events.action, trace.events.allocation
    assert result.timeline
    allocated = np.concatenate([[0], result.timeline.allocated])
    together = (action >= Action.FREE_COMPLETED) & (action <= Action.OOM)
    together &= action != Action.SNAPSHOT
    index = np.arange(len(action))
    before = np.concatenate([[-1], np.maximum.accumulate(np.where(together, -1, index))[:-1]])
    made = np.flatnonzero(action == Action.ALLOC)
    size = np.zeros(len(trace.allocations), np.int64)
    size[number[made]] = allocated[made + 1] - allocated[before[made] + 1]
    block = np.where(number >= 0, size[number], 0)
    asked = np.where(number >= 0, trace.allocations.requested[number], 0)
    gift = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    back = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    born, freed, done = (
        (action == code).astype(np.int64)
        for code in (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    )
    changes = {
        "requested": (born - done) * asked,
        "allocated": (born - freed) * block,
        "active": (born - done) * block,
        "reserved": (gift.astype(np.int64) - back) * trace.events.size,
    }
    return {label: np.cumsum(change) for label, change in changes.items()}


def peaks_from(counts: Counts, lost: int) -> dict[str, int]:
    return {label: int(column[max(lost - 1, 0) :].max()) for label, column in counts.items()}


@cache
def require_exact(path: Path, lost: int, limit: int | None) -> bool:
    """Replays from the cut on, once; says whether every peak is that of the whole run.

    A peak may miss bytes only where the start is said to be ambiguous, and no more than that says.
    """
    _, counts = whole(path)
    trace = to_trace(without_first(snapshot_of(path), lost), torch_version=TORCH)
    result = replay(trace, capacity=limit)
    where = f"{name_of(path)} without its first {lost:,} events, limit {limit}"
    assert result.compared, where
    assert result.divergence is None, f"{where}: {result.divergence}"
    assert result.exact, where
    codes = [note.code for note in trace.notes]
    assert "trace.contradiction" not in codes, where
    assert bool(trace.start) == any(c in {"trace.late", "trace.truncated"} for c in codes), where
    slack = sum(block.slack for segment in trace.start for block in segment.blocks)
    assert (slack > 0) == any("unsplit" in note.text for note in trace.notes), where
    ours, real = result.peak.as_dict(), peaks_from(counts, lost)
    for label in LABELS:
        missing = real[label] - ours[label]
        open_bytes = slack if label in {"allocated", "active"} else 0
        assert 0 <= missing <= open_bytes, f"{where}: peak {label} lacks {missing:,} bytes"
    return ours == real


@cache
def parts_of(path: Path) -> list[int]:
    count = len(whole(path)[0].events)
    return [int(count * part) for part in PARTS]


def awkward_cuts(trace: Trace, most: int) -> list[int]:
    """Cuts amid what belongs together: a request's own events, a free and its completion."""
    action = trace.events.action
    before, after = action[:-1], action[1:]
    segment = (before >= Action.SEGMENT_ALLOC) & (before <= Action.SEGMENT_UNMAP)
    kinds = [
        segment & (after != before),
        segment & (after == before),
        (before == Action.FREE_REQUESTED) & (after == Action.FREE_COMPLETED),
        (before == Action.FREE_REQUESTED) & (after != Action.FREE_COMPLETED),
        (before == Action.FREE_COMPLETED) & (after >= Action.SEGMENT_ALLOC),
        (before == Action.OOM) | (after == Action.OOM),
    ]
    choice = random.Random(len(action))
    cuts = []
    for kind in kinds:
        places = (np.flatnonzero(kind) + 1).tolist()
        cuts += choice.sample(places, min(most, len(places)))
    return cuts + [choice.randrange(1, len(action)) for _ in range(most)]


@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_small_recordings_replay_exactly_from_anywhere(path: Path) -> None:
    for lost in parts_of(path) + awkward_cuts(whole(path)[0], 2):
        for limit in {limit_of(path), None}:
            require_exact(path, lost, limit)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason=ABSENT)
@pytest.mark.parametrize("path", SHARED, ids=name_of)
def test_every_recording_replays_exactly_from_anywhere(path: Path) -> None:
    for lost in parts_of(path) + awkward_cuts(whole(path)[0], 2):
        for limit in {limit_of(path), None}:
            require_exact(path, lost, limit)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason=ABSENT)
def test_the_peaks_of_nearly_all_late_recordings_are_those_of_the_whole_run() -> None:
    equal = [require_exact(path, lost, None) for path in SHARED for lost in parts_of(path)]
    assert sum(equal) >= 0.98 * len(equal)


def require_labels(path: Path, lost: int) -> None:
    """The peaks that explain labels are the most from the cut on, less what it says it lacks."""
    _, counts = whole(path)
    explanation = explain(to_trace(without_first(snapshot_of(path), lost), torch_version=TORCH))
    slack = sum(block.slack for s in explanation.trace.start for block in s.blocks)
    ours, real = explanation.replay.peak.as_dict(), peaks_from(counts, lost)
    for label in LABELS:
        open_bytes = slack if label in {"allocated", "active"} else 0
        assert 0 <= real[label] - ours[label] <= open_bytes, (name_of(path), lost, label)
    assert bool(slack) == any("unsplit" in text for text in explanation.missing)
    assert sum(share.bytes for share in explanation.by_site) == ours["allocated"]
    assert sum(share.bytes for share in explanation.by_category) == ours["allocated"]
    if explanation.replay.first_oom is None:
        assert explanation.split.reserved == ours["reserved"]


@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_explain_labels_the_peaks_of_the_remaining_window(path: Path) -> None:
    for lost in parts_of(path) + awkward_cuts(whole(path)[0], 1):
        require_labels(path, lost)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason=ABSENT)
@pytest.mark.parametrize("path", SHARED, ids=name_of)
def test_explain_labels_the_peaks_of_every_remaining_window(path: Path) -> None:
    for lost in parts_of(path):
        require_labels(path, lost)


def test_a_late_recording_says_so() -> None:
    path = next(p for p in SMALL if name_of(p) == "leak_graph")
    trace = to_trace(without_first(snapshot_of(path), 345), torch_version=TORCH)
    note = next(n for n in trace.notes if n.code == "trace.late")
    live = sum(not b.pending for s in trace.start for b in s.blocks)
    assert f"{live:,} blocks" in note.text
    assert f"{len(trace.events):,} events" in note.text
    assert not trace.starts_empty


@pytest.mark.parametrize("kept", [1000, 1024, 3000])
def test_a_round_number_of_events_looks_like_a_full_ring(kept: int) -> None:
    path = next(p for p in SMALL if name_of(p) == "leak_graph")
    count = len(whole(path)[0].events)
    assert count > kept
    trace = to_trace(without_first(snapshot_of(path), count - kept), torch_version=TORCH)
    codes = [note.code for note in trace.notes]
    assert "trace.truncated" in codes
    assert "trace.late" not in codes
    assert recorded_replay(trace).exact


def test_a_recording_from_the_start_has_no_such_note() -> None:
    for path in SMALL:
        codes = {note.code for note in whole(path)[0].notes}
        assert not codes & {"trace.late", "trace.truncated", "trace.ambiguous"}


def test_a_late_recording_needs_at_least_what_was_live_before_it() -> None:
    scene = Scene()
    kept = scene.make(100, line(3))
    scene.make(5, line(4))
    scene.drop(kept, where=line(5))
    explanation = explain(scene.recording(len(scene.rows) - 2))
    assert explanation.replay.peak.allocated == 105 * MIB
    assert explanation.candidates
    assert all(c.smallest_capacity >= 105 * MIB for c in explanation.candidates)
