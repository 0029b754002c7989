"""CuPy, Numba and `tenure check`, with stand-ins for the libraries, on the fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_gpu import run

CUPY = """
import sys, types
import tenure
cupy = types.ModuleType("cupy")
class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        self.size = size
class Stream:
    def __init__(self, ptr): self.ptr = ptr
current = [Stream(0)]
class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id
class MemoryPointer:
    def __init__(self, mem, offset): self.mem, self.ptr = mem, mem.ptr + offset
allocator = [None]
cupy.cuda = types.SimpleNamespace(
    set_allocator=lambda f: allocator.__setitem__(0, f),
    get_current_stream=lambda: current[0],
    device=types.SimpleNamespace(get_device_id=lambda: 0),
    memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer)
cupy.get_default_memory_pool = lambda: types.SimpleNamespace(malloc="its own")
sys.modules["cupy"] = cupy
import tenure.live.cupy as adapter
"""

NUMBA = """
import sys, types
numba = types.ModuleType("numba")
cuda = types.ModuleType("numba.cuda")
managers = []
class HostOnly:
    def __init__(self, *, context): self.context = context
class CudaAPIError(Exception):
    def __init__(self, code, msg): super().__init__(code, msg)
class MemoryPointer:
    def __init__(self, context, pointer, size, finalizer=None):
        self.pointer, self.size, self.finalizer = pointer, size, finalizer
cuda.HostOnlyCUDAMemoryManager = HostOnly
cuda.cudadrv = types.SimpleNamespace(driver=types.SimpleNamespace(CudaAPIError=CudaAPIError))
cuda.MemoryPointer, cuda.set_memory_manager = MemoryPointer, managers.append
numba.cuda = cuda
sys.modules["numba"], sys.modules["numba.cuda"] = numba, cuda
import tenure.live.numba as adapter
"""


def test_cupy_takes_its_memory_from_the_engine() -> None:
    run(
        CUPY
        + """
adapter.install(capacity="64MiB")
pointer = allocator[0](5000)
assert tenure.memory_stats()["requested_bytes.all.current"] == 5000
assert pointer.ptr == pointer.mem._owner.address
current[0] = Stream(0x50)
other = allocator[0](1 << 20)
streams = {b[5] for b in tenure.live.statistics._engine.Live.blocks(0) if b[4] == 1}
assert streams == {0, 0x50}, streams
array = types.SimpleNamespace(data=other)
adapter.record_stream(array, Stream(0x60))
try:
    allocator[0](100 << 20)
except OutOfMemoryError as error:
    assert "CUDA out of memory. Tried to allocate 100.00 MiB" in str(error)
else:
    raise AssertionError
del pointer, other, array
assert tenure.memory_stats()["allocated_bytes.all.current"] == 0
assert allocator[0](0).ptr == 0
adapter.uninstall()
assert allocator == ["its own"]
"""
    )


def test_cupy_shares_the_memory_of_pytorch() -> None:
    run(
        CUPY
        + """
import torch
tenure.install(quiet=True)
adapter.install()
tensor, pointer = torch.empty(1000), allocator[0](1000)
assert torch.cuda.memory_allocated() == 2048
try:
    adapter.install(capacity=1)
except tenure.errors.UsageError as error:
    assert "first install" in str(error)
else:
    raise AssertionError
"""
    )


def test_pytorch_shares_the_memory_of_cupy() -> None:
    run(
        CUPY
        + """
import torch
adapter.install(rules="torch", capacity="64MiB")
pointer = allocator[0](1000)
try:
    tenure.install(capacity="32MiB")
except tenure.errors.UsageError as error:
    assert "first install" in str(error)
else:
    raise AssertionError
tenure.install(quiet=True)
tensor = torch.empty(1000)
assert torch.cuda.memory_allocated() == 2048
try:
    adapter.install(capasity=1)
except tenure.errors.UsageError as error:
    assert "no such option: capasity; there are rules, capacity, conf" in str(error), error
else:
    raise AssertionError
"""
    )


def test_numba_takes_its_memory_from_the_engine() -> None:
    run(
        NUMBA
        + """
import tenure
adapter.install()
context = types.SimpleNamespace(device=types.SimpleNamespace(id=0))
manager = managers[0](context=context)
manager.initialize()
assert manager.interface_version == 1
memory = manager.memalloc(3000)
assert memory.pointer.value % 512 == 0
assert tenure.memory_stats()["requested_bytes.all.current"] == 3000
memory.finalizer()
assert tenure.memory_stats()["requested_bytes.all.current"] == 0
try:
    manager.memalloc(2 << 30)
except CudaAPIError as error:
    assert error.args[0] == 2 and "out of memory. Tried to allocate 2.00 GiB" in error.args[1]
else:
    raise AssertionError
try:
    manager.get_ipc_handle(memory)
except tenure.errors.UsageError as error:
    assert "IPC" in str(error)
else:
    raise AssertionError
"""
    )


def test_numbas_memory_waits_for_a_stream_that_was_named() -> None:
    run(
        NUMBA
        + """
import ctypes, os, tenure
adapter.install(rules="torch")
driver = ctypes.CDLL(os.environ["TENURE_DRIVER_LIBRARY"])
driver.fake_driver_hold(ctypes.c_uint64(48))
manager = managers[0](context=types.SimpleNamespace(device=types.SimpleNamespace(id=0)))
memory = manager.memalloc(3 << 20)
address = memory.pointer.value
array = types.SimpleNamespace(__cuda_array_interface__={"data": (address + 512, False)})
adapter.record_stream(array, 48)
memory.finalizer()
assert manager.memalloc(3 << 20).pointer.value != address
driver.fake_driver_finish(ctypes.c_uint64(48))
assert manager.memalloc(3 << 20).pointer.value == address
try:
    adapter.record_stream(types.SimpleNamespace(__cuda_array_interface__={"data": (64, False)}), 48)
except tenure.errors.UsageError as error:
    assert "not managed by tenure" in str(error)
else:
    raise AssertionError
"""
    )


def test_a_library_that_is_absent_is_named() -> None:
    run(
        """
        import sys
        from tenure.errors import UsageError
        import tenure.live.cupy, tenure.live.numba
        sys.modules["cupy"] = sys.modules["numba"] = None
        for library in (tenure.live.cupy, tenure.live.numba):
            try:
                library.install()
            except UsageError as error:
                assert "cannot be imported" in str(error)
            else:
                raise AssertionError
        """
    )


def check(**environment: str) -> tuple[int, str]:
    printed = run(
        f"""
        import json, subprocess, sys
        done = subprocess.run(
            [sys.executable, "-m", "tenure", "check", *{list(environment.pop("args", "").split())}],
            capture_output=True, text=True)
        print(json.dumps([done.returncode, done.stdout + done.stderr]))
        """,
        stand_in=True,
        **environment,
    )
    code, text = json.loads(printed)
    return code, text


def test_check_says_what_holds_and_what_clashes() -> None:
    code, text = check()
    assert code == 0, text
    assert "driver         13.0, 1 GPU\n" in text
    assert "install()      cannot: this PyTorch is built without CUDA\n" in text
    assert "Nothing clashes." in text
    code, text = check(
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128,expandable_segments:True",
        args="--json",
    )
    found = json.loads(text)
    assert code == 1
    assert "pytorch#193400" in found["clashes"][0]
    assert found["variable"] == "PYTORCH_CUDA_ALLOC_CONF"
    code, text = check(FAKE_DRIVER_VIRTUAL_MEMORY="0")
    assert code == 1, text
    assert "GPU 0 cannot map memory" in " ".join(text.split())
    code, text = check(TENURE_DRIVER_LIBRARY="nowhere.so")
    assert code == 0
    assert "none (nowhere.so" in text


def test_check_says_how_install_would_serve_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure import compiled
    from tenure.live import glue
    from tenure.live.checking import check as look

    monkeypatch.setattr(compiled, "torch_folder", lambda: None)
    assert look().install == "cannot: PyTorch is not installed"
    monkeypatch.setattr(compiled, "torch_folder", lambda: tmp_path)
    assert look().install == "cannot: this PyTorch is built without CUDA"
    for file in ("lib/libc10_cuda.so", "include/torch/csrc/cuda/CUDAPluggableAllocator.h"):
        assert "whole interface" not in look().install
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(glue, "cuda_headers", lambda _: iter(()))
    assert "found no CUDA headers" in look().install
    monkeypatch.setattr(glue, "cuda_headers", lambda _: iter((tmp_path,)))
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    assert look().install.endswith("no C++ compiler here")
    monkeypatch.setattr(compiled, "compiler", lambda: "/usr/bin/c++")
    assert look().install == "serves PyTorch's whole interface for allocators"


def test_check_names_other_allocators(tmp_path: Path) -> None:
    for name in ("comfy_aimdo", "rmm_cu13", "torch_memory_saver"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        title = name.replace("_", "-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title}\nVersion: 1.0\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    code, text = check(
        PYTHONPATH=paths, LD_PRELOAD=str(tmp_path / "libtorch_memory_saver.so"), args="--json"
    )
    # Behind it the loader complains of the library that is not there.
    clashes = json.JSONDecoder().raw_decode(text)[0]["clashes"]
    assert code == 1
    assert [clash.split()[0] for clash in clashes] == [
        "comfy-aimdo", "rmm-cu13", "torch-memory-saver", "LD_PRELOAD"
    ]  # fmt: skip
    assert "two cannot both be installed" in clashes[0]
    assert "torch_memory_saver" in clashes[3]


def test_importing_touches_neither_driver_nor_torch() -> None:
    script = (
        "import sys, tenure, tenure.live\n"
        "assert 'torch' not in sys.modules and 'cupy' not in sys.modules\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
