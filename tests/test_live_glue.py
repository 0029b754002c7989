"""PyTorch's whole interface for allocators, on a CUDA build of PyTorch and the fake driver."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from fake_gpu import attempt, run
from test_layout import ROOT


def has_library(name: str) -> bool:
    found = importlib.util.find_spec("torch")
    folders = (found.submodule_search_locations if found else None) or []
    return any((Path(folder) / "lib" / name).exists() for folder in folders)


def has_cuda_build() -> bool:
    return has_library("libtorch_cuda.so")


needs_cuda_build = pytest.mark.skipif(
    not has_cuda_build() or not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="needs a CUDA build of PyTorch and a C++ compiler",
)

PREPARE = f"""
import ctypes
from pathlib import Path
import torch, tenure
from tenure import _engine
from tenure.live import glue
caller = glue.load(torch, Path({str(ROOT / "tests" / "glue_caller.cpp")!r}))
for function in ("caller_cache_info", "caller_restore", "caller_made"):
    getattr(caller, function).restype = ctypes.c_size_t
for function in ("caller_begin", "caller_end", "caller_checkpoint"):
    getattr(caller, function).argtypes = [ctypes.c_int, ctypes.c_uint64]
caller.caller_is_live.argtypes = [
    ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t
]
caller.caller_delete.argtypes = [ctypes.c_void_p]
for function in ("profiled", "enable_peer_access", "share", "shared_name", "receive", "track"):
    getattr(caller, "caller_" + function).restype = ctypes.c_char_p
caller.caller_share.argtypes = [ctypes.c_void_p]
for function in ("take", "received"):
    getattr(caller, "caller_" + function).restype = ctypes.c_void_p
    getattr(caller, "caller_" + function).argtypes = [ctypes.c_size_t]

def take(size, stream=0):
    buffer = _engine.LiveBuffer(size, 0, stream)
    address = buffer.address
    buffer.release()
    return address

def is_live(pool, addresses):
    array = (ctypes.c_void_p * len(addresses))(*addresses)
    return bool(caller.caller_is_live(0, pool, array, len(addresses)))
"""


@needs_cuda_build
@pytest.mark.parametrize("rules", ["elastic", "torch"])
def test_the_largest_free_block_is_told(rules: str) -> None:
    run(
        PREPARE
        + f"""
tenure.install({rules!r}, quiet=True)
block = take(100 << 20)
caller.caller_delete(block)
assert caller.caller_cache_info(0) >= 900 << 20
tenure._engine.Live.set_limit(0, 300 << 20)
if {rules!r} == "elastic":
    assert caller.caller_cache_info(0) == 300 << 20
    held = take(100 << 20)
    assert caller.caller_cache_info(0) == 200 << 20
_engine.Live.check(0)
""",
        stand_in=False,
    )


@needs_cuda_build
@pytest.mark.parametrize("rules", ["elastic", "torch"])
def test_a_pool_becomes_again_what_it_was_at_a_checkpoint(rules: str) -> None:
    run(
        PREPARE
        + f"""
tenure.install({rules!r}, quiet=True, events=1000)
outside = take(1000)
caller.caller_begin(0, 7)
first = [take(size) for size in (1000, 5000, 3 << 20, 600 << 10)]
dead = take(9 << 20)
caller.caller_delete(dead)
caller.caller_end(0, 7)
assert is_live(7, first) and not is_live(7, first[:-1]) and not is_live(7, [*first, outside])
caller.caller_checkpoint(0, 7)

before = _engine.Live.blocks(0)
for address in first[1:3]:
    caller.caller_delete(address)
caller.caller_begin(0, 7)
later = [take(size) for size in (2000, 700, 8 << 20)]
caller.caller_end(0, 7)
assert is_live(7, [first[0], first[3], *later])
assert caller.caller_restore(0) == 5
assert caller.caller_made() == 4
assert is_live(7, first)
_engine.Live.check(0)
state = lambda blocks: [block[:-1] for block in blocks]  # ages aside
live = lambda blocks: [block[:9] for block in blocks if block[4] == 1]
assert live(_engine.Live.blocks(0)) == live(before)
assert tenure.memory_stats()["allocated_bytes.all.current"] == sum(
    block[2] for block in before if block[4] == 1
)
caller.caller_forget()  # frees what was made
assert is_live(7, [])
_engine.Live.check(0)
actions = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
assert actions.count("free_requested") == 1 + 2 + 5 + 4, actions
""",
        stand_in=False,
    )


@needs_cuda_build
@pytest.mark.parametrize("peers", ["1", "0"])
def test_memory_is_reached_from_another_device_where_pytorch_asks_for_it(peers: str) -> None:
    run(
        PREPARE
        + f"""
import os
driver = ctypes.CDLL(os.environ["TENURE_DRIVER_LIBRARY"])
driver.fake_driver_may_reach.argtypes = [ctypes.c_uint64, ctypes.c_int]
tenure.install(quiet=True)
before = take(100 << 20)  # the other device is not used yet
assert driver.fake_driver_may_reach(before, 0) and not driver.fake_driver_may_reach(before, 1)
error = caller.caller_enable_peer_access(1, 0).decode()
reached = [driver.fake_driver_may_reach(address, 1) for address in (before, take(200 << 20))]
if {peers}:
    assert "be given access" not in error, error  # but CUDA's own: it has no device here
    assert reached == [1, 1]
else:
    assert "GPU 1 cannot be given access to the memory of GPU 0" in error, error
    assert reached == [0, 0]
""",
        stand_in=False,
        FAKE_DRIVER_DEVICES="2",
        FAKE_DRIVER_PEERS=peers,
    )


@needs_cuda_build
def test_pytorchs_general_functions_for_memory_answer_too() -> None:
    run(
        PREPARE
        + """
if not hasattr(torch._C, "_accelerator_getDeviceStats"):
    raise SystemExit  # an older PyTorch
before = torch._C._accelerator_getDeviceStats
tenure.install(quiet=True)
block = take(1000)
stats = torch._C._accelerator_getDeviceStats(0)
assert stats["allocated_bytes"]["all"]["current"] == 1024, stats
caller.caller_delete(block)
torch._C._accelerator_resetPeakStats(0)
torch._C._accelerator_resetAccumulatedStats(0)
stats = torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]
assert stats == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}, stats
tenure.uninstall()
assert torch._C._accelerator_getDeviceStats is before
""",
        stand_in=False,
    )


@needs_cuda_build
@pytest.mark.parametrize("rules", ["elastic", "torch"])
def test_a_profiler_hears_of_every_block(rules: str) -> None:
    run(
        PREPARE
        + f"""
tenure.install({rules!r}, quiet=True)
held = take(4 << 20)
assert caller.caller_profiled(1000) == b""  # nobody listens
with torch.profiler.profile(profile_memory=True):
    heard = caller.caller_profiled(1000).decode()
assert heard == f"1024 of {{1024 + (4 << 20)}}, -1024 of {{4 << 20}}", heard
assert caller.caller_profiled(1000) == b""
with torch.profiler.profile(profile_memory=True) as profile:
    caller.caller_delete(caller.caller_take(3 << 20))
    torch.zeros(1)
heard = [event for event in profile.events() if event.name == "[memory]"]
usage = [event.device_memory_usage for event in heard if event.device_memory_usage]
assert sorted(usage) == [-3 << 20, 3 << 20], usage
tenure.uninstall()
assert torch.autograd.profiler._enable_profiler is torch._C._autograd._enable_profiler
_engine.Live.check(0)
""",
        stand_in=False,
    )


BORROW = (
    PREPARE
    + """
import sys
tenure.install("torch", quiet=True)
name, offset = sys.argv[1].encode(), int(sys.argv[2])
for _ in range(2):
    assert caller.caller_receive(name) == b""
first, second = caller.caller_received(0), caller.caller_received(1)
assert first == second  # mapped once
assert ctypes.string_at(first + offset, 5) == b"whole" and take(1 << 20)
ctypes.memmove(first + offset + (30 << 20) - 4, b"back", 4)
caller.caller_let_go()
_engine.Live.check(0)
"""
)


@needs_cuda_build
def test_a_block_is_reached_by_another_process() -> None:
    run(
        PREPARE
        + f"""
import subprocess, sys
tenure.install("torch", quiet=True)
before, block = take(3 << 20), take(30 << 20)
ctypes.memmove(block, b"whole", 5)
assert caller.caller_share(block) == b""
command = [sys.executable, "-c", {BORROW!r}, caller.caller_shared_name().decode(),
           str(caller.caller_shared_offset())]
done = subprocess.run(command, capture_output=True, text=True)
assert done.returncode == 0, done.stderr
assert ctypes.string_at(block + (30 << 20) - 4, 4) == b"back"
_engine.Live.check(0)
""",
        stand_in=False,
    )


@needs_cuda_build
@pytest.mark.parametrize("glue", [True, False])
def test_what_cannot_be_had_is_one_clear_error(glue: bool) -> None:
    run(
        PREPARE
        + f"""
tenure.install(quiet=True, glue={glue})
block = take(1000)
share, receive, track = (
    error.decode() for error in (caller.caller_share(block), caller.caller_receive(b"a handle"),
                                 caller.caller_track())
)
if {glue}:
    assert "tenure: memory cannot be shared with another process: it is mapped in chunks" in share
    assert "does not allocate through this version of tenure" in receive, receive
    assert "tenure: its memory cannot be registered with NCCL" in track, track
else:  # PyTorch's own words
    assert all("does not" in error for error in (share, receive, track)), (share, receive, track)
_engine.Live.check(0)
""",
        stand_in=False,
    )


@needs_cuda_build
def test_without_glue_the_calls_are_refused() -> None:
    done = attempt(
        PREPARE
        + """
tenure.install(glue=False)
take(1)
print(torch._C._cuda_getAllocator)
""",
        stand_in=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cudnn.benchmark" in done.stderr
    assert "reduce-overhead" in done.stderr
    assert "IPC" in done.stderr


@needs_cuda_build
def test_what_still_will_not_work_is_said(tmp_path: Path) -> None:
    done = attempt("import tenure; tenure.install()", stand_in=False)
    assert done.returncode == 0, done.stderr
    assert "cudnn.benchmark" not in done.stderr
    assert "IPC" in done.stderr
    assert "NCCL" in done.stderr
    done = attempt("import tenure; tenure.install('torch')", stand_in=False)
    assert "IPC" not in done.stderr
    assert "NCCL" in done.stderr
    broken = attempt(
        "import tenure; tenure.install()",
        stand_in=False,
        XDG_CACHE_HOME=str(tmp_path),
        CXX="false",
    )
    assert broken.returncode == 0, broken.stderr
    assert "cudnn.benchmark" in broken.stderr
    assert "to mend that: " in broken.stderr


@needs_cuda_build
def test_a_machine_without_a_driver_hears_pytorchs_own_words() -> None:
    done = attempt(
        """
import torch, tenure
tenure.install(quiet=True)
try:
    torch.empty(1, device="cuda")
except RuntimeError as error:
    print(str(error).partition(".")[0])
assert torch.cuda.memory_allocated() == 0
tenure.uninstall()
""",
        stand_in=False,
        TENURE_DRIVER_LIBRARY="nowhere.so",
    )
    if "NVIDIA driver" not in done.stdout and done.returncode == 0:
        pytest.skip("there is a driver here")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "Found no NVIDIA driver on your system" in done.stdout


@pytest.mark.skipif(
    has_cuda_build() or not has_library("libtorch_cpu.so"), reason="needs PyTorch without CUDA"
)
def test_a_pytorch_without_cuda_is_told_so() -> None:
    run(
        """
import torch, tenure
before = vars(torch._C).copy()
try:
    tenure.install()
except tenure.errors.UsageError as error:
    assert "built without CUDA" in str(error), error
else:
    raise AssertionError
assert vars(torch._C) == before
assert torch.ones(3).sum() == 3
""",
        stand_in=False,
    )
