"""tenure as PyTorch's allocator, against a stand-in for PyTorch: what trainers rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_gpu import attempt, run

RULES = ("elastic", "torch")
each_rules = pytest.mark.parametrize("rules", RULES)


@each_rules
def test_tensors_come_from_the_engine_and_the_functions_of_pytorch_say_so(rules: str) -> None:
    run(
        f"""
        import torch, tenure
        tenure.install({rules!r})
        assert torch.cuda.memory_stats() == {{}}
        x = torch.empty(3_000_000)
        x.fill(7)
        assert torch.cuda.memory_allocated() == 3_000_320, torch.cuda.memory_allocated()
        y = torch.empty(1000)
        y.fill(8)
        assert set(x.read()) == {{7}}
        del x
        assert torch.cuda.memory_allocated() == 1024
        assert torch.cuda.max_memory_allocated() == 3_001_344
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 1024
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 2 << 20
        assert tenure.memory_stats()["allocated_bytes.all.current"] == 1024
        assert torch.empty(0).data_ptr() == 0
        """
    )


@each_rules
def test_out_of_memory_is_one_text_that_trainers_know(rules: str) -> None:
    printed = run(
        f"""
        import copy, pickle
        import torch, tenure
        tenure.install({rules!r}, capacity="64MiB")
        seen = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *a: seen.append(a))

        def build():
            return torch.empty(20 << 20)

        keep = [build(), build()]
        try:
            torch.empty(40 << 20)
        except torch.OutOfMemoryError as error:
            caught = error

        # accelerate: should_reduce_batch_size
        assert isinstance(caught, RuntimeError) and len(caught.args) == 1
        assert " out of memory." in caught.args[0]
        # lightning: is_cuda_out_of_memory
        assert "CUDA" in caught.args[0] and "out of memory" in caught.args[0]
        assert str(pickle.loads(pickle.dumps(caught))) == str(copy.deepcopy(caught)) == str(caught)
        assert seen == [(0, 40 << 20, 64 << 20, seen[0][3])], seen
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        torch.empty(1000)
        print(caught)
        """
    )
    first, *rest = printed.splitlines()
    assert first.startswith(
        "CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of "
        "1024.00 MiB of which "
    )
    assert "64.00 MiB allowed; Of the allocated memory 40.00 MiB is allocated by PyTorch, " in first
    text = "\n".join(rest)
    assert "exceed the limit by 16.00 MiB" in text
    assert "40.00 MiB in 2 blocks  <string>" in text or "40.00 MiB in 2 blocks" in text
    assert ("expandable_segments" in first) == (rules == "torch")


@each_rules
def test_recording_is_pytorchs_own(rules: str) -> None:
    run(
        f"""
        import torch, tenure
        tenure.install({rules!r})
        torch.cuda._record_memory_history(max_entries=50)

        def make():
            return torch.empty(5_000_000)

        x = make()
        y = torch.empty(100)
        del y
        snapshot = torch.cuda._snapshot()
        actions = [event["action"] for event in snapshot["device_traces"][0]]
        assert actions[-3:] == ["alloc", "free_requested", "free_completed"], actions
        alloc = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
        assert alloc[0]["addr"] == x.data_ptr() and alloc[0]["size"] == 5_000_000
        names = [frame["name"] for frame in alloc[0]["frames"]]
        assert names == ["__init__", "empty", "make", "<module>"] or "make" in names, names
        blocks = [b for s in snapshot["segments"] for b in s["blocks"]]
        live = [b for b in blocks if b["state"] == "active_allocated"]
        assert [b["address"] for b in live] == [x.data_ptr()]
        assert live[0]["frames"] == alloc[0]["frames"]
        for i in range(100):
            torch.empty(100)
        assert len(torch.cuda._snapshot()["device_traces"][0]) == 50
        torch.cuda._record_memory_history(enabled=None)
        torch.empty(100)
        assert torch.cuda.memory_snapshot()
        """
    )


def test_a_snapshot_is_read_by_explain(tmp_path: object) -> None:
    printed = run(
        f"""
        import torch, tenure
        tenure.install(events=1000)
        keep = [torch.empty(1_000_000) for _ in range(5)]
        torch.cuda._dump_snapshot({str(tmp_path)!r} + "/one.pickle")
        trace = tenure.load({str(tmp_path)!r} + "/one.pickle")
        print(len(trace.events.action), len(tenure.explain(trace).findings))
        """
    )
    assert int(printed.split()[0]) >= 6


def test_a_snapshot_is_written_when_memory_runs_out(tmp_path: object) -> None:
    run(
        f"""
        import pathlib
        import torch, tenure
        tenure.install(capacity="64MiB", events=100, on_oom={str(tmp_path)!r})
        try:
            torch.empty(100 << 20)
        except torch.OutOfMemoryError as error:
            assert "Snapshot: " in str(error), error
        assert len(list(pathlib.Path({str(tmp_path)!r}).glob("rank0_pid*.pickle"))) == 1
        """
    )


def test_nothing_that_fails_while_memory_runs_out_hides_the_explanation(tmp_path: Path) -> None:
    done = attempt(
        f"""
        import pathlib
        import torch, tenure
        folder = pathlib.Path({str(tmp_path / "gone")!r})
        folder.mkdir()
        tenure.install(capacity="64MiB", on_oom=folder / "own.pickle", quiet=True)
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: 1 / 0)
        folder.rmdir()
        try:
            torch.empty(100 << 20)
        except torch.OutOfMemoryError as error:
            print(error)
        """
    )
    assert "exceed the limit by 36.00 MiB" in done.stdout
    assert "- No snapshot: " in done.stdout
    assert "own.pickle cannot be written (No such file or directory)" in done.stdout
    assert "ZeroDivisionError" in done.stderr


@each_rules
def test_a_fraction_is_a_limit(rules: str) -> None:
    run(
        f"""
        import torch, tenure
        tenure.install({rules!r})
        torch.cuda.set_per_process_memory_fraction(0.5)
        keep = torch.empty(400 << 20)
        try:
            torch.empty(200 << 20)
        except torch.OutOfMemoryError as error:
            assert "512.00 MiB allowed" in str(error)
        else:
            raise AssertionError
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.empty(200 << 20)
        assert torch._C._cuda_getMemoryFraction is not None
        """,
        PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.9",
    )


def test_the_environments_fraction_holds() -> None:
    run(
        """
        import torch, tenure
        tenure.install("torch")
        torch.empty(400 << 20)
        try:
            torch.empty(600 << 20)
        except torch.OutOfMemoryError as error:
            assert "512.00 MiB allowed" in str(error), error
        else:
            raise AssertionError
        """,
        PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.5",
    )


def test_dead_cycles_are_collected_before_a_request_fails() -> None:
    run(
        """
        import gc
        import torch, tenure
        tenure.install(capacity="64MiB")
        gc.disable()

        class Node:
            def __init__(self):
                self.me, self.memory = self, torch.empty(40 << 20)

        for _ in range(5):
            Node()
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        """
    )


def test_a_thread_that_runs_out_during_a_collection_waits_for_it() -> None:
    found = run(
        """
        import gc, threading, time
        import torch, tenure
        tenure.install(capacity="64MiB", quiet=True)
        gc.disable()
        collecting = threading.Event()

        class Node:
            def __init__(self):
                self.me, self.memory = self, torch.empty(40 << 20)

            def __del__(self):  # within the collection
                try:
                    torch.empty(100 << 20)
                except torch.OutOfMemoryError:
                    print("no collection within one")
                collecting.set()
                time.sleep(0.3)
                self.memory = None

        def meet():
            assert collecting.wait(20)
            held = torch.empty(40 << 20)
            print("served")

        thread = threading.Thread(target=meet)
        thread.start()
        Node()
        try:
            torch.empty(70 << 20)  # never fits, but has what is dead collected
        except torch.OutOfMemoryError:
            pass
        thread.join()
        """
    )
    assert found.splitlines() == ["no collection within one", "served"]


def test_elastic_rules_are_not_advised_where_they_hold() -> None:
    found = run(
        """
        import torch, tenure
        from tenure.live.oom import advice_text
        shortage = dict(reserved=9 << 30, allocated=5 << 30, requested=3 << 30, limit=-1,
                        pending=0, private_free=0)
        tenure.install("torch", quiet=True)
        print("elastic" in advice_text(shortage))
        from tenure.live.process import InForce
        from dataclasses import replace
        InForce.settings = replace(InForce.settings, rules="elastic")
        print("elastic" in advice_text(shortage))
        """
    )
    assert found.split() == ["True", "False"]


def test_a_recording_of_threads_replays_to_the_same_peaks(tmp_path: Path) -> None:
    run(
        f"""
        import random, threading
        import torch, tenure
        tenure.install(quiet=True, events=1_000_000, capacity="512MiB")

        def work(seed):
            generator, own = random.Random(seed), []
            stream = 0x5555_0000 + 256 * seed if seed else 0
            for _ in range(1500):
                size = generator.choice([100, 5000, 70_000, 1 << 20, 3 << 20])
                own.append(torch.empty(size + generator.randrange(5000), stream=stream))
                while len(own) > generator.randint(1, 30):
                    own.pop(generator.randrange(len(own)))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        path = tenure.live.dump_snapshot({str(tmp_path / "threads.pickle")!r})
        stats = tenure.memory_stats()
        assert stats["allocation.all.allocated"] == 6000
        again = tenure.replay(path, rules="elastic", capacity="512MiB").peak
        for ours, theirs in (("requested", "requested_bytes"), ("allocated", "allocated_bytes"),
                             ("active", "active_bytes"), ("reserved", "reserved_bytes")):
            assert getattr(again, ours) == stats[theirs + ".all.peak"], ours
        """
    )


def test_record_stream_keeps_a_block_until_the_stream_is_done() -> None:
    run(
        """
        import ctypes, os
        import torch, tenure
        tenure.install("torch")
        driver = ctypes.CDLL(os.environ["TENURE_DRIVER_LIBRARY"])
        driver.fake_driver_hold(ctypes.c_uint64(48))
        x = torch.empty(3 << 20)
        address = x.data_ptr()
        x.record_stream(48)
        del x
        assert torch.cuda.memory_stats()["active.all.current"] == 1
        assert torch.empty(3 << 20).data_ptr() != address
        driver.fake_driver_finish(ctypes.c_uint64(48))
        assert torch.empty(3 << 20).data_ptr() == address
        """
    )


def test_the_summary_names_lines_streams_and_what_is_pending() -> None:
    printed = run(
        """
        import torch, tenure
        tenure.install()
        keep = [torch.empty(1_000_000, stream=s) for s in (0, 0, 0x5555_0010)]
        gone = torch.empty(20 << 20)
        del gone

        from tenure.live import summary
        summary.label_of = lambda _: "model_of_a_long_name" * 3
        print(tenure.memory_summary())
        print(tenure.memory_summary(rows=1))
        """
    )
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["GPU", "0", "requested", "allocated", "active", "reserved"]
    assert lines[1].split()[:5] == ["now", "2.86", "MiB", "2.86", "MiB"]
    assert lines[2].split()[:5] == ["peak", "22.86", "MiB", "22.86", "MiB"]
    count, _, stream = lines[5].split()[2:5]
    assert (count, stream) == ("2", "0")
    assert lines[6].split()[4] == "1"
    assert lines[6].endswith("model_of_a_long_namemodel_of_a_long_nam...")
    assert lines[-1].split() == ["977.00", "KiB", "1", "1", "more", "line"]


MISTAKES = {
    "tenure.install(); tenure.install()": "already installed",
    "tenure.install('best')": "'best' is none of 'elastic' and 'torch'",
    "tenure.install(capacity='much')": "is not a size",
    "tenure.install(capacity=0)": "leaves no memory",
    "tenure.install(capacity=-1)": "leaves no memory",
    "tenure.install(capacity='80')": "'80' is 80 B, and the driver gives 2.00 MiB at least",
    "tenure.install(capacity=0.9)": "0.9 is neither bytes nor a size",
    "tenure.install(capacity=True)": "True is neither bytes nor a size",
    "tenure.install(conf=5)": "conf: 5 is no text",
    "tenure.install(soft_limit='1.05')": "'1.05' is no multiple",
    "tenure.install(soft_limit=float('nan'))": "nan is no multiple",
    "tenure.install(stacks='yes')": "stacks: 'yes' is neither True nor False",
    "tenure.install(glue='no')": "glue: 'no' is neither True nor False",
    "tenure.install(events='100')": "0 or more",
    "tenure.install(on_oom='/nowhere/oom.pickle')": "on_oom: there is no folder /nowhere",
    "tenure.install(on_oom=5)": "on_oom: 5 names no file or folder",
    "tenure.install(on_growth='/nowhere')": "/nowhere is not a folder",
    "tenure.install(on_growth='')": "'' names no file or folder",
    "tenure.install(capasity='1GiB')": "'capasity'; its options are rules, capacity, conf",
    "tenure.install('elastic', '14GiB')": "too many positional arguments; its options are",
    "tenure.install(); tenure.install('torch', capacity='1GiB')": "with elastic rules; it can be",
    "tenure.install(conf='nonsense:1')": "no such setting",
    "tenure.install(soft_limit=0.5)": "at least 1",
    "tenure.install(events=-1)": "0 or more",
    "torch.cuda.initialized = True; tenure.install()": "before the first CUDA call",
    "del torch._C._cuda_customAllocator; tenure.install()": "built without CUDA",
    "torch.version.hip = '6'; tenure.install()": "ROCm",
    "torch._C.current = 1; tenure.install()": "Can't swap an already initialized allocator",
    "tenure.uninstall()": "not installed",
    "tenure.memory_stats()": "call tenure.install()",
    "tenure.memory_summary()": "call tenure.install()",
    "tenure.install(); tenure.memory_summary(7)": "there is no GPU 7; the driver shows 1",
    "tenure.install(); tenure.memory_stats('cpu')": "'cpu' names no GPU",
    "tenure.install(); tenure.memory_summary(rows=-1)": "0 or more",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_clear_error(mistake: str) -> None:
    run(
        f"""
        import torch, tenure
        from tenure.errors import UsageError
        try:
            {mistake}
        except UsageError as error:
            assert {MISTAKES[mistake]!r} in str(error), error
            assert "\\n" not in str(error)
        else:
            raise AssertionError
        """
    )


def test_after_a_mistake_the_right_options_are_taken() -> None:
    run(
        """
        import torch, tenure
        for wrong in ({"stacks": "yes"}, {"events": 1.5}, {"on_growth": "/nowhere"}):
            try:
                tenure.install(**wrong)
            except tenure.errors.UsageError:
                pass
        tenure.install("torch", capacity="64MiB", quiet=True)
        torch.empty(1000)
        assert torch.cuda.memory_allocated() == 0
        """
    )


def test_what_will_not_work_is_said_once() -> None:
    done = attempt("import tenure; tenure.install(); tenure.uninstall()")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("tenure: ") for line in lines)
    assert "cudnn.benchmark" in done.stderr
    assert attempt("import tenure; tenure.install(quiet=True)").stderr == ""


@each_rules
def test_two_gpus_have_counts_limits_and_messages_of_their_own(rules: str) -> None:
    run(
        f"""
        import torch, tenure
        from tenure import _engine
        tenure.install({rules!r}, events=100)
        first, second = torch.empty(3 << 20, device=0), torch.empty(5 << 20, device=1)
        first.fill(1), second.fill(2)
        assert torch.cuda.memory_allocated(0) == 3 << 20
        assert torch.cuda.memory_allocated(1) == 5 << 20
        snapshot = torch.cuda.memory._snapshot()
        assert {{segment["device"] for segment in snapshot["segments"]}} == {{0, 1}}
        assert [sum(event["action"] == "alloc" for event in trace)
                for trace in snapshot["device_traces"]] == [1, 1]
        torch.cuda.set_per_process_memory_fraction(0.25, 1)
        try:
            torch.empty(300 << 20, device=1)
        except torch.OutOfMemoryError as error:
            assert " GPU 1 has a total capacity of 1024.00 MiB" in str(error), error
        else:
            raise AssertionError
        large = torch.empty(300 << 20, device=0)  # the limit was the other one's
        assert set(first.read()) == {{1}} and set(second.read()) == {{2}}
        del first, second, large
        torch.cuda.empty_cache()
        for device in (0, 1):
            assert torch.cuda.memory_reserved(device) == 0
            _engine.Live.check(device)
        assert "GPU 1" in tenure.memory_summary(1)
        """,
        FAKE_DRIVER_DEVICES="2",
    )


@each_rules
def test_without_virtual_memory_segments_serve(rules: str) -> None:
    run(
        f"""
        import torch, tenure
        from tenure import _engine
        tenure.install({rules!r}, capacity="200MiB")
        first = torch.empty(30 << 20)
        second = torch.empty(500)
        first.fill(1), second.fill(2)
        assert torch.cuda.memory_reserved() == 32 << 20
        assert not any(name.startswith("elastic.") for name in tenure.memory_stats())
        try:
            torch.empty(180 << 20)
        except torch.OutOfMemoryError as error:
            assert "CUDA out of memory. Tried to allocate 180.00 MiB" in str(error), error
        else:
            raise AssertionError
        assert set(first.read()) == {{1}} and set(second.read()) == {{2}}
        del first, second
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        _engine.Live.check(0)
        """,
        FAKE_DRIVER_VIRTUAL_MEMORY="0",
    )


def test_uninstalling_gives_pytorchs_functions_back() -> None:
    run(
        """
        import torch, tenure
        before = vars(torch._C).copy()
        tenure.install(quiet=True)
        x = torch.empty(1000)
        assert torch.cuda.memory_allocated() == 1024
        tenure.uninstall()
        after = vars(torch._C).copy()
        before.pop("current"), after.pop("current")
        assert before == after
        try:
            torch.cuda.memory_allocated()
        except RuntimeError as error:
            assert "does not yet support" in str(error)
        del x
        """
    )


def test_no_driver_is_said_at_the_first_use() -> None:
    run(
        """
        import torch, tenure
        tenure.install(quiet=True)
        try:
            torch.empty(1)
        except Exception as error:
            assert "no NVIDIA driver here" in str(error), error
        else:
            raise AssertionError
        """,
        TENURE_DRIVER_LIBRARY="nowhere.so",
    )


def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    run(
        """
        import os
        import torch, tenure
        tenure.install(quiet=True)
        x = torch.empty(1000)
        child = os.fork()
        if child == 0:
            try:
                torch.empty(1)
            except RuntimeError as error:
                os._exit(0 if "forked subprocess" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        torch.empty(1)
        """
    )


@each_rules
def test_threads_and_frees_at_exit_are_quiet(rules: str) -> None:
    done = attempt(
        f"""
        import threading, time
        import torch, tenure
        tenure.install({rules!r}, quiet=True)
        torch.kept = torch.empty(1 << 20)
        class Late:
            def __del__(self):
                self.tensor = None
        late = Late()
        late.tensor, late.me = torch.empty(1 << 20), late

        def work():
            while True:
                torch.empty(100_000)

        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
