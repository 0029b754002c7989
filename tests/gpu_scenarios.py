"""What a real GPU is asked to do under tenure: `python gpu_scenarios.py NAME RULES`.

Each scenario is a process of its own, since a process has one allocator. RULES is elastic, torch or
native (PyTorch's own allocator, for comparison). The last line printed is a JSON object; anything
wrong is an exception. With GLUE=0 in the environment tenure is a plain plug-in of PyTorch's.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch: what makes two runs equal to the last bit.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

MIB = 1 << 20
GIB = 1 << 30
Result = dict[str, Any]


def install(rules: str, **options: Any) -> None:
    if rules == "native":
        capacity = options.get("capacity")
        if capacity:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(capacity / total)
        return
    import tenure

    with_glue = os.environ.get("GLUE", "1") != "0"
    tenure.install(rules, quiet=True, glue=with_glue, **options)


def engine() -> Any:
    from tenure import _engine

    return _engine.Live


def sound(rules: str) -> None:
    """The engine's invariants hold."""
    if rules != "native":
        for device in engine().devices():
            engine().check(device)


def stats() -> dict[str, int]:
    return dict(torch.cuda.memory_stats())


# --- errors and numbers --------------------------------------------------------------------------


def errors(rules: str) -> Result:
    """Out of memory is PyTorch's own error, with PyTorch's words, and the process goes on."""
    install(rules)
    keep = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *a: seen.append(a))
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        caught = error
    assert isinstance(caught, RuntimeError)
    assert len(caught.args) == 1
    text = str(caught)
    assert text.startswith("CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total")
    assert " out of memory." in text
    assert "is reserved by PyTorch but unallocated." in text
    assert len(seen) == 1, seen
    assert seen[0][:2] == (0, 1 << 40), seen
    if rules != "native":
        assert "gpu_scenarios.py" in text, text
        assert stats()["num_ooms"] == 1
    import pickle

    assert str(pickle.loads(pickle.dumps(caught))) == text
    x = torch.ones(1000, device="cuda").sum().item()
    assert x == 1000
    del keep
    try:
        torch.empty(1 << 62, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        caught = error
    assert "1EB" in str(caught)
    assert torch.empty(0, device="cuda").data_ptr() == 0
    sound(rules)
    return {"text": text}


def numbers(rules: str) -> Result:
    """The counters after a fixed sequence; the caller compares native with torch rules."""
    install(rules)
    random.seed(1)
    keep: list[torch.Tensor] = []
    for _ in range(400):
        size = random.choice([1, 500, 5_000, 300_000, 2_000_000, 9_000_000, 30_000_000])
        keep.append(torch.empty(size + random.randint(0, size), dtype=torch.uint8, device="cuda"))
        while len(keep) > random.randint(5, 40):
            keep.pop(random.randrange(len(keep)))
    first = stats()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    keep.clear()
    torch.cuda.empty_cache()
    second = stats()
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == first["allocated_bytes.all.current"]
    assert torch.cuda.memory_reserved() == second["reserved_bytes.all.current"]
    assert "Allocated memory" in torch.cuda.memory_summary()
    sound(rules)
    return {"first": first, "second": second}


def driver_agrees(rules: str) -> Result:
    """What is reported as reserved is what the driver says is gone."""
    install(rules)
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    keep = [torch.empty(n * 7_654_321, dtype=torch.uint8, device="cuda") for n in range(1, 60)]
    del keep[::2]
    gone = free - torch.cuda.mem_get_info()[0]
    grown = torch.cuda.memory_reserved() - reserved
    assert abs(gone - grown) <= 2 * MIB, (gone, grown)
    keep.clear()
    torch.cuda.empty_cache()
    gone = free - torch.cuda.mem_get_info()[0]
    assert gone <= 2 * MIB, gone
    return {"grown": grown}


def snapshots(rules: str) -> Result:
    """PyTorch's own recording calls work, and their file has what viewers read."""
    install(rules)
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.empty(3_000_000, device="cuda")
    y = x * 2
    del x
    snapshot = torch.cuda.memory._snapshot()
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert "alloc" in actions, actions
    assert actions[-2:] == ["free_requested", "free_completed"], actions
    live = [
        block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert any(block["address"] == y.data_ptr() for block in live)
    frames = next(block["frames"] for block in live if block["address"] == y.data_ptr())
    assert any(frame["name"] == "snapshots" for frame in frames), frames
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        size = path.stat().st_size
    torch.cuda.memory._record_memory_history(enabled=None)
    assert torch.cuda.memory_snapshot()
    if rules != "native":
        import tenure

        assert "gpu_scenarios.py" in tenure.memory_summary()
    return {"bytes": size}


# --- contents ------------------------------------------------------------------------------------


class Stress:
    """Threads that allocate on streams of all, pass tensors on, and check what was written."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.time() + seconds
        self.wrong: list[str] = []
        self.ooms = 0
        self.streams = [torch.cuda.Stream() for _ in range(6)]
        self.exchange: list[Any] = []
        self.lock = threading.Lock()

    def check(self, tensor: torch.Tensor, mark: int) -> None:
        if not bool((tensor == mark).all().item()):
            self.wrong.append(f"a block of {tensor.numel()} lost its {mark}")

    def work(self, seed: int) -> None:
        generator = random.Random(seed)
        own: list[tuple[torch.Tensor, int, torch.cuda.Stream]] = []
        while time.time() < self.deadline and not self.wrong:
            self.make(generator, own)
            if own and generator.random() < 0.3:
                self.pass_on(generator, own)
            while len(own) > generator.randint(1, 12):
                self.use_up(generator, *own.pop(generator.randrange(len(own))))

    def make(self, generator: random.Random, own: list[Any]) -> None:
        stream = generator.choice(self.streams)
        with torch.cuda.stream(stream):
            size = int(2 ** generator.uniform(4, 25.5))
            mark = generator.randint(0, 1 << 30)
            try:
                own.append((torch.full((size,), mark, device="cuda"), mark, stream))
            except torch.OutOfMemoryError:
                self.ooms += 1
                del own[: len(own) // 2]
            if generator.random() < 0.2:
                torch.cuda._sleep(generator.randint(1_000, 3_000_000))

    def pass_on(self, generator: random.Random, own: list[Any]) -> None:
        with self.lock:
            self.exchange.append(own.pop(generator.randrange(len(own))))
            if len(self.exchange) > 8:
                own.append(self.exchange.pop(generator.randrange(len(self.exchange))))

    def use_up(
        self,
        generator: random.Random,
        tensor: torch.Tensor,
        mark: int,
        made_on: torch.cuda.Stream,
    ) -> None:
        other = generator.choice(self.streams)
        if generator.random() < 0.5:
            with torch.cuda.stream(other):
                other.wait_stream(made_on)
                tensor.record_stream(other)
                self.check(tensor, mark)
                tensor.add_(1)  # still queued when the tensor dies
        else:
            with torch.cuda.stream(made_on):
                self.check(tensor, mark)


def contents(rules: str) -> Result:
    """Threads, streams, sizes at random under a tight limit: every block keeps what was written."""
    install(rules, capacity=3 * GIB)
    stress = Stress(float(os.environ.get("STRESS_SECONDS", "20")))

    threads = [threading.Thread(target=stress.work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not stress.wrong, stress.wrong[:5]
    sound(rules)
    stress.exchange.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
    result: Result = {"ooms": stress.ooms, "stats": stats()["allocation.all.allocated"]}
    if rules == "elastic":
        moves = engine().elastic_statistics(0)
        assert moves["moves"] > 0, moves
        result["elastic"] = moves
    return result


def record_stream(rules: str) -> Result:
    """A block used on another stream is not handed out before that use is over."""
    install(rules)
    side = torch.cuda.Stream()
    reused = 0
    for i in range(51):
        x = torch.full((MIB,), i, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            y = x + 0
        x.record_stream(side)
        address = x.data_ptr()
        del x
        z = torch.full((MIB,), -1, device="cuda")
        if i > 0:  # the first round loads kernels, longer than the side stream sleeps
            reused += z.data_ptr() == address
        side.synchronize()
        assert bool((y == i).all().item()), i
        del y, z
    assert reused == 0, reused
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    sound(rules)
    return {}


def one_shot_streams(rules: str) -> Result:
    """A fresh stream each time strands nothing: memory follows the work."""
    install(rules, capacity=160 * MIB)
    for _ in range(8):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((128 * MIB,), 3, dtype=torch.uint8, device="cuda")
            assert int(x[-1].item()) == 3
            del x
    sound(rules)
    return {"peak_reserved": stats()["reserved_bytes.all.peak"]}


# --- graphs and pools ----------------------------------------------------------------------------


def graphs(rules: str) -> Result:
    """Captured graphs keep their memory to themselves and replay right."""
    install(rules)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512), torch.nn.GELU()] * 4).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(torch.randn(64, 512, device="cuda"))
    torch.cuda.current_stream().wait_stream(side)
    captured = []
    pool = None
    for batch in (64, 128, 32):
        graph = torch.cuda.CUDAGraph()
        x = torch.randn(batch, 512, device="cuda")
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool):
            y = model(x)
        pool = pool or (graph.pool() if batch == 64 else None)
        captured.append((graph, x, y))
    noise = [torch.full((random.randint(1, MIB),), 9.0, device="cuda") for _ in range(200)]
    for graph, x, y in captured:
        x.copy_(torch.randn_like(x))
        noise += [torch.full((random.randint(1, MIB),), 7.0, device="cuda") for _ in range(50)]
        graph.replay()
        torch.cuda.synchronize()
        with torch.no_grad():
            assert torch.equal(y, model(x))
    for tensor in noise:
        assert bool(((tensor == 9) | (tensor == 7)).all().item())
    sound(rules)
    before = torch.cuda.memory_reserved()
    del captured, graph, x, y
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    sound(rules)
    return {"before": before, "after": torch.cuda.memory_reserved()}


def memory_pools(rules: str) -> Result:
    """torch.cuda.MemPool keeps its blocks apart."""
    install(rules)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((MIB,), 5, device="cuda")
        y = x + 1
        del y
    outside = torch.full((MIB,), 6, device="cuda")
    addresses = [block["address"] for s in pool.snapshot() for block in s["blocks"]]
    assert x.data_ptr() in addresses
    assert outside.data_ptr() not in addresses
    assert bool((x == 5).all().item())
    assert pool.use_count() >= 1
    del x, pool
    gc.collect()
    torch.cuda.empty_cache()
    sound(rules)
    return {}


# --- training ------------------------------------------------------------------------------------


def training(rules: str) -> Result:
    """A small model, varying batches; the caller compares losses bit for bit."""
    install(rules)
    torch.use_deterministic_algorithms(True)
    return train(40)


def train(steps: int, width: int = 1024) -> Result:
    torch.manual_seed(0)
    generator = random.Random(0)
    layers = [
        torch.nn.TransformerEncoderLayer(width, 8, 2 * width, dropout=0.0, batch_first=True)
        for _ in range(4)
    ]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    begun = time.time()
    for _ in range(steps):
        x = torch.randn(8, generator.randint(32, 512), width, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    now = stats()
    return {
        "losses": losses,
        "seconds": time.time() - begun,
        "live_peak": now["active_bytes.all.peak"],
        "reserved_peak": now["reserved_bytes.all.peak"],
        "retries": now["num_alloc_retries"],
    }


def limited_training(rules: str) -> Result:
    """The same in 1.03 times the bytes that are live at its peak."""
    peak = int(os.environ["LIVE_PEAK"])
    install(rules, capacity=int(peak * 1.03))
    torch.use_deterministic_algorithms(True)
    result = train(40)
    sound(rules)
    if rules == "elastic":
        result["elastic"] = engine().elastic_statistics(0)
    return result


# --- what PyTorch's plug-in interface leaves out --------------------------------------------------


def searched_convolutions(rules: str) -> Result:
    """cudnn.benchmark asks the allocator for its largest free block; results stay right."""
    install(rules)
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 8, 5)]
    model = torch.nn.Sequential(*layers).cuda()
    for size in (64, 96, 128):
        x = torch.randn(16, 3, size, size, device="cuda")
        torch.backends.cudnn.benchmark = False
        plain = model(x)
        torch.backends.cudnn.benchmark = True
        searched = model(x)
        torch.testing.assert_close(searched, plain, rtol=1e-2, atol=1e-2)
        searched.sum().backward()
    torch.cuda.synchronize()
    sound(rules)
    return {}


def compiled_graphs(rules: str) -> Result:
    """torch.compile's trees of graphs: checkpoints of a pool, two shapes, a tensor kept."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return {"skipped": "no triton"}
    install(rules)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)]
    model = torch.nn.Sequential(*layers).cuda()
    fast = torch.compile(model, mode="reduce-overhead")
    kept = []
    for step in range(12):
        x = torch.randn(32 if step % 3 else 48, 256, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        y = fast(x)
        torch.testing.assert_close(y, model(x), rtol=1e-2, atol=1e-2)
        y.sum().backward()
        kept.append((y.detach().clone(), x))
        model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for y, x in kept:
            torch.testing.assert_close(y, model(x), rtol=1e-2, atol=1e-2)
    torch.cuda.synchronize()
    sound(rules)
    return {}


def profiled(rules: str) -> Result:
    """PyTorch's profiler hears of allocations and frees."""
    install(rules)
    torch.zeros(1, device="cuda")
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    usage = {event.key: event.self_device_memory_usage for event in profile.key_averages()}
    assert usage["aten::empty"] == 3 * MIB, usage
    assert usage["[memory]"] == -3 * MIB, usage
    return {}


def cycles(rules: str) -> Result:
    """Memory that only dead reference cycles hold is found before a request fails."""
    install(rules, capacity=GIB)
    gc.disable()

    class Node:
        def __init__(self) -> None:
            self.me = self
            self.memory = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")

    for _ in range(20):
        Node()
    assert stats()["num_ooms"] == 0
    return {}


# --- the process ---------------------------------------------------------------------------------


def forks(rules: str) -> Result:
    """Workers that do not use CUDA are forked freely; one that does is told."""
    install(rules)
    data = torch.utils.data.TensorDataset(torch.arange(64))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    total = sum(int(batch[0].cuda().sum().item()) for batch in loader)
    assert total == 63 * 32, total
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.empty(1, device="cuda")
        except RuntimeError as error:
            code = 0 if "forked subprocess" in str(error) else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    return {}


def leaves(rules: str) -> Result:
    """The process ends with tensors, threads and pending work about; the exit code is looked at."""
    install(rules)
    keep = torch.ones(MIB, device="cuda")
    sys.modules["__main__"].keep = keep  # type: ignore[attr-defined]

    # Asleep most of the time: a daemon thread inside PyTorch when the interpreter ends aborts the
    # process under any allocator (it is unwound through frames that allow no exception).
    def spin() -> None:
        while True:
            torch.empty(1000, device="cuda")
            time.sleep(0.01)

    threading.Thread(target=spin, daemon=True).start()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
    keep.record_stream(side)
    time.sleep(0.2)
    return {}


def late(rules: str) -> Result:
    """What cannot be done says so: installing twice, or after CUDA is in use."""
    import tenure
    from tenure.errors import UsageError

    if rules == "native":
        return {}
    torch.ones(1, device="cuda")
    text = ""
    try:
        tenure.install(rules)
    except UsageError as error:
        text = str(error)
    assert "before the first CUDA call" in text
    return {}


SCENARIOS: dict[str, Callable[[str], Result]] = {
    function.__name__: function
    for function in (
        errors,
        numbers,
        driver_agrees,
        snapshots,
        contents,
        record_stream,
        one_shot_streams,
        graphs,
        memory_pools,
        training,
        limited_training,
        searched_convolutions,
        compiled_graphs,
        profiled,
        cycles,
        forks,
        leaves,
        late,
    )
}

if __name__ == "__main__":
    outcome = SCENARIOS[sys.argv[1]](sys.argv[2])
    sys.stdout.write(json.dumps(outcome) + "\n")
