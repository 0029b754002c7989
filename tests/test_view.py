"""`tenure view`: what its pages, pictures and exports hold, and what they leave out."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tenure
from hostile_recording import HOSTILE, hostile_trace
from shared_data import ABSENT, EXAMPLES, ROOT, name_of, traces
from tenure.cli import commands
from tenure.diagnoses import explain
from tenure.errors import UsageError
from tenure.lifetimes import ORDER
from tenure.replays import recorded_replay
from tenure.reports.exports import collapsed_stacks, trace_events
from tenure.reports.page import Lives, lives_of, page_html
from tenure.reports.page.building import SCRIPTS, joined_scripts
from tenure.reports.page.packing import LARGEST, Column, pack, unpack
from tenure.reports.plots import address_image, sample
from tenure.reports.redaction import METHODS, public_path, redacted, without_paths
from tenure.snapshots import load

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.diagnoses import Explanation
    from tenure.replays import Replay
    from tenure.traces import Trace

NAMES = ("gpt2_varlen", "prefetch_streams", "leak_graph", "llama_lora.limit5.5", "resnet50")
GPT2 = str(EXAMPLES / "gpt2_varlen.pickle.xz")


@cache
def replayed(name: str) -> tuple[Trace, Replay]:
    trace = load(EXAMPLES / f"{name}.pickle.xz")
    return trace, recorded_replay(trace, timeline=True)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(commands, ["view", *arguments])


def data_of(page: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', page)
    assert found
    return unpack(found[1])


# --- what the charts are drawn from ---------------------------------------------------------------


def check_levels(trace: Trace, replay: Replay) -> None:
    lives = lives_of(trace, replay)
    timeline = replay.timeline
    assert timeline is not None
    assert (np.diff(lives.born) >= 0).all()
    assert (lives.born <= lives.freed).all()
    assert (lives.freed <= lives.done).all()
    assert (lives.level()[1:] == timeline.allocated).all()
    assert lives.level()[replay.peak_event.allocated + 1] == replay.peak.allocated
    assert lives.reserved_level().max(initial=0) == replay.peak.reserved


@pytest.mark.parametrize("name", NAMES)
def test_live_bytes_of_the_picture_are_the_replays_after_every_event(name: str) -> None:
    check_levels(*replayed(name))


@pytest.mark.slow
@pytest.mark.skipif(not traces(), reason=ABSENT)
@pytest.mark.parametrize("path", traces(), ids=name_of)
def test_live_bytes_are_the_replays_on_every_recording(path: Path) -> None:
    trace = load(path)
    replay = recorded_replay(trace, timeline=True)
    if replay.exact:
        check_levels(trace, replay)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_blocks_lie_on_one_another_and_all_lie_in_segments(name: str) -> None:
    lives = lives_of(*replayed(name))
    assert (lives.place >= 0).all()
    for position in np.linspace(0, lives.positions - 1, 25).astype(int).tolist():
        held = np.flatnonzero((lives.born <= position) & (position < lives.done))
        held = held[np.argsort(lives.place[held])]
        end = lives.place[held] + lives.size[held]
        assert (end[:-1] <= lives.place[held][1:]).all()
        for block in held.tolist():
            span = int(lives.home[block])
            if span >= 0:
                place = int(lives.ground.place(lives.ground.address)[span])
                assert place <= lives.place[block]
                assert lives.place[block] + lives.size[block] <= place + lives.ground.size[span]


@pytest.mark.parametrize("name", NAMES)
def test_categories_and_lines_are_those_that_explain_names(name: str) -> None:
    explanation = explain(replayed(name)[0])
    head, columns = data_of(page_html(explanation, name))
    [peak] = [m["position"] for m in head["marks"] if m["kind"] == "peak"]
    born, size = columns["born"], columns["shape_size"][columns["shape"]]
    live = (born <= peak) & (peak < born + columns["life"])
    for table, key, expected in (
        (head["categories"], "category", {s.category: s.bytes for s in explanation.by_category}),
        (head["sites"], "site", total_by_label(explanation)),
    ):
        found = np.bincount(columns[key][live], weights=size[live], minlength=len(table))
        told = [(name, int(n)) for name, n in zip(table, found, strict=True) if n]
        assert total(told) == expected


def total(pairs: list[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for label, size in pairs:
        sums[label] = sums.get(label, 0) + size
    return sums


def total_by_label(explanation: Explanation) -> dict[str, int]:
    return total([(share.label, share.bytes) for share in explanation.by_site])


columns = hnp.arrays(np.int64, st.integers(0, 30), elements=st.integers(-LARGEST, LARGEST))


@given(values=columns, delta=st.booleans())
def test_packed_columns_come_back(values: Any, delta: bool) -> None:
    if delta:
        values = values // 4  # differences must fit too
    head, unpacked = unpack(pack({"file": "</script>"}, [Column("x", values, delta)]))
    assert head["file"] == "</script>"
    assert (unpacked["x"] == values).all()


# --- the page -------------------------------------------------------------------------------------


def test_values_of_the_file_are_nowhere_in_the_markup() -> None:
    page = page_html(explain(hostile_trace()), HOSTILE[0])
    for text in HOSTILE:
        assert text not in page
    assert page.count("<script") == 3  # theme, data, script
    head, _ = data_of(page)
    assert set(HOSTILE) <= set(head["strings"])
    assert head["file"] == HOSTILE[0]


def test_the_scripts_are_joined_without_imports_and_no_name_is_taken_twice() -> None:
    script = joined_scripts()
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert "</script" not in script
    folder = ROOT / "src" / "tenure" / "reports" / "page"
    assert {*SCRIPTS, "theme.js"} == {path.name for path in folder.glob("*.js")}
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names))


def test_a_page_is_the_same_each_time() -> None:
    explanation = explain(replayed("leak_graph")[0])
    assert page_html(explanation, "x") == page_html(explanation, "x")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_pages_own_code() -> None:
    tests = sorted((ROOT / "tests" / "page").glob("*.test.mjs"))
    assert tests
    command = ["node", "--no-warnings", "--test", *map(str, tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "SyntaxError" in done.stdout and "ES module" in done.stderr:
        pytest.skip("this node takes .js files for CommonJS; 20.19 and newer look inside")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


# --- the command ----------------------------------------------------------------------------------


def test_without_an_output_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(GPT2)
    assert isinstance(result.exception, UsageError)
    assert "-o" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_unasked_and_never_the_recording(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    out.write_text("mine")
    assert isinstance(run(GPT2, "-o", str(out)).exception, UsageError)
    assert out.read_text() == "mine"
    assert run(GPT2, "-o", str(out), "--force").exit_code == 0
    assert out.read_text().startswith("<!doctype html>")
    copy = tmp_path / "copy.pickle"
    shutil.copy(GPT2, copy)
    refused = run(str(copy), "-o", str(copy), "--format", "html", "--force")
    assert isinstance(refused.exception, UsageError)
    assert copy.stat().st_size > 0


def test_the_ending_names_the_format(tmp_path: Path) -> None:
    beginnings = {
        "a.html": b"<!doctype html>",
        "a.json": b'{"displayTimeUnit"',
        "a.json.gz": b"\x1f\x8b",
        "a.folded": b"<module> (",
        "b.folded.gz": b"\x1f\x8b",
    }
    for name, beginning in beginnings.items():
        result = run(GPT2, "-o", str(tmp_path / name))
        assert result.exit_code == 0, result.exception
        assert (tmp_path / name).read_bytes().startswith(beginning)
    for name in ("a.pickle", "a", "a.jpg"):
        assert isinstance(run(GPT2, "-o", str(tmp_path / name)).exception, UsageError)
    wrong = run(GPT2, "-o", str(tmp_path / "a.html2"), "--format", "png")
    assert isinstance(wrong.exception, UsageError)


def test_json_tells_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    result = run(GPT2, "-o", str(out), "--json", "--redact", "paths")
    told = json.loads(result.stdout)
    assert told["bytes"] == out.stat().st_size
    assert told["events"] == len(replayed("gpt2_varlen")[0].events)
    assert told["redacted"] == ["paths"]


# --- redaction ------------------------------------------------------------------------------------


def everything_in(path: Path) -> str:
    """All text of an output, packed parts unpacked."""
    data = path.read_bytes()
    if path.suffix == ".html":
        found = re.search(rb'id="data">([^<]*)<', data)
        assert found
        data += gzip.decompress(base64.b64decode(found[1]))
    return data.decode("utf-8", "replace")


@pytest.mark.parametrize("ending", ["html", "json", "folded"])
def test_no_path_is_left_when_paths_are_redacted(tmp_path: Path, ending: str) -> None:
    private = tmp_path / "my-secret-project" / "recording.pickle.xz"
    private.parent.mkdir()
    shutil.copy(GPT2, private)
    trace = replayed("gpt2_varlen")[0]
    out = tmp_path / f"out.{ending}"
    assert run(str(private), "-o", str(out), "--redact", "paths,names").exit_code == 0
    text = everything_in(out)
    paths = {trace.stacks.strings[i] for i in np.unique(trace.stacks.file).tolist()}
    assert len(paths) > 10
    escaped = {json.dumps(path)[1:-1] for path in paths}
    assert [path for path in paths | escaped if path in text] == []
    for word in ("my-secret-project", "recording.pickle", "workloads"):
        assert word not in text
    for public in ("modeling_gpt2.py", "file-1.py"):
        assert public in text


def test_a_redacted_trace_is_explained_alike() -> None:
    trace = replayed("gpt2_varlen")[0]
    before, after = explain(trace), explain(redacted(trace, ("paths", "names")))
    assert [(f.code, f.bytes) for f in before.findings] == [
        (f.code, f.bytes) for f in after.findings
    ]
    assert before.by_category == after.by_category
    assert [s.bytes for s in before.by_site] == [s.bytes for s in after.by_site]


def test_hostile_and_private_names_are_gone() -> None:
    trace = redacted(hostile_trace(), ("paths", "names"))
    left = {*trace.stacks.strings, *(a.name for a in trace.annotations)}
    assert not left & set(HOSTILE)
    neutral = re.compile(r"(file|function|annotation)-\d+(\.py|\.cpp)?")
    assert [name for name in left - METHODS if not neutral.fullmatch(name)] == []
    assert (trace.events.metadata == -1).all()


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/Users/me/venv/lib/python3.11/site-packages/torch/optim/adam.py", True),
        ("C:\\Users\\me\\site-packages\\torch\\nn\\modules\\linear.py", True),
        ("/usr/lib/python3.11/threading.py", True),
        ("/Users/me/pytorch/torch/nn/functional.py", True),
        ("<string>", True),
        ("??", True),
        ("/Users/me/torch/secret.py", False),
        ("/Users/me/lib/python3.11/secret.py", False),
        ("/Users/me/venv/lib/python3.11/site-packages/acme_models/secret.py", False),
        ("/var/ipykernel_12/34.py", False),
        ("train.py", False),
        ("secret/notebook.ipynb", False),
        ("/opt/acme/lib/libsecret.so", False),
    ],
)
def test_only_what_everybody_has_keeps_its_path(path: str, kept: bool) -> None:
    public = public_path(path)
    assert (public is not None) is kept
    if public is not None:
        assert "me/" not in public


def test_paths_inside_text_are_taken_out() -> None:
    assert without_paths("saved /Users/me/x.pt, then") == "saved (path), then"
    assert without_paths("C:\\Users\\me\\x") == "(path)"
    assert without_paths("in '/Users/me/my data/x'") == "in '(path)'"
    assert without_paths("data/secret/x.bin") == "(path)"
    assert without_paths("1/2 and a/b, aten::add") == "1/2 and a/b, aten::add"


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    result = run(GPT2, "-o", str(tmp_path / "x.html"), "--redact", "addresses")
    assert isinstance(result.exception, UsageError)


# --- exports --------------------------------------------------------------------------------------


def test_collapsed_stacks_add_up_to_the_live_peak() -> None:
    trace, replay = replayed("gpt2_varlen")
    total = 0
    for line in collapsed_stacks(trace, replay).splitlines():
        stack, _, size = line.rpartition(" ")
        assert stack
        total += int(size)
    assert total == replay.peak.allocated


def test_trace_events_are_what_perfetto_reads() -> None:
    trace, replay = replayed("prefetch_streams")
    told = json.loads(trace_events(trace, replay, "x"))
    events = told["traceEvents"]
    begun = {(e["cat"], e["id"]): e["ts"] for e in events if e["ph"] == "b"}
    ended = {(e["cat"], e["id"]): e["ts"] for e in events if e["ph"] == "e"}
    assert begun.keys() == ended.keys()
    assert all(begun[key] <= ended[key] for key in begun)
    assert told["otherData"]["blocks_shown"] == len(trace.allocations)
    counters = [e for e in events if e["ph"] == "C" and e["name"] == "bytes reserved"]
    assert max(e["args"]["live"] for e in counters) == replay.peak.allocated
    assert max(sum(e["args"].values()) for e in counters) == replay.peak.reserved
    assert [e["ts"] for e in counters] == sorted(e["ts"] for e in counters)
    assert any(e["ph"] == "X" and e["name"].startswith("Optimizer.step") for e in events)


def test_hostile_names_do_not_break_exports() -> None:
    trace = hostile_trace()
    replay = recorded_replay(trace, timeline=True)
    [line] = collapsed_stacks(trace, replay).splitlines()
    assert line.isprintable()
    assert line.count(";") == len(HOSTILE) - 1
    told = json.loads(trace_events(trace, replay, HOSTILE[1]))
    assert told["otherData"]["blocks"] == 1


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_pictures_are_written(tmp_path: Path, form: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: tenure[plots]")
    out = tmp_path / f"out.{form}"
    result = run(GPT2, "-o", str(out))
    assert result.exit_code == 0, result.exception
    assert out.stat().st_size > 20_000


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(GPT2, "-o", str(tmp_path / "out.png"))
    assert isinstance(result.exception, UsageError)
    assert "tenure[plots]" in str(result.exception)


def test_the_picture_of_addresses_shows_what_lies_there() -> None:
    lives: Lives = lives_of(*replayed("leak_graph"))
    at = sample(lives.level(), 200)
    assert (np.diff(at) >= 0).all()
    assert int(lives.level().argmax()) in at
    image = address_image(lives, at, 100)
    assert image.shape == (100, 200, 3)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > len(ORDER) // 2


# --- notebooks ------------------------------------------------------------------------------------


def test_results_show_themselves_in_notebooks() -> None:
    explanation: Any = tenure.explain(EXAMPLES / "leak_graph.pickle.xz")
    shown = explanation._repr_html_()
    assert shown.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2  # the page is inside as an attribute
    table = explanation.replay._repr_html_()
    assert "events replayed (exact)" in table
    assert table.count("<tr>") == 5
