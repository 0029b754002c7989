"""What trainers read and call, with the libraries' own functions, over the fake driver.

A CPU build of PyTorch has no natives for CUDA's allocator: those of the stand-in take their place,
and everything in Python above them is PyTorch's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_gpu import STAND_IN, run

RULES = ("elastic", "torch")
each_rules = pytest.mark.parametrize("rules", RULES)

PRELUDE = f"""
import importlib.util, warnings
warnings.simplefilter("ignore")  # the libraries' own
import torch
spec = importlib.util.spec_from_file_location("native", {str(STAND_IN / "torch/native.py")!r})
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
for name in vars(native):
    if name.startswith("_cuda_"):
        setattr(torch._C, name, getattr(native, name))
torch._C._cuda_getDevice = torch._C._cuda_getCurrentRawStream = lambda *_: 0
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda._lazy_init = lambda: setattr(torch.cuda, "_initialized", True)

import tenure
MIB = 1 << 20

class Block:  # a tensor's storage
    def __init__(self, size):
        torch.cuda._initialized = True
        try:
            self.buffer = tenure.live.statistics._engine.LiveBuffer(size, 0, 0)
        except tenure.errors.OutOfMemoryError as error:  # as the entry point's exception
            raise torch.OutOfMemoryError(str(error)) from None

def failure(size):
    try:
        Block(size)
    except Exception as error:
        return error
"""


def run_with(*libraries: str, script: str, **environment: str) -> str:
    for library in ("torch", *libraries):
        pytest.importorskip(library, reason=f"{library} is not installed")
    return run(PRELUDE + script, stand_in=False, **environment)


@each_rules
def test_pytorchs_own_functions_answer_from_the_engine(rules: str) -> None:
    run_with(
        script=f"""
tenure.install({rules!r}, quiet=True)
assert torch.cuda.memory_allocated() == 0
held, gone = Block(3 * MIB), Block(20 * MIB)
del gone
stats = torch.cuda.memory_stats()
counts = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
          "active_bytes", "inactive_split_bytes", "requested_bytes")
for count in counts:
    for pool in ("all", "small_pool", "large_pool"):
        for figure in ("current", "peak", "allocated", "freed"):
            assert isinstance(stats[f"{{count}}.{{pool}}.{{figure}}"], int)
for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
             "num_device_free", "max_split_size"):
    assert isinstance(stats[name], int)
assert torch.cuda.memory_allocated() == stats["allocated_bytes.all.current"] == 3 * MIB
assert torch.cuda.max_memory_allocated() == torch.cuda.memory.max_memory_allocated() == 23 * MIB
assert torch.cuda.max_memory_reserved() == torch.cuda.max_memory_cached() >= 23 * MIB
assert torch.cuda.memory_reserved() == sum(s["total_size"] for s in torch.cuda.memory_snapshot())
text = torch.cuda.memory_summary()
assert "Allocated memory      |   3072 KiB |  23552 KiB |" in text, text
torch.cuda.reset_accumulated_memory_stats()
assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 0
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < 23 * MIB
"""
    )


@each_rules
def test_peaks_that_anybody_resets_stay_in_tenures_own_counters(rules: str) -> None:
    run_with(
        script=f"""
tenure.install({rules!r}, quiet=True)
held, gone = Block(3 * MIB), Block(20 * MIB)
del gone
for _ in range(2):
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    for count in ("requested", "allocated", "active"):
        assert tenure.memory_stats()[f"process.{{count}}_bytes.peak"] == 23 * MIB
Block(40 * MIB)
assert torch.cuda.max_memory_allocated() == 43 * MIB
assert tenure.memory_stats("cuda:0")["process.allocated_bytes.peak"] == 43 * MIB
assert tenure.memory_stats()["process.reserved_bytes.peak"] >= 43 * MIB
summary = tenure.memory_summary(torch.device("cuda", 0))
assert summary.splitlines()[2].split()[:3] == ["peak", "43.00", "MiB"], summary
"""
    )


def test_the_summary_tells_what_the_memory_is_for() -> None:
    run_with(
        script="""
import ctypes
tenure.install(quiet=True)
blocks = []

def tensor(mib):  # the fake driver's memory is the host's
    blocks.append(Block(mib * MIB))
    memory = (ctypes.c_float * (mib * MIB // 4)).from_address(blocks[-1].buffer.address)
    return torch.frombuffer(memory, dtype=torch.float32)

model = torch.nn.Module()
model.weight = torch.nn.Parameter(tensor(8))
model.register_buffer("mask", tensor(1))
model.register_buffer("same", model.weight.detach())
model.weight.grad = tensor(8)
optimizer = torch.optim.AdamW(model.parameters())
optimizer.state[model.weight] = {"step": torch.tensor(1.0), "exp_avg": tensor(4)[10:]}
activations = tensor(30)
from tenure.live.categories import bytes_by_category
assert bytes_by_category(0) == {
    "parameters": 8 * MIB, "gradients": 8 * MIB, "optimizer state": 4 * MIB, "buffers": MIB,
    "others": 30 * MIB}
lines = tenure.memory_summary().splitlines()
assert " ".join(lines[4:6]) == (
    "Allocated: parameters 8.00 MiB, gradients 8.00 MiB, optimizer state 4.00 MiB, "
    "buffers 1.00 MiB, others 30.00 MiB"), lines
"""
    )


@each_rules
def test_a_snapshot_opens_in_pytorchs_own_viewer(rules: str, tmp_path: Path) -> None:
    run_with(
        script=f"""
import pickle
from torch.cuda import _memory_viz as viz
tenure.install({rules!r}, capacity="64MiB", quiet=True)
torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)
held = [Block(20 * MIB), Block(1000)]
before = torch.cuda.memory._snapshot()
held += [Block(3 * MIB)]
assert isinstance(failure(60 * MIB), torch.OutOfMemoryError)
del held[0]
path = {str(tmp_path / "own.pickle")!r}
torch.cuda.memory._dump_snapshot(path)
with open(path, "rb") as file:
    after = pickle.load(file)
assert "OutOfMemoryError" in viz.trace(after)
assert "total_allocated: 3.0MiB" in viz.segsum(after), viz.segsum(after)
for lines in (viz.memory(after, str), viz.segments(after, str),
              viz.compare(before["segments"], after["segments"], str)):
    assert "__init__" in lines
for page in (viz.trace_plot(after), viz.segment_plot(after)):
    assert page.lstrip().startswith("<!DOCTYPE html>")
"""
    )


@each_rules
def test_accelerate_reduces_the_batch_until_it_fits(rules: str) -> None:
    run_with(
        "accelerate",
        script=f"""
from accelerate.utils.memory import (
    clear_device_cache, find_executable_batch_size, release_memory, should_reduce_batch_size)
tenure.install({rules!r}, capacity="64MiB", quiet=True)
assert should_reduce_batch_size(failure(100 * MIB))
tried = []

@find_executable_batch_size(starting_batch_size=128, reduce_batch_size_fn=lambda: tried[-1] // 2)
def train(batch_size):
    tried.append(batch_size)
    return Block(batch_size * MIB)

held = train()
assert tried == [128, 64], tried
held, = release_memory(held)
clear_device_cache(garbage_collection=True)
assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
""",
    )


def test_no_other_error_makes_a_trainer_reduce_its_batch() -> None:
    run_with(
        "accelerate",
        script="""
from accelerate.utils.memory import should_reduce_batch_size
tenure.install(quiet=True)
error = failure(MIB)
assert "no NVIDIA driver here" in str(error), error
for given in (error, RuntimeError(str(error)), failure(-1)):
    assert not should_reduce_batch_size(given), given
""",
        TENURE_DRIVER_LIBRARY="nowhere.so",
    )


@pytest.mark.slow
@each_rules
def test_transformers_memory_metrics_are_to_the_byte(rules: str) -> None:
    run_with(
        "transformers",
        "psutil",
        script=f"""
from transformers.trainer_utils import TrainerMemoryTracker
tenure.install({rules!r}, quiet=True)

class Trainer:  # the tracker asks for the names of its callers
    def __init__(self):
        self.tracker = TrainerMemoryTracker(skip_memory_metrics=False)
        self.tracker.start()
        self.weights = Block(30 * MIB)
        self.tracker.stop_and_update_metrics()

    def train(self):
        self.tracker.start()
        self.state, activations = Block(12 * MIB), Block(50 * MIB)
        del activations
        metrics = {{}}
        self.tracker.stop_and_update_metrics(metrics)
        return metrics

found = Trainer().train()
assert found["before_init_mem_gpu"] == 0
assert found["init_mem_gpu_alloc_delta"] == 30 * MIB
assert found["train_mem_gpu_alloc_delta"] == 12 * MIB
assert found["train_mem_gpu_peaked_delta"] == 50 * MIB
assert tenure.memory_stats()["process.allocated_bytes.peak"] == 92 * MIB
""",
    )


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_scales_the_batch_until_it_fits(package: str) -> None:
    run_with(
        package,
        script=f"""
import logging
import {package} as lightning
from {package}.accelerators import CUDAAccelerator
from {package}.tuner import Tuner
from {package}.utilities.memory import garbage_collection_cuda, is_oom_error
tenure.install(capacity="64MiB", quiet=True)
assert is_oom_error(failure(100 * MIB))
garbage_collection_cuda()

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.batch_size = torch.nn.Linear(4, 1), 4

    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.ones(256, 4))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size)

    def training_step(self, batch, _):
        activations = Block(len(batch[0]) * MIB)
        return self.net(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model = Model()
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False)
found = Tuner(trainer).scale_batch_size(model, mode="power", init_val=8, steps_per_trial=1)
assert found == 64, found
stats = CUDAAccelerator().get_device_stats(torch.device("cuda", 0))
assert stats["num_ooms"] == 2, stats["num_ooms"]  # the one above, and that of 128
assert stats["allocated_bytes.all.peak"] == 64 * MIB
CUDAAccelerator().teardown()
assert torch.cuda.memory_reserved() == 0
""",
    )
