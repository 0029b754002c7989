"""tenure.guard on a virtual GPU: each pattern's code and lines, what is raised, and what is added.

The patterns run once, in a process of their own; guard_patterns.py has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import guard_patterns
from shared_data import SHARED
from tenure.diagnoses.racing import race_finding
from tenure.errors import UsageError
from tenure.live.guards.operators import Sort, plan_of
from tenure.streams import Checker, Site, StreamId, Use, dense
from test_virtual import MISSING, needs_torch

RACES = [p.__name__ for p in guard_patterns.patterns("stream_")]
HEALTHY = [p.__name__ for p in guard_patterns.patterns("healthy_")]
NOTES = [p.__name__ for p in guard_patterns.patterns("note_")]
# Watching begins at the first stream or pin_memory(): these have neither.
ASLEEP = {
    "stream_race_read_by_the_host",
    "stream_host_overwrite_of_a_factory",
    "healthy_training",
    "healthy_results_read_after_the_copy",
}


def code_of(pattern: str) -> str:
    text = pattern.removeprefix("note_")
    codes = ("race_read", "race_write", "race_reuse", "host_overwrite", "self_wait", "self_record")
    return next(f"stream.{c}" for c in (*codes, "pending") if text.startswith(f"stream_{c}"))


@cache
def said() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", guard_patterns.__file__],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TENURE_DEBUG": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("pattern", RACES)
def test_a_race_is_reported_with_its_lines(pattern: str) -> None:
    facts = said()["report"][pattern]
    assert facts["codes"][0] == code_of(pattern), facts["text"]
    for mark, line in facts["lines"].items():
        assert f"guard_patterns.py:{line}" in facts["text"], f"{mark}: {facts['text']}"
    assert "-> " in facts["text"]


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("mode", ["report", "raise", "sync"])
@pytest.mark.parametrize("pattern", HEALTHY)
def test_a_healthy_program_is_left_alone(pattern: str, mode: str) -> None:
    facts = said()[mode][pattern]
    assert (facts["codes"], facts["raised"], facts["faults"]) == ([], "", [])
    if mode == "report":
        assert facts["waits"] == []


@pytest.mark.slow
@needs_torch
def test_one_stream_gets_no_wait() -> None:
    facts = said()["sync"]["healthy_training"]
    assert (facts["inserted"], facts["waits"]) == ([], [])


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("pattern", NOTES)
def test_what_does_nothing_or_waits_is_told(pattern: str) -> None:
    facts = said()["report"][pattern]
    assert facts["codes"] == [code_of(pattern)]
    assert f"guard_patterns.py:{facts['lines']['later']}" in facts["text"]


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("pattern", RACES)
def test_a_race_is_raised_at_the_line_that_comes_too_soon(pattern: str) -> None:
    facts = said()["raise"][pattern]
    assert facts["raised"].startswith(code_of(pattern))
    assert facts["raised"].endswith(f" at {facts['lines']['later']}")


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("pattern", RACES)
def test_sync_adds_the_wait_that_is_missing(pattern: str) -> None:
    facts = said()["sync"][pattern]
    assert not [code for code in facts["codes"] if "race" in code or "overwrite" in code]
    lines, added = facts["lines"], [tuple(wait[:3]) for wait in facts["inserted"]]
    if "free" in lines:
        assert ("free", lines["earlier"], lines["free"]) in added
    elif "host" in pattern:
        assert ("host", lines["earlier"], lines["later"]) in added
    else:
        assert ("use", lines["earlier"], lines["later"]) in added
    on_the_card = [wait for wait in facts["inserted"] if wait[0] != "host"]
    assert len(facts["waits"]) == sum(wait[3] for wait in on_the_card)


@pytest.mark.slow
@needs_torch
def test_sync_lets_the_owner_wait_in_place_of_record_stream() -> None:
    facts = said()["sync"]["note_stream_pending"]
    ((why, _, line, count),) = facts["inserted"]
    assert (why, line, count) == ("free", facts["lines"]["later"] + 1, 8)
    assert facts["codes"] == []


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("pattern", RACES + HEALTHY)
def test_a_run_is_watched_from_its_second_stream_on(pattern: str) -> None:
    facts = said()["run"][pattern]
    expected = [] if pattern in {*HEALTHY, *ASLEEP} else [code_of(pattern)]
    assert facts["codes"][:1] == expected
    assert facts["restored"]
    assert facts["watching"] is (pattern not in ASLEEP)


@pytest.mark.slow
@needs_torch
def test_a_scripts_own_guard_takes_the_place_of_the_runs() -> None:
    assert said()["own"] == {"own": ["stream.race_read"], "ours": []}


@pytest.mark.slow
@needs_torch
def test_what_was_written_before_the_guard_is_waited_for_and_not_reported() -> None:
    assert said()["late"] == {"codes": [], "waits": [[], [], [["use", 1]]]}


PENDING = """
import tenure
with tenure.virtual_gpu("h200"):
    import torch
    for mode in ("report", "sync"):
        guard = tenure.guard(mode)
        side = torch.cuda.Stream()
        for _ in range(5):
            with torch.cuda.stream(side):
                x = torch.randn(1 << 20, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            y = x * 2
            x.record_stream(torch.cuda.current_stream())
            del x, y
        now = torch.cuda.memory_stats()
        guard.stop()
        print(now["active_bytes.all.current"] - now["allocated_bytes.all.current"] >> 20)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
"""


@needs_torch
def test_sync_leaves_no_block_waiting_for_a_recorded_stream() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PENDING], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.splitlines() == ["20", "0"], done.stderr[-2000:]


CASES = SHARED / "cases"
CASES_OF_STREAMS = (
    "s01_record_stream_runahead",
    "s02_missing_record_stream",
    "s05_unsynced_read",
    "s07_pinned_overwrite",
)
EACH_CASE = """
import json, runpy, sys, tenure
told, (_, *scripts) = [], sys.argv
for script in scripts:
    sys.argv = [script]
    with tenure.virtual_gpu("h200"):
        import torch
        guard = tenure.guard("report")
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit:
            pass
        guard.stop()
        told.append([[finding.code for finding in guard.findings], guard.faults])
print(json.dumps(told))
"""


@cache
def told_of_cases() -> dict[str, Any]:
    """Codes and faults of each case; one process, each with a virtual GPU of its own."""
    scripts = [str(CASES / f"{name}.py") for name in CASES_OF_STREAMS]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EACH_CASE, *scripts],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(CASES_OF_STREAMS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.slow
@needs_torch
@pytest.mark.skipif(not CASES.exists(), reason="the collected cases are not here")
@pytest.mark.parametrize("name", CASES_OF_STREAMS)
def test_a_collected_case_comes_to_its_code(name: str) -> None:
    expected = json.loads((CASES / "expected.json").read_text())[name]["codes"]
    assert told_of_cases()[name] == [expected, []]


# --- without a virtual GPU -----------------------------------------------------------------------


def test_a_mode_that_does_not_exist_is_refused() -> None:
    from tenure import guard

    with pytest.raises(UsageError, match='"report", "raise", "sync"'):
        guard("mend")


@pytest.mark.skipif("torch" in MISSING, reason=MISSING or "runs")
def test_programs_without_a_gpu_run_under_a_guard() -> None:
    pytest.importorskip("torch")
    code = (
        "import tenure, torch\n"
        "with tenure.guard('sync') as guard:\n"
        "    x = torch.ones(4, requires_grad=True)\n"
        "    (x * 2).sum().backward()\n"
        "    try:\n"
        "        tenure.guard()\n"
        "    except tenure.errors.UsageError as error:\n"
        "        print(error)\n"
        "print(guard, guard.faults, x.grad.tolist(), type(torch.Tensor.tolist).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.endswith("a guard is on already; call its stop() first")
    assert second.startswith("no races in ")
    assert second.endswith("[] [2.0, 2.0, 2.0, 2.0] method_descriptor")


@pytest.mark.skipif("torch" in MISSING, reason=MISSING or "runs")
def test_a_forked_process_is_not_watched() -> None:
    pytest.importorskip("torch")
    code = (
        "import os, sys, tenure, torch\n"
        "watch = tenure.guard('raise')\n"
        "if os.fork() == 0:\n"
        "    before = watch.operators\n"
        "    torch.ones(4).add_(1)\n"
        "    os._exit(watch.operators - before)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "before = watch.operators\n"
        "torch.ones(4).add_(1)\n"
        "print(watch.operators - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "2"], done.stderr


REGISTERED = """
import torch
from tenure.live.guards.guard import guard
from tenure.streams import Site, StreamId
for how in ("free", "unregister", "done"):
    with guard("report") as watch:
        recorder, stream = watch._recorder, StreamId(0, 0)
        host = torch.ones(8)
        address = host.data_ptr()
        recorder.registered.add(address)
        use = recorder.use(host, writes=False)
        recorder.host_keys.add(use.key)
        recorder.launch(stream, [use], "copy_", Site("train.py", 7, "load"))
        if how == "done":
            recorder.host_waited_for(stream)
        if how == "unregister":
            recorder.unregistered(address)
        use = None
        del host
    print(how, [f.code for f in watch.findings], watch.faults)
"""


@pytest.mark.skipif("torch" in MISSING, reason=MISSING or "runs")
def test_memory_that_the_program_pinned_itself_is_not_freed_under_a_copy() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "free ['stream.host_overwrite'] []",
        "unregister ['stream.host_overwrite'] []",
        "done [] []",
    ], done.stderr


HEARD = """
import torch
torch.cuda.current_device = lambda: 0
from torch.cuda import _gpu_trace as told
import tenure
from tenure.live.guards.guard import guard
from tenure.streams import StreamId
main, side = StreamId(0, 0), StreamId(0, 0x70)
with guard("report") as watch:
    recorder = watch._recorder
    clocks = recorder.checker.clocks
    first = clocks.launch(main)
    told.EventRecordCallbacks.fire_callbacks(5, main.handle)
    second = clocks.launch(main)
    print(clocks.before(main, first, side), clocks.before(main, second, side))
    told.EventWaitCallbacks.fire_callbacks(5, side.handle)
    print(clocks.before(main, first, side), clocks.before(main, second, side))
    third = clocks.launch(side)
    told.StreamSynchronizationCallbacks.fire_callbacks(side.handle)
    print(clocks.before(side, third, main), clocks.known_done(main) >= first)
    told.DeviceSynchronizationCallbacks.fire_callbacks()
    print(clocks.known_done(main) >= second)
    told.EventDeletionCallbacks.fire_callbacks(5)
    last = clocks.launch(main)
    told.EventWaitCallbacks.fire_callbacks(5, side.handle)
    print(clocks.before(main, last, side), recorder.hears_all, watch.faults)
print(told.EventRecordCallbacks.callback_list)
"""


@pytest.mark.skipif("torch" in MISSING, reason=MISSING or "runs")
def test_waits_in_pytorchs_own_code_are_heard() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", HEARD], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "False False",
        "True False",
        "True True",
        "True",
        "False True []",
        "[]",
    ], done.stderr


class _Argument:
    def __init__(self, name: str, kind: str, alias: object = None) -> None:
        self.name, self.type, self.alias_info = name, kind, alias


class _Alias:
    def __init__(self, *, is_write: bool) -> None:
        self.is_write = is_write


class _Operator:
    def __init__(
        self, name: str, arguments: list[_Argument], returns: list[_Argument], *tags: str
    ) -> None:
        self.tags = tags
        self._schema = self
        self.name, self.arguments, self.returns = name, arguments, returns


TENSOR = _Argument("self", "Tensor")
RESULT = _Argument("", "Tensor")
WRITTEN = _Argument("self", "Tensor", _Alias(is_write=True))
VIEWED = _Argument("self", "Tensor", _Alias(is_write=False))


@pytest.mark.parametrize(
    ("operator", "sort"),
    [
        (_Operator("aten::mul", [TENSOR], [RESULT]), Sort.KERNEL),
        (_Operator("aten::add_", [WRITTEN], [WRITTEN]), Sort.KERNEL),
        (_Operator("aten::view", [VIEWED], [VIEWED]), Sort.NOTHING),
        (_Operator("aten::is_pinned", [TENSOR], [_Argument("", "bool")]), Sort.NOTHING),
        (_Operator("aten::record_stream", [WRITTEN], []), Sort.RECORD),
        (_Operator("aten::copy_", [WRITTEN, TENSOR], [WRITTEN]), Sort.COPY),
        (_Operator("c10d::allreduce_", [TENSOR], [RESULT]), Sort.COLLECTIVE),
        (_Operator("mine::fused", [TENSOR], [RESULT]), Sort.KERNEL),
    ],
)
def test_an_operators_schema_says_how_it_is_looked_at(operator: _Operator, sort: Sort) -> None:
    assert plan_of(operator).sort is sort


def test_shapes_are_asked_for_without_reading() -> None:
    plan = plan_of(_Operator("aten::empty_like", [TENSOR], [RESULT]))
    assert (plan.reads_inputs, plan.fills) == (False, False)
    assert plan_of(_Operator("aten::zeros_like", [TENSOR], [RESULT])).fills


def test_a_wait_for_a_result_is_known_by_its_tag() -> None:
    assert plan_of(_Operator("aten::item", [TENSOR], [], "Tag.data_dependent_output")).waits
    index = plan_of(_Operator("aten::index", [TENSOR], [RESULT], "Tag.dynamic_output_shape"))
    assert (index.waits, index.indexed) == (False, True)


def test_the_line_to_add_names_the_streams_as_the_program_does() -> None:
    checker, main, side = Checker(), StreamId(0, 0), StreamId(0, 0x10)
    lines = [Site(str(Path("deep") / "copy.py"), number, "step") for number in range(30)]
    checker.born(1, 64, main, lines[1])
    use = [Use(1, dense(0, 64), writes=True)]
    checker.launch(main, use, "fill_", lines[20])
    conflicts = checker.conflicts(side, [Use(1, dense(0, 64), writes=False)])
    (race,) = checker.report(conflicts, side, "add", lines[21])
    named = race_finding(race, {side: "side"})
    assert named.advice[0].text == (
        "side.wait_stream(torch.cuda.default_stream())  # before copy.py:21"
    )
    assert "stream 0x10" in race_finding(race, {}).title
