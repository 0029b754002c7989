"""Whatever a file holds: read, or refused in one line, soon, in little memory; never run."""

from __future__ import annotations

import copy
import gzip
import json
import lzma
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshot_samples
from snapshot_samples import Plain
from tenure.errors import BadInputError
from tenure.snapshots import Snapshot, read_snapshot
from test_layout import ROOT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GOLDEN = ROOT / "tests" / "golden"
RECORDED = lzma.decompress((GOLDEN / "leak_cycle.pickle.xz").read_bytes())
LONGEST_MESSAGE = 400  # letters

# Reads every file of a folder under a limit of 2 GiB and prints what came of each.
READ_ALL = """
import json, pathlib, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from tenure.errors import BadInputError
from tenure.snapshots import read_snapshot
results = {}
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    start = time.process_time()
    try:
        read_snapshot(path)
        outcome = ""
    except BadInputError as error:
        outcome = str(error)
    results[path.name] = (outcome, time.process_time() - start)
status = pathlib.Path("/proc/self/status").read_text()  # getrusage begins with the parent's peak
print(json.dumps([results, int(status.split("VmHWM:")[1].split()[0])]))
"""

fuzzing = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check_message(message: str, path: Path) -> None:
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) - len(str(path)) < LONGEST_MESSAGE
    assert message.isprintable()


def refusal(data: bytes, tmp_path: Path) -> str:
    """The message of a file that must not be accepted, without the file's name."""
    path = tmp_path / "hostile.pickle"
    path.write_bytes(data)
    with pytest.raises(BadInputError) as caught:
        read_snapshot(path)
    check_message(str(caught.value), path)
    return str(caught.value).removeprefix(f"{path}: ")


def read_or_refuse(data: bytes, tmp_path: Path) -> Snapshot | None:
    path = tmp_path / "hostile.pickle"
    path.write_bytes(data)
    try:
        snapshot = read_snapshot(path)
    except BadInputError as error:
        check_message(str(error), path)
        return None
    check_indices(snapshot)
    return snapshot


def check_indices(snapshot: Snapshot) -> None:
    stacks = len(snapshot.stacks.offset) - 1
    for events in snapshot.devices:
        assert ((events.stack >= -1) & (events.stack < stacks)).all()
        assert ((events.pool >= -1) & (events.pool < len(snapshot.pools))).all()
        assert (events.metadata < len(snapshot.strings)).all()
        assert (events.size >= 0).all()
    assert ((snapshot.blocks.stack >= -1) & (snapshot.blocks.stack < stacks)).all()
    assert snapshot.segments.block_offset[-1] == len(snapshot.blocks)
    assert snapshot.segments.size.sum() == snapshot.blocks.size.sum()


# --- code ----------------------------------------------------------------------------------------


class Evil:
    """Would make a file, were it unpickled."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.flag}",)


PLACES: dict[str, Callable[[Plain, object], object]] = {
    "a key of the top": lambda s, evil: s.update({"x": evil}),
    "the segments": lambda s, evil: s.update(segments=evil),
    "a segment": lambda s, evil: s["segments"].append(evil),
    "a segment's stack": lambda s, evil: s["segments"][0].update(frames=evil),
    "a block": lambda s, evil: s["segments"][0]["blocks"].append(evil),
    "a block's size": lambda s, evil: s["segments"][0]["blocks"][0].update(size=evil),
    "an event": lambda s, evil: s["device_traces"][0].append(evil),
    "an event's address": lambda s, evil: s["device_traces"][0][3].update(addr=evil),
    "an event's unknown key": lambda s, evil: s["device_traces"][0][3].update(y=evil),
    "a stack": lambda s, evil: s["device_traces"][0][3].update(frames=[evil]),
    "a frame's line": lambda s, evil: s["device_traces"][0][3]["frames"][0].update(line=evil),
    "a setting": lambda s, evil: s["allocator_settings"].update(y=evil),
    "an annotation": lambda s, evil: s["external_annotations"].append(evil),
    "host memory": lambda s, evil: s.update(host_traces=[evil]),
    "a dict's key": lambda s, evil: s["allocator_settings"].update(dict.fromkeys([(evil,)])),
    "a set": lambda s, evil: s.update(x={evil}),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("where", PLACES)
def test_a_callable_hidden_anywhere(where: str, protocol: int, tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    plain = copy.deepcopy(snapshot_samples.torch_2_11())
    PLACES[where](plain, Evil(flag))
    message = refusal(pickle.dumps(plain, protocol), tmp_path)
    # Up to protocol 3 a set is itself a call, and the first to be met.
    assert "(posix.system)" in message or (where == "a set" and ".set)" in message)
    assert "run code" in message
    assert not flag.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_callable_and_nothing_else(protocol: int, tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    refusal(pickle.dumps(Evil(flag), protocol), tmp_path)
    assert not flag.exists()


class Ordinary:
    """An object of a class, as a careless tool might put into a snapshot."""


@pytest.mark.parametrize("thing", [Ordinary(), 1j, range(3), bytearray(3), Path(), ValueError()])
def test_an_object_of_any_class(thing: object, tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    plain["allocator_settings"]["y"] = thing
    for protocol in (0, 1, 2, 3, 4):
        assert "run code" in refusal(pickle.dumps(plain, protocol), tmp_path)


# --- broken files --------------------------------------------------------------------------------


def hostile_files() -> dict[str, bytes]:
    start = b"\x80\x02"
    plain = snapshot_samples.torch_2_11()
    cyclic: list[object] = []
    cyclic.append(cyclic)
    event = plain["device_traces"][0][0]
    made: dict[str, bytes] = {
        "empty": b"",
        "text": b"hello",
        "zeros": bytes(5000),
        "html": b"<!DOCTYPE html><html>",
        "zip": b"PK\x03\x04" + bytes(100),
        "list": pickle.dumps([1, 2]),
        "empty_list": pickle.dumps([]),
        "none": pickle.dumps(None),
        "number": pickle.dumps(7),
        "no_keys": pickle.dumps({"a": 1}),
        "huge_length": start + b"X\xff\xff\xff\x7fa",
        "huge_length_8": b"\x80\x04\x8d" + b"\xff" * 8,
        "huge_bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f",
        "huge_frame": b"\x80\x04\x95" + b"\xff" * 8 + b"X\xff\xff\xff\x7fa",
        "huge_integer": start + b"\x8b\xff\xff\xff\x7f" + bytes(1000),
        "long_integer": start + b"]\x8b\x00\x10\x00\x00" + b"\x7f" * 4096 + b"a.",
        "long_decimal": b"(lp0\nL" + b"9" * 1_000_000 + b"L\na.",
        "endless_line": b"(lp0\nL" + b"9" * 5_000_000,
        "deep_lists": start + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        "deep_open": start + b"]" * 200_000 + b".",
        "deep_dicts": start + b"}" + b"K\x00}" * 300_000 + b"s" * 300_000 + b".",
        "deep_tuples": start + b"]N" + b"\x85" * 1_000_000 + b"a.",
        "marks": start + b"(" * 1_000_000 + b".",
        "memo": start + b"]r\xff\xff\xff\x7f.",
        "memo_gap": start + b"]r\xff\xff\x00\x00.",
        "memo_text": b"(lp99999999999999999999\n.",
        "memos": b"\x80\x04]" + b"\x94" * 1_000_000 + b".",
        "shapes": start + b"".join(b"}J" + i.to_bytes(4, "little") + b"Ns0" for i in range(99_999)),
        "long_shapes": start
        + b"".join(
            b"}" + b"".join(b"M" + (i + k).to_bytes(2, "little") + b"Ns" for k in range(64)) + b"0"
            for i in range(0, 60_000, 64)
        )
        + b"}.",
        "cyclic": pickle.dumps(cyclic),
        "cyclic_segments": pickle.dumps({"segments": cyclic}),
        "cyclic_traces": pickle.dumps({**plain, "device_traces": cyclic}),
        "cyclic_stack": pickle.dumps({**plain, "device_traces": [[{**event, "frames": cyclic}]]}),
        "cyclic_settings": pickle.dumps({**plain, "allocator_settings": {"x": cyclic}}),
        "cyclic_notes": pickle.dumps({**plain, "external_annotations": cyclic}),
    }
    return made | repetitions(plain) | cuts(RECORDED) | wrong_values()


def repetitions(plain: Plain) -> dict[str, bytes]:
    """Files of a few kilobytes that stand for thousands of millions of objects."""
    event = snapshot_samples.event("alloc", 1, 1, 1)
    wide = [event] * 5000
    laughs: list[object] = ["ha"] * 10
    for _ in range(12):
        laughs = [laughs] * 10
    block = snapshot_samples.block(snapshot_samples.BASE, 512, 512, "inactive")
    segments = [snapshot_samples.segment(snapshot_samples.BASE, [block])] * 5000
    return {
        "same_trace": pickle.dumps({**plain, "device_traces": [wide] * 5000}),
        "same_segment": pickle.dumps({**plain, "segments": segments}),
        "same_blocks": pickle.dumps(segments),
        "laughs": pickle.dumps({**plain, "allocator_settings": {"x": laughs}}),
        "long_settings": pickle.dumps({**plain, "allocator_settings": ["x" * 500_000] * 5000}),
        "long_setting": pickle.dumps({**plain, "allocator_settings": {"x": ["y" * 500_000] * 99}}),
        "long_action": pickle.dumps(
            {**plain, "device_traces": [[{**event, "action": "x" * 500_000}] * 5000]}
        ),
    }


def cuts(good: bytes) -> dict[str, bytes]:
    random.seed(1)
    places = [*range(40), len(good) // 2, len(good) - 1, *random.sample(range(len(good)), 40)]
    return {f"cut_{place}": good[:place] for place in places}


def wrong_values() -> dict[str, bytes]:
    """One value of a good snapshot replaced by another that cannot be right."""
    changes: dict[str, Callable[[Plain], object]] = {
        "negative_size": lambda s: s["device_traces"][0][2].update(size=-5),
        "wide_size": lambda s: s["device_traces"][0][2].update(size=1 << 63),
        "huge_size": lambda s: s["device_traces"][0][2].update(size=1 << 200),
        "beyond_memory": lambda s: s["device_traces"][0][2].update(addr=(1 << 64) - 1),
        "text_size": lambda s: s["segments"][0].update(total_size="big"),
        "float_address": lambda s: s["device_traces"][0][1].update(addr=1.5),
        "bool_address": lambda s: s["device_traces"][0][1].update(addr=True),
        "no_address": lambda s: s["device_traces"][0][1].pop("addr"),
        "no_free": lambda s: s["device_traces"][0][4].pop("device_free"),
        "no_action": lambda s: s["device_traces"][0][1].pop("action"),
        "bytes_action": lambda s: s["device_traces"][0][1].update(action=b"alloc"),
        "list_as_event": lambda s: s["device_traces"][0].append([]),
        "dict_as_trace": lambda s: s["device_traces"].append({}),
        "dict_as_traces": lambda s: s.update(device_traces={}),
        "frames_none": lambda s: s["device_traces"][0][1].update(frames=None),
        "frame_text": lambda s: s["device_traces"][0][1].update(frames=["f"]),
        "frame_no_line": lambda s: s["device_traces"][0][1].update(
            frames=[{"filename": "f", "name": "n"}]
        ),
        "pool_triple": lambda s: s["device_traces"][0][1].update(pool_id=(0, 0, 0)),
        "pool_text": lambda s: s["device_traces"][0][1].update(pool_id=("a", "b")),
        "no_segments": lambda s: s.pop("segments"),
        "segments_none": lambda s: s.update(segments=None),
        "segment_list": lambda s: s["segments"].append([]),
        "segment_type": lambda s: s["segments"][0].update(segment_type="middle"),
        "segment_device": lambda s: s["segments"][0].update(device=-1),
        "segment_overlap": lambda s: s["segments"].append(copy.deepcopy(s["segments"][0])),
        "block_state": lambda s: s["segments"][0]["blocks"][0].update(state="busy"),
        "block_outside": lambda s: s["segments"][0]["blocks"][2].update(size=1 << 40),
        "block_empty": lambda s: s["segments"][0]["blocks"][2].update(size=0),
        "block_gap": lambda s: s["segments"][0]["blocks"].pop(1),
        "block_missing": lambda s: s["segments"][0]["blocks"].pop(),
        "block_small": lambda s: s["segments"][0]["blocks"][0].update(requested_size=1 << 40),
        "settings_list": lambda s: s.update(allocator_settings=[]),
        "settings_huge": lambda s: s["allocator_settings"].update(x=1 << 70),
        "settings_key": lambda s: s["allocator_settings"].update({(1, 2): 3}),
        "annotation": lambda s: s["external_annotations"].append({"name": 1}),
        "stage": lambda s: s["external_annotations"][0].update(stage="MIDDLE"),
        "wide_event": lambda s: s["device_traces"][0].append(dict.fromkeys(map(str, range(1000)))),
        "wide_top": lambda s: s.update(dict.fromkeys(map(str, range(1000)))),
    }
    made = {}
    for name, change in changes.items():
        plain = snapshot_samples.torch_2_11()
        change(plain)
        made[f"value_{name}"] = pickle.dumps(plain)
    return made


def test_hostile_files_are_refused_soon_and_in_little_memory(tmp_path: Path) -> None:
    everything = hostile_files()
    for name, data in everything.items():
        (tmp_path / name).write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    results, kib = json.loads(run.stdout)
    accepted = {name for name, (message, _) in results.items() if not message}
    assert accepted == set()
    for name, (message, seconds) in results.items():
        check_message(message, tmp_path / name)
        assert seconds < 2, name
    assert kib < 300 << 10


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("negative_size", "device_traces[0][2].size: found the integer -5 instead of"),
        ("text_size", "segments[0].total_size: found the string 'big' instead of"),
        ("no_address", "device_traces[0][1]: no addr"),
        ("frame_text", "device_traces[0][1].frames[0]: found the string 'f' instead of"),
        ("block_outside", "segments[0].blocks[2].size: the block ends outside its segment"),
        ("segment_overlap", "segments[2]: overlaps segments[0]"),
        ("no_segments", "no 'segments'"),
    ],
)
def test_messages_say_where_and_what(name: str, words: str, tmp_path: Path) -> None:
    message = refusal(wrong_values()[f"value_{name}"], tmp_path)
    assert words in message
    assert message.endswith("is this a file from torch.cuda.memory._dump_snapshot?")


# --- random damage -------------------------------------------------------------------------------


@fuzzing
@given(
    sample=st.sampled_from(sorted(snapshot_samples.ALL)),
    protocol=st.integers(0, 5),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_flipped_bytes(
    sample: str, protocol: int, flips: list[tuple[int, int]], tmp_path: Path
) -> None:
    data = bytearray(pickle.dumps(snapshot_samples.ALL[sample](), protocol))
    for place, byte in flips:
        data[place % len(data)] = byte
    read_or_refuse(bytes(data), tmp_path)


@fuzzing
@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes, tmp_path: Path) -> None:
    read_or_refuse(b"\x80\x04" + data, tmp_path)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def containers(value: object) -> list[Any]:
    """Every list and dict within a value."""
    if isinstance(value, dict):
        return [value, *(c for v in value.values() for c in containers(v))]
    if isinstance(value, list):
        return [value, *(c for v in value for c in containers(v))]
    return []


@pytest.mark.parametrize("value", [1e291, -1e-300, 1 << 900, "x" * 5000, b"y" * 5000])
def test_a_value_however_large_is_named_in_short(value: object, tmp_path: Path) -> None:
    plain = snapshot_samples.torch_2_11()
    plain["segments"] = value
    read_or_refuse(pickle.dumps(plain), tmp_path)


@fuzzing
@given(sample=st.sampled_from(sorted(snapshot_samples.ALL)), data=st.data())
def test_anything_in_place_of_any_value(sample: str, data: st.DataObject, tmp_path: Path) -> None:
    plain = copy.deepcopy(snapshot_samples.ALL[sample]())
    places = [c for c in containers(plain) if c]
    place = places[data.draw(st.integers(0, len(places) - 1))]
    key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(ANYTHING)
    read_or_refuse(pickle.dumps(plain), tmp_path)


# --- compressed files ----------------------------------------------------------------------------

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "xz": lambda data: lzma.compress(data, preset=0),
    "gz": lambda data: gzip.compress(data, 9),
    "zst": zstd.compress,
}


@pytest.mark.parametrize("kind", COMPRESSIONS)
@pytest.mark.parametrize("cut", [8, 12, 200, -1, -8])
def test_compressed_data_cut_short(kind: str, cut: int, tmp_path: Path) -> None:
    data = COMPRESSIONS[kind](RECORDED)
    message = refusal(data[:cut], tmp_path)
    assert "copy it again" in message or "copy the file again" in message or "empty" in message


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_damaged_compressed_data(kind: str, tmp_path: Path) -> None:
    data = COMPRESSIONS[kind](RECORDED)
    random.seed(2)
    for _ in range(50):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[random.randrange(6, len(data))] = random.randrange(256)
        read_or_refuse(bytes(damaged), tmp_path)


def test_a_bomb_of_something_else_is_not_inflated(tmp_path: Path) -> None:
    assert "not a pickle" in refusal(gzip.compress(bytes(50_000_000), 1), tmp_path)


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_a_bomb_that_is_a_pickle(kind: str, tmp_path: Path) -> None:
    bomb = b"\x80\x02" + b"N0" * 20_000_000
    assert "swell" in refusal(COMPRESSIONS[kind](bomb), tmp_path)


def test_a_limit_of_the_callers_own(tmp_path: Path) -> None:
    path = tmp_path / "good.pickle.gz"
    path.write_bytes(gzip.compress(RECORDED))
    read_snapshot(path, largest=len(RECORDED))
    with pytest.raises(BadInputError, match="more than 10,000 bytes"):
        read_snapshot(path, largest=10_000)


def test_devices_without_end_or_content() -> None:
    with pytest.raises(BadInputError, match="not a pickle"):
        read_snapshot("/dev/zero")
    with pytest.raises(BadInputError, match="empty"):
        read_snapshot(os.devnull)


def test_a_name_that_would_garble_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a\n\x1b[31mb.pickle"
    path.write_bytes(b"hello")
    with pytest.raises(BadInputError) as caught:
        read_snapshot(path)
    assert str(caught.value).isprintable()
