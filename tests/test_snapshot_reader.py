"""The columns of a snapshot hold what pickle.load finds in the file, in every format."""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snapshot_samples
from snapshot_samples import BASE, MIB, Plain, TorchPickler
from tenure.errors import BadInputError, UsageError
from tenure.snapshots import ACTION_NAMES, Snapshot, read_snapshot, to_plain, write_snapshot
from test_layout import ROOT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.pickle.xz"))
SHARED = Path(os.environ.get("TENURE_SHARED", ROOT.parent / "shared")) / "traces"
OPTIONAL_OF_EVENTS = ("time_us", "pool_id", "compile_context", "frames", "stream")


def read_plain(plain: object, tmp_path: Path, *, protocol: int = 4) -> Snapshot:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(plain, protocol))
    return read_snapshot(path)


def frames_of(snapshot: Snapshot, stack: int) -> list[tuple[str, int, str]]:
    return snapshot.stack(int(stack))


def plain_frames(frames: list[Plain] | None) -> list[tuple[str, int, str]]:
    return [(f["filename"], f["line"], f["name"]) for f in frames or ()]


def text(snapshot: Snapshot, index: int) -> str | None:
    return None if index < 0 else snapshot.strings[index]


def check_events(snapshot: Snapshot, plain: Plain) -> None:
    traces = plain.get("device_traces", [])
    assert len(snapshot.devices) == len(traces)
    for events, trace in zip(snapshot.devices, traces, strict=True):
        assert len(events) == len(trace)
        for i, e in enumerate(trace):
            assert ACTION_NAMES[events.action[i]] == e["action"]
            assert events.address[i] == e["device_free" if e["action"] == "oom" else "addr"]
            assert events.size[i] == e["size"]
            assert events.stream[i] == e["stream"]
            assert events.time_us[i] == e.get("time_us", 0)
            assert frames_of(snapshot, events.stack[i]) == plain_frames(e.get("frames"))
            assert (events.pool[i] < 0) == ("pool_id" not in e)
            if "pool_id" in e:
                assert snapshot.pools[events.pool[i]] == e["pool_id"]
            assert text(snapshot, events.metadata[i]) == (e.get("user_metadata") or None)
            context = e.get("compile_context", "N/A")
            assert text(snapshot, events.compile_context[i]) == (
                None if context == "N/A" else context
            )


def check_segments(snapshot: Snapshot, plain: Plain) -> None:
    segments, blocks = snapshot.segments, snapshot.blocks
    states = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2}
    assert len(segments) == len(plain["segments"])
    for i, s in enumerate(plain["segments"]):
        assert segments.device[i] == s["device"]
        assert segments.address[i] == s["address"]
        assert segments.size[i] == s["total_size"]
        assert segments.stream[i] == s["stream"]
        assert segments.large[i] == (s["segment_type"] == "large")
        assert snapshot.pools[segments.pool[i]] == s.get("segment_pool_id", (0, 0))
        assert segments.expandable[i] == s.get("is_expandable", False)
        assert frames_of(snapshot, segments.stack[i]) == plain_frames(s.get("frames"))
        rows = range(segments.block_offset[i], segments.block_offset[i + 1])
        address = s["address"]
        for row, b in zip(rows, s["blocks"], strict=True):
            newest = b.get("history", [{}])[0]
            active = b["state"] != "inactive"
            requested = b.get("requested_size", newest.get("real_size", active * b["size"]))
            assert blocks.address[row] == b.get("address", address)
            assert blocks.size[row] == b["size"]
            assert blocks.requested[row] == requested
            assert blocks.state[row] == states[b["state"]]
            frames = b.get("frames", newest.get("frames"))
            assert frames_of(snapshot, blocks.stack[row]) == plain_frames(frames)
            address += b["size"]


def check_rest(snapshot: Snapshot, plain: Plain) -> None:
    assert snapshot.settings == plain.get("allocator_settings", {})
    columns = snapshot.annotations
    annotations = [
        {
            "name": snapshot.strings[columns.name[i]],
            "stage": "START" if columns.start[i] else "END",
            "device": columns.device[i],
            "time_us": columns.time_us[i],
        }
        for i in range(len(columns.name))
    ]
    assert annotations == plain.get("external_annotations", [])
    traces: list[Plain] = [e for trace in plain.get("device_traces", []) for e in trace]
    for key in OPTIONAL_OF_EVENTS:
        assert snapshot.keys[f"event.{key}"] == any(key in e for e in traces)
    for key in ("device_traces", "host_segments", "host_traces", "allocator_settings"):
        assert snapshot.keys[key] == (key in plain)
    found = [b for s in plain["segments"] for b in s["blocks"]]
    for key in ("address", "requested_size", "history", "frames"):
        assert snapshot.keys[f"block.{key}"] == any(key in b for b in found)
    for key, name in (("pool_id", "segment_pool_id"), ("is_expandable", "is_expandable")):
        assert snapshot.keys[f"segment.{key}"] == any(name in s for s in plain["segments"])


def check(snapshot: Snapshot, plain: Plain) -> None:
    check_events(snapshot, plain)
    check_segments(snapshot, plain)
    check_rest(snapshot, plain)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.name)
def test_recorded_files(path: Path) -> None:
    plain = pickle.loads(lzma.decompress(path.read_bytes()))
    snapshot = read_snapshot(path)
    check(snapshot, plain)
    assert to_plain(snapshot) == plain


@pytest.mark.slow
def test_all_shared_recordings() -> None:
    if not SHARED.exists():
        pytest.skip("no folder ../shared; TENURE_SHARED names another place")
    for path in sorted(SHARED.glob("*.pickle.xz")):
        if path.stat().st_size < 400_000:
            plain = pickle.loads(lzma.decompress(path.read_bytes()))
            assert to_plain(read_snapshot(path)) == plain, path.name


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("sample", snapshot_samples.ALL)
def test_formats(sample: str, protocol: int, tmp_path: Path) -> None:
    plain = snapshot_samples.ALL[sample]()
    check(read_plain(plain, tmp_path, protocol=protocol), plain)


@pytest.mark.parametrize("sample", snapshot_samples.ALL)
def test_torchs_own_pickler(sample: str, tmp_path: Path) -> None:
    plain = snapshot_samples.ALL[sample]()
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(TorchPickler().dumps(plain))
    assert pickle.loads(path.read_bytes()) == plain
    check(read_snapshot(path), plain)


def test_equal_stacks_are_one_stack(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    copies = pickle.loads(pickle.dumps(plain))
    for e in copies["device_traces"][0]:
        e["frames"] = [dict(f) for f in e["frames"]]
    snapshot = read_plain(copies, tmp_path)
    check(snapshot, plain)
    assert len(snapshot.stacks.offset) == 3
    assert len(snapshot.frames.line) == 3


def test_a_stack_of_more_frames_than_pickle_writes_at_once(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    deep = [snapshot_samples.frame("recurse", line) for line in range(5000)]
    for e in plain["device_traces"][0]:
        e["frames"] = deep
    snapshot = read_plain(plain, tmp_path)
    check(snapshot, plain)
    assert len(snapshot.stacks.frame) == 5000 + 3


def test_many_events_keep_their_order(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    plain["device_traces"][1] = [
        snapshot_samples.event("alloc", BASE + i, i, i) for i in range(12_345)
    ]
    events = read_plain(plain, tmp_path).devices[1]
    assert np.array_equal(events.size, np.arange(12_345))
    assert np.array_equal(events.address, BASE + np.arange(12_345, dtype=np.uint64))


def test_a_list_of_segments_alone(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    snapshot = read_plain(plain["segments"], tmp_path)
    check_segments(snapshot, plain)
    assert len(snapshot.devices) == 0
    assert not snapshot.keys["device_traces"]


def test_unknown_actions_are_counted(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    plain["device_traces"][0][1]["action"] = "explode"
    snapshot = read_plain(plain, tmp_path)
    assert snapshot.unknown_actions == {"explode": 1}
    assert ACTION_NAMES[snapshot.devices[0].action[1]] == "other"
    assert to_plain(snapshot) == plain


def test_integers_that_pytorch_writes_signed(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    high = 0xFFFF_8000_0000_0000
    plain["segments"][1]["address"] = plain["segments"][1]["blocks"][0]["address"] = high
    plain["device_traces"][0][0]["addr"] = high - (1 << 64)
    plain["device_traces"][0][0]["frames"] = [snapshot_samples.frame("generated", (1 << 64) - 1)]
    snapshot = read_plain(plain, tmp_path)
    assert snapshot.devices[0].address[0] == high
    assert snapshot.segments.address[1] == snapshot.blocks.address[3] == high
    assert snapshot.stack(int(snapshot.devices[0].stack[0]))[0][1] == 0


def test_text_that_is_no_unicode_can_be_printed(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    plain["device_traces"][0][0]["user_metadata"] = "caf\udce9 é 日本 😀"
    for protocol in (0, 2, 4):
        snapshot = read_plain(plain, tmp_path, protocol=protocol)
        read = text(snapshot, snapshot.devices[0].metadata[0])
        assert read == "caf\ufffd é 日本 😀"


def compressed_forms() -> dict[str, Callable[[bytes], bytes]]:
    return {"plain": bytes, "xz": lzma.compress, "gz": gzip.compress, "zst": zstd.compress}


@pytest.mark.parametrize("form", compressed_forms())
def test_compression_is_told_by_content(form: str, tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    path = tmp_path / "named_wrongly.xz"
    path.write_bytes(compressed_forms()[form](pickle.dumps(plain)))
    assert to_plain(read_snapshot(path)) == plain


@pytest.mark.parametrize("form", compressed_forms())
def test_standard_input(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = snapshot_samples.torch_2_11()
    data = compressed_forms()[form](pickle.dumps(plain))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    snapshot = read_snapshot("-")
    assert snapshot.source == "standard input"
    assert to_plain(snapshot) == plain


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    plain = snapshot_samples.torch_2_11()
    plain["device_traces"][1] = [
        snapshot_samples.event("alloc", BASE + i, i, i) for i in range(20_000)
    ]
    writer = threading.Thread(target=lambda: path.write_bytes(pickle.dumps(plain)))
    writer.start()
    snapshot = read_snapshot(path)
    writer.join()
    assert len(snapshot.devices[1]) == 20_000


@pytest.mark.parametrize("ending", ["", ".xz", ".gz", ".zst"])
@pytest.mark.parametrize("sample", ["torch_2_11", "torch_2_12"])
def test_what_is_written_is_read_again(sample: str, ending: str, tmp_path: Path) -> None:
    plain = snapshot_samples.ALL[sample]()
    snapshot = read_plain(plain, tmp_path)
    path = tmp_path / f"written.pickle{ending}"
    write_snapshot(snapshot, path)
    again = read_snapshot(path)
    assert to_plain(again) == plain
    with pytest.raises(UsageError, match="exists"):
        write_snapshot(snapshot, path)
    write_snapshot(snapshot, path, force=True)
    if not ending:
        assert pickle.loads(path.read_bytes()) == plain


def test_writing_where_one_cannot(tmp_path: Path) -> None:
    snapshot = read_plain(snapshot_samples.torch_2_11(), tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        write_snapshot(snapshot, tmp_path / "no" / "folder.pickle")


def test_columns_are_read_only(tmp_path: Path) -> None:
    snapshot = read_plain(snapshot_samples.torch_2_11(), tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        snapshot.devices[0].size[0] = 1


def test_columns_outlive_the_file(tmp_path: Path) -> None:
    snapshot = read_plain(snapshot_samples.torch_2_11(), tmp_path)
    sizes = snapshot.devices[0].size
    (tmp_path / "snapshot.pickle").unlink()
    del snapshot
    assert sizes[0] == 20 * MIB


def bad_paths(tmp_path: Path) -> dict[str, tuple[str, str]]:
    return {
        "missing": (str(tmp_path / "none.pickle"), "no such file"),
        "folder": (str(tmp_path), "a directory"),
        "null byte": ("a\0b", "check the path"),
        "long": ("x" * 5000, "cannot be read"),
    }


@pytest.mark.parametrize("case", ["missing", "folder", "null byte", "long"])
def test_files_that_cannot_be_opened(case: str, tmp_path: Path) -> None:
    path, words = bad_paths(tmp_path)[case]
    with pytest.raises(BadInputError, match=words) as caught:
        read_snapshot(path)
    assert "\n" not in str(caught.value)


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.pickle"
    path.write_bytes(b"\x80\x04}.")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(BadInputError, match="no permission"):
        read_snapshot(path)


def test_reading_lets_other_threads_run(tmp_path: Path) -> None:
    """The GIL is free while the engine parses: many readers at once give what one gives."""
    plain = snapshot_samples.torch_2_11()
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(plain))
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(to_plain(read_snapshot(path))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [plain] * 8


def test_importing_the_room_loads_no_torch() -> None:
    code = "import sys, tenure.snapshots; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_time_and_memory_of_the_largest_recording(tmp_path: Path) -> None:
    """525,000 events: well under pickle.load's time, and less than four times the file."""
    source = SHARED / "llama_generate.pickle.xz"
    if not source.exists():
        pytest.skip("no folder ../shared; TENURE_SHARED names another place")
    path = tmp_path / "large.pickle"
    path.write_bytes(lzma.decompress(source.read_bytes()))
    measure = (
        "import time; t = time.process_time(); {}; "
        "status = open('/proc/self/status').read(); "  # getrusage begins with the parent's peak
        "print(time.process_time() - t, status.split('VmHWM:')[1].split()[0])"
    )
    ours = f"from tenure.snapshots import read_snapshot; read_snapshot({str(path)!r})"
    pickles = f"import pickle; pickle.load(open({str(path)!r}, 'rb'))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", measure.format(code)], capture_output=True, text=True, check=True
        ).stdout.split()
        for code in (ours, pickles)
    ]
    (seconds, kib), (pickle_seconds, _) = runs
    assert float(seconds) < 0.6 * float(pickle_seconds)
    assert int(kib) * 1024 < 4 * path.stat().st_size


def test_any_optional_keys_may_be_missing(tmp_path: Path) -> None:
    """Every optional key of an event, in every combination."""
    for missing in itertools.product([False, True], repeat=len(OPTIONAL_OF_EVENTS)):
        plain = snapshot_samples.torch_2_12()
        gone = [k for k, m in zip(OPTIONAL_OF_EVENTS, missing, strict=True) if m]
        for e in plain["device_traces"][0]:
            for key in gone:
                e.pop(key, None)
        snapshot = read_plain(plain, tmp_path)
        for key in gone:
            assert not snapshot.keys[f"event.{key}"]


def test_the_stack_of_the_forward_op_is_read_and_written(tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    events = plain["device_traces"][0]
    events[2]["forward_frames"] = snapshot_samples.STACK[:2]
    events[3]["forward_frames"] = []
    events[4]["forward_frames"] = ["a text of another form"]
    snapshot = read_plain(plain, tmp_path)
    forward = snapshot.devices[0].forward
    assert forward is not None
    assert [int(stack) >= 0 for stack in forward] == [i == 2 for i in range(len(events))]
    assert frames_of(snapshot, forward[2]) == plain_frames(events[2]["forward_frames"])
    assert snapshot.devices[1].forward is None
    assert snapshot.keys["event.forward_frames"]
    again = read_plain(to_plain(snapshot), tmp_path)
    kept = again.devices[0].forward
    assert kept is not None
    assert frames_of(again, kept[2]) == frames_of(snapshot, forward[2])


def test_most_files_have_no_stack_of_a_forward_op(tmp_path: Path) -> None:
    snapshot = read_plain(snapshot_samples.torch_2_11(), tmp_path)
    assert all(events.forward is None for events in snapshot.devices)
    assert not snapshot.keys["event.forward_frames"]
