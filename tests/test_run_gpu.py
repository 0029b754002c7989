"""The CUDA side of tenure run, on a stand-in of torch.cuda's memory functions: nothing it meets may
stop the script, and what fails becomes one sentence."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import tenure
from fake_gpu import run
from tenure.live.runs import beyond
from tenure.live.runs.counting import Counters, host_counters
from tenure.live.runs.driver import DeviceUse, device_use
from tenure.live.runs.gpu import RING, Gpu
from tenure.live.runs.record import Record
from tenure.live.runs.sharing import Shared
from tenure.live.runs.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
EMPTY: dict[str, Any] = {"segments": [], "device_traces": [[]], "allocator_settings": {}}


class FakeStorage:
    """A storage on a device; `_share_cuda_` is what sending it to a process calls."""

    device = "cuda:0"

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return self.size

    def _share_cuda_(self) -> str:
        return "handle"


class FakeTorch(SimpleNamespace):
    """Answers as torch does on a machine with one GPU, and notes what it was asked."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], None]] = []
        self.history: list[tuple[Any, ...]] = []
        self.observers: list[Any] = []
        self.stats = {"allocated_bytes": 96 * MIB, "active_bytes": 96 * MIB,
                      "reserved_bytes": 128 * MIB, "requested_bytes": 96 * MIB}  # fmt: skip
        self.peaks = dict.fromkeys(self.stats, 100 * MIB)
        self.blocks: list[dict[str, Any]] = []
        self.backend = "native"

        def record(enabled: Any, *rest: Any) -> None:
            self.history.append((enabled, *rest))

        def record_history(
            enabled: Any = "all", context: Any = "all", stacks: str = "all", max_entries: int = 9,
            clear_history: bool = False,
        ) -> None:  # fmt: skip
            native._cuda_record_memory_history(enabled, context, stacks, max_entries, clear_history)

        native = SimpleNamespace(
            _cuda_memoryStats=self._stats,
            _cuda_resetPeakMemoryStats=lambda _device: self.peaks.update(self.stats),
            _cuda_record_memory_history=record,
            _cuda_emptyCache=lambda: None,
            _cuda_synchronize=lambda: None,
            _cuda_ipc_collect=lambda: None,
            _cuda_getAllocatorBackend=lambda: self.backend,
            _cuda_attach_out_of_memory_observer=self.observers.append,
            _current_autograd_node=lambda: None,
        )
        memory = SimpleNamespace(
            _record_memory_history=record_history,
            _record_memory_history_impl=record_history,
            _snapshot=lambda: EMPTY,
            memory_snapshot=lambda: [{"blocks": self.blocks}],
            host_memory_stats=lambda: {"allocated_bytes.current": 256 * MIB,
                                       "active_bytes.current": 0, "num_host_alloc": 1},
        )  # fmt: skip
        cuda = SimpleNamespace(
            _lazy_call=self.queued.append,
            device_count=lambda: 1,
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: False,
            mem_get_info=lambda _device: (1000 * MIB, 2000 * MIB),
            get_device_properties=lambda _device: SimpleNamespace(),
            empty_cache=lambda: None,
            memory=memory,
        )

        class UntypedStorage(FakeStorage):
            pass

        super().__init__(_C=native, cuda=cuda, UntypedStorage=UntypedStorage)

    def _stats(self, _device: int) -> dict[str, Any]:
        nested = {
            name: {"all": {"current": size, "peak": self.peaks[name]}}
            for name, size in self.stats.items()
        }
        nested["allocation"] = {"all": {"allocated": 10}}
        return nested

    def first_use(self) -> None:
        for act in self.queued:
            act()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, no step is overdue unless a test wants it."""
    monkeypatch.setattr("tenure.live.runs.overdue.LEAST", 600.0)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def gpu(torch: FakeTorch) -> Gpu:
    found = Gpu()
    found.arm()
    torch.first_use()
    return found


def test_a_snapshot_that_the_script_takes_does_not_show_that_it_is_watched(
    torch: FakeTorch,
) -> None:
    own = str(Path(tenure.__file__).parent / "live" / "watching.py")
    frames = [{"filename": own}, {"filename": "train.py"}]
    taken = {"device_traces": [[{"frames": frames}]], "segments": []}
    torch._C._cuda_memorySnapshot = lambda _which: taken
    found = Gpu()
    found.arm()
    torch.first_use()
    torch._C._cuda_memorySnapshot(None)
    found.disarm()
    assert frames == [{"filename": "train.py"}]


def test_nothing_is_asked_of_cuda_before_its_first_use(torch: FakeTorch) -> None:
    found = Gpu()
    found.arm()
    assert torch.history == []
    found.finish()
    assert found.record.snapshot == b""
    torch.first_use()
    assert torch.history == [("all", "all", "python", RING, False)]


def test_a_forked_process_is_left_alone(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Gpu()
    found.arm()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    torch.first_use()
    assert torch.history == []


@pytest.mark.usefixtures("gpu")
def test_the_scripts_own_history_gets_ours_and_does_not_end_it(torch: FakeTorch) -> None:
    torch.cuda.memory._record_memory_history("all", None, "all", 100)
    torch.cuda.memory._record_memory_history(None)
    assert torch.history[1:] == [("all", "all", "all", RING, False)]


def test_peaks_outlive_the_scripts_reset(torch: FakeTorch, gpu: Gpu) -> None:
    torch._C._cuda_resetPeakMemoryStats(0)
    gpu.finish()
    assert gpu.record.peaks[0].peak_allocated == 100 * MIB
    assert gpu.record.devices[0].peak_allocated == 96 * MIB


def test_the_end_has_a_snapshot_and_what_the_driver_says(gpu: Gpu) -> None:
    gpu.finish()
    assert pickle.loads(gpu.record.snapshot) == EMPTY
    assert gpu.record.missing == []
    use = gpu.record.use[0]
    assert use.used == use.reserved + use.rest == 1000 * MIB


def test_a_pluggable_allocator_is_a_clash_and_no_error(torch: FakeTorch) -> None:
    torch.backend = "pluggable"
    found = Gpu()
    found.arm()
    torch.first_use()
    found.finish()
    assert torch.history == []
    codes = [f.code for f in beyond.findings_of(Record(gpu=found.record), None)]
    assert codes[0] == "setting.clash"


def test_whatever_raises_costs_one_sentence(torch: FakeTorch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore")

    found = Gpu()
    found.arm()
    torch.cuda.memory._record_memory_history = fail
    torch._C._cuda_memoryStats = fail
    torch.cuda.mem_get_info = fail
    torch.cuda.memory.host_memory_stats = fail
    torch.first_use()
    found.mark()
    found.mark()
    found.finish()
    assert len(found.record.missing) == 3
    assert all("device-side assert triggered" in text for text in found.record.missing)
    assert not any("\n" in text for text in found.record.missing)


def test_running_out_of_memory_is_looked_at_before_the_stack_unwinds(torch: FakeTorch) -> None:
    seen: list[str] = []
    found = Gpu(lambda: seen.append("looked"))
    found.arm()
    torch.first_use()
    for _ in range(5):
        torch.observers[0](0, MIB, MIB, 0)
    assert len(found.record.ooms) == 5
    assert seen == ["looked"] * 2


def test_bytes_that_only_another_process_holds_are_found(torch: FakeTorch, gpu: Gpu) -> None:
    storage = torch.UntypedStorage(4096, 64 * MIB)
    torch.blocks = [{"address": 4096, "requested_size": 64 * MIB, "state": "active_allocated"}]
    assert storage._share_cuda_() == "handle"
    torch._C._cuda_ipc_collect()
    assert gpu.sharing.held() == ()  # our own tensor holds it as well
    del storage
    torch._C._cuda_ipc_collect()
    gpu.finish()
    (held,) = gpu.record.shared
    assert held.held == 64 * MIB
    codes = {f.code: f.bytes for f in beyond.findings_of(Record(gpu=gpu.record), None)}
    assert codes["holder.process"] == 64 * MIB


def test_what_was_sent_and_came_back_is_held_by_nobody(torch: FakeTorch, gpu: Gpu) -> None:
    torch.UntypedStorage(4096, 64 * MIB)._share_cuda_()
    torch._C._cuda_ipc_collect()
    gpu.finish()
    assert gpu.record.shared == ()


def test_pytorchs_functions_are_given_back(torch: FakeTorch) -> None:
    before = dict(vars(torch._C))
    share = torch.UntypedStorage._share_cuda_
    found = Gpu()
    found.arm()
    assert dict(vars(torch._C)) != before
    found.disarm()
    assert dict(vars(torch._C)) == before
    assert torch.UntypedStorage._share_cuda_ is share


def test_functions_that_were_replaced_after_us_stay(torch: FakeTorch, gpu: Gpu) -> None:
    def theirs() -> None:
        pass

    torch._C._cuda_emptyCache = theirs
    gpu.disarm()
    assert torch._C._cuda_emptyCache is theirs


def test_pinned_memory_that_is_cached_and_unused_is_named_with_its_line(torch: FakeTorch) -> None:
    assert host_counters(torch) == {"allocated_bytes": 256 * MIB, "active_bytes": 0}
    record = Record()
    record.gpu.host = host_counters(torch)
    record.pinned = [(129 * MIB, (("train.py", 7, "load"),))]
    (finding,) = beyond.findings_of(record, None)
    assert (finding.code, finding.bytes) == ("cache.idle", 256 * MIB)
    assert any(
        "129.00 MiB at train.py:7 load, which takes 256.00 MiB" in t for t in finding.evidence
    )


@pytest.mark.parametrize(("alive", "idle"), [(0, 256 * MIB), (129 * MIB, 0)])
def test_pinned_memory_whose_tensors_are_gone_is_unused_whatever_the_counter_says(
    alive: int, idle: int
) -> None:
    record = Record(pinned=[(129 * MIB, ())], pinned_alive=alive)
    record.gpu.host = {"allocated_bytes": 256 * MIB, "active_bytes": 256 * MIB}
    assert sum(one.bytes for one in beyond.findings_of(record, None)) == idle


def test_an_empty_allocator_has_a_floor_that_is_the_drivers(torch: FakeTorch) -> None:
    record = Record()
    record.gpu.devices[0] = Counters(0, 0, 0, 0, 0, 0, 64, 64, 64, 1)
    record.gpu.use[0] = device_use(torch, 0, 0)
    (finding,) = beyond.findings_of(record, None)
    assert (finding.code, finding.bytes) == ("normal.floor", 1000 * MIB)


def test_the_parts_of_a_device_add_up_to_what_is_used() -> None:
    told = DeviceUse(0, 100, 40, 30, 20, 2, "by NVML")
    assert told.used == told.reserved + told.rest + (told.others or 0) == 60
    untold = DeviceUse(0, 100, 40, 30, None, None, "")
    assert untold.used == untold.reserved + untold.rest


def test_a_shared_blocks_receivers_are_named() -> None:
    record = Record()
    record.gpu.shared = (Shared(1, MIB, "cuda:0", MIB, ("17 (Process-1)",), 1.0),)
    (finding,) = beyond.findings_of(record, None)
    assert any("17 (Process-1)" in text for text in finding.evidence)


# --- rests of the recording ---------------------------------------------------------------------


def events(torch: FakeTorch, *sizes: int) -> None:
    """What the next snapshot shows: so many bytes allocated, one after the other."""
    trace = [{"action": "alloc", "size": size, "time_us": 1} for size in sizes]
    block = {"state": "active_allocated", "size": sum(sizes), "requested_size": sum(sizes)}
    segment = {"device": 0, "total_size": sum(sizes), "blocks": [block]}
    torch.cuda.memory._snapshot = lambda: {
        **EMPTY,
        "device_traces": [list(trace)],
        "segments": [segment],
    }


def shown(gpu: Gpu) -> list[dict[str, Any]]:
    trace: list[dict[str, Any]] = pickle.loads(gpu.record.snapshot)["device_traces"][0]
    return trace


def test_a_rest_keeps_what_was_recorded_and_stops_pytorchs_history(
    torch: FakeTorch, gpu: Gpu
) -> None:
    events(torch, 5, 6)
    gpu.rest(news=True)
    assert torch.history[-1][0] is None
    events(torch, 1)
    gpu.finish()
    assert [one["size"] for one in shown(gpu)] == [5, 6]


def test_recording_goes_on_anew_and_the_higher_part_is_kept(torch: FakeTorch, gpu: Gpu) -> None:
    events(torch, 5, 6)
    gpu.rest(news=True)
    gpu.go_on()
    assert torch.history[-1] == ("all", "all", "python", RING, True)
    assert gpu.record.window is not None
    events(torch, 4)
    gpu.rest(news=True)
    assert [one["size"] for one in shown(gpu)] == [5, 6]
    gpu.go_on()
    events(torch, 50)
    gpu.finish()
    assert [one["size"] for one in shown(gpu)] == [50]
    assert gpu.record.window.begun > gpu.record.begun


def test_an_out_of_memory_in_a_rest_is_kept_with_its_line(torch: FakeTorch, gpu: Gpu) -> None:
    events(torch, 500)
    gpu.rest(news=True)
    events(torch)
    torch.observers[0](0, 7 * MIB, 2000 * MIB, 3 * MIB)
    gpu.finish()
    assert gpu.record.window is not None
    assert gpu.record.window.out_of_memory
    (event,) = shown(gpu)
    assert (event["action"], event["size"], event["device_free"]) == ("oom", 7 * MIB, 3 * MIB)
    assert event["frames"][0]["filename"] == __file__


def test_recording_does_not_rest_near_the_limit(torch: FakeTorch, gpu: Gpu) -> None:
    gpu.mark()
    assert gpu.may_rest()
    torch.cuda.mem_get_info = lambda _device: (20 * MIB, 2000 * MIB)  # others have the rest
    assert not gpu.may_rest()
    torch.cuda.mem_get_info = lambda _device: (1000 * MIB, 2000 * MIB)
    torch.cuda.memory.get_per_process_memory_fraction = lambda _device: 150 / 2000
    assert not gpu.may_rest()


def test_recording_does_not_rest_while_a_graph_is_captured(torch: FakeTorch, gpu: Gpu) -> None:
    torch.cuda.is_current_stream_capturing = lambda: True
    gpu.mark()
    assert not gpu.may_rest()


def test_recording_does_not_rest_while_the_script_wants_a_history(
    torch: FakeTorch, gpu: Gpu
) -> None:
    gpu.mark()
    torch.cuda.memory._record_memory_history("all")
    assert not gpu.may_rest()
    torch.cuda.memory._record_memory_history(None)
    assert gpu.may_rest()


def on_a_gpu(torch: FakeTorch) -> Watch:
    watch = Watch()
    watch.gpu.arm()
    torch.first_use()
    watch.record.device = "cuda"
    return watch


def test_steps_that_repeat_end_the_recording_and_one_that_rises_begins_it(
    torch: FakeTorch,
) -> None:
    watch = on_a_gpu(torch)
    for _ in range(20):
        watch.stepped()
    assert [call[0] for call in torch.history] == ["all", None]
    torch.stats["allocated_bytes"] += MIB
    watch.stepped()
    assert [call[0] for call in torch.history] == ["all", None, "all"]
    for _ in range(20):
        watch.stepped()
    watch.stop()
    assert [call[0] for call in torch.history] == ["all", None, "all", None]
    assert watch.record.gpu.recorded.startswith("Recorded: steps 1 to 4 and 22 to 23. 34 others")
    assert watch.record.gpu.stacks == ""


def test_every_device_is_compared_and_reported(torch: FakeTorch) -> None:
    second = {name: {"all": {"current": 5 * MIB, "peak": 5 * MIB}} for name in torch.stats}
    torch._C._cuda_memoryStats = lambda device: second if device else torch._stats(0)
    torch.cuda.device_count = lambda: 2
    watch = on_a_gpu(torch)
    watch.started = True
    for _ in range(20):
        watch.stepped()
    assert [call[0] for call in torch.history] == ["all", None]
    second["allocated_bytes"]["all"]["current"] = 6 * MIB
    watch.stepped()
    assert [call[0] for call in torch.history] == ["all", None, "all"]
    watch.finish()
    watch.stop()
    assert {d: c.allocated for d, c in watch.record.gpu.devices.items()} == {
        0: 96 * MIB,
        1: 6 * MIB,
    }


def test_a_fault_while_a_step_is_marked_costs_one_sentence(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_DEBUG", raising=False)
    watch = on_a_gpu(torch)
    monkeypatch.setattr(watch.steps, "mark", lambda *_: 1 // 0)
    watch.stepped()
    watch.stepped()
    watch.stop()
    assert len(watch.record.gpu.missing) == 1
    assert "a step could not be looked at" in watch.record.gpu.missing[0]


def test_a_child_does_not_wait_for_a_lock_that_its_parent_held(torch: FakeTorch) -> None:
    watch = Watch()
    watch.gpu.arm()
    torch.first_use()
    with watch.overdue.lock:
        watch._in_child()
        ending = threading.Thread(target=watch.stop, daemon=True)
        ending.start()
        ending.join(timeout=20)
        assert not ending.is_alive()


def test_what_takes_much_longer_than_a_step_is_recorded(
    torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.live.runs.overdue.LEAST", 0.05)
    watch = on_a_gpu(torch)
    watch.started = True
    for _ in range(5):
        watch.stepped()
    for _ in range(1000):
        if torch.history[-1][0] is not None:
            break
        time.sleep(0.01)
    assert [call[0] for call in torch.history] == ["all", None, "all"]
    watch.stop()


def test_a_script_that_wants_a_history_in_a_rest_gets_it(torch: FakeTorch, gpu: Gpu) -> None:
    gpu.rest(news=True)
    torch.cuda.memory._record_memory_history("all")
    assert torch.history[-1][0] == "all"
    assert not gpu.resting


def test_the_old_way_to_ask_for_a_history_does_not_end_ours(torch: FakeTorch) -> None:
    asked: list[Any] = []
    torch._C._cuda_record_memory_history_legacy = lambda *rest: asked.append(rest)
    found = Gpu()
    found.arm()
    torch.first_use()
    torch._C._cuda_record_memory_history_legacy(False, True, 1)
    torch._C._cuda_record_memory_history_legacy(True, True, 100)
    assert asked == []
    assert [one[0] for one in torch.history] == ["all", "all"]
    found.disarm()


def test_a_history_that_cannot_be_stopped_costs_one_sentence(torch: FakeTorch, gpu: Gpu) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("not supported")

    torch.cuda.memory._record_memory_history = fail
    gpu.rest(news=False)
    assert not gpu.resting
    gpu.finish()
    assert len(gpu.record.missing) == 1


def test_recording_rests_and_begins_anew_under_tenures_own_allocator() -> None:
    text = """
        import pickle, torch, tenure
        tenure.install("torch", quiet=True, glue=False)
        from tenure.live.runs.gpu import Gpu
        gpu, seen = Gpu(), []
        gpu.begin()
        kept = [torch.empty(1000)]
        gpu.rest(news=True)
        seen.append(gpu.record.snapshot)
        kept.append(torch.empty(5000))
        gpu.go_on()
        kept.append(torch.empty(700))
        gpu.finish()
        seen.append(gpu.record.snapshot)
        for data in seen:
            (trace,) = pickle.loads(data)["device_traces"]
            print([event["size"] for event in trace if event["action"] == "alloc"])
        print(gpu.record.window.peak)
    """
    assert run(text).split("\n")[:3] == ["[1000]", "[700]", "6700"]
