"""Two GPUs of one process, and one each of two processes, under tenure or PyTorch's own allocator.

    python gpu_several.py NAME RULES     elastic, torch or native; NAME as in SCENARIOS
    python gpu_several.py all RULES      each in a process of its own, four side by side

The last line printed is a JSON object; anything wrong is an exception. GLUE=0 leaves the glue off.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from gpu_scenarios import GIB, MIB, Result, engine, install, sound

LATE = 20_000_000  # cycles that keep a stream busy
LONGEST = 120  # seconds, for one scenario
DEVICES = ("cuda:0", "cuda:1")


def allocated(device: int) -> int:
    return int(torch.cuda.memory_stats(device)["allocated_bytes.all.current"])


def finish(rules: str) -> None:
    """Nothing is left on either device, and the engine is sound."""
    for device in (0, 1):
        torch.cuda.synchronize(device)
        torch.empty(1, device=DEVICES[device])  # a request: what is done by now is noticed
    torch.cuda.empty_cache()
    for device in (0, 1):
        assert allocated(device) == 0, (device, allocated(device))
        assert torch.cuda.memory_reserved(device) == 0, torch.cuda.memory_reserved(device)
    sound(rules)


# --- copies --------------------------------------------------------------------------------------


def copies(rules: str) -> Result:
    """Tensors of all sizes go both ways, made before and after the devices met, and stay right."""
    install(rules)
    early = torch.full((MIB,), 5, dtype=torch.int32, device=DEVICES[0])  # before device 1 is used
    assert bool((early.to(DEVICES[1]) == 5).all().item())
    generator = random.Random(1)
    for step in range(200):
        source, target = DEVICES if step % 2 else DEVICES[::-1]
        size = int(2 ** generator.uniform(0, 24))
        x = torch.full((size,), step, dtype=torch.int32, device=source)
        y = x.to(target, non_blocking=bool(step % 3))
        z = y.to(source)
        assert y.device == torch.device(target)
        assert bool((y == step).all().item())
        assert bool((z == step).all().item())
    rows = torch.arange(4 * MIB, device=DEVICES[0]).view(2048, -1)
    column = torch.empty(2048, dtype=rows.dtype, device=DEVICES[1])
    column.copy_(rows[:, 7])  # not contiguous: a kernel of one device reads the other's memory
    assert torch.equal(column.cpu(), rows[:, 7].cpu())
    reachable = torch.cuda.can_device_access_peer(0, 1)
    del early, rows, column, x, y, z
    finish(rules)
    return {"peers": reachable}


def grown_after(rules: str) -> Result:
    """What is mapped, moved or grown after the first copy is reached as well."""
    install(rules, capacity=2 * GIB)
    seed = torch.ones(1, device=DEVICES[0]).to(DEVICES[1])
    generator = random.Random(2)
    held: list[tuple[torch.Tensor, int]] = []
    for step in range(400):
        size = int(2 ** generator.uniform(10, 27))
        with torch.cuda.device(step % 2):
            while True:
                try:
                    held.append((torch.full((size,), step, dtype=torch.int32, device="cuda"), step))
                    break
                except torch.OutOfMemoryError:
                    del held[: 1 + len(held) // 2]
        while sum(x.numel() for x, _ in held) > 350 * MIB:
            held.pop(generator.randrange(len(held)))
        x, value = generator.choice(held)
        other = DEVICES[1 - x.device.index]
        part = x[: MIB // 4]
        assert bool((part.to(other) == value).all().item()), (step, value)
    moves = {}
    if rules == "elastic":
        moves = {device: engine().elastic_statistics(device)["moves"] for device in (0, 1)}
    del seed, x, part
    held.clear()
    finish(rules)
    return {"moves": moves}


def late_copies(rules: str) -> Result:
    """A tensor that dies under a late copy to the other device is not overwritten before."""
    install(rules)
    wrong = 0
    for step in range(40):
        source, target = DEVICES if step % 2 else DEVICES[::-1]
        x = torch.full((8 * MIB,), step, dtype=torch.int32, device=source)
        with torch.cuda.device(source):
            torch.cuda._sleep(LATE)
        y = x.to(target, non_blocking=True)
        del x
        over = torch.full((8 * MIB,), -1, dtype=torch.int32, device=source)
        wrong += not bool((y == step).all().item())
        del over, y
    assert wrong == 0, wrong
    finish(rules)
    return {}


def foreign_streams(rules: str) -> Result:
    """record_stream with a stream of the other device keeps the block until that one is done."""
    install(rules)
    side = torch.cuda.Stream(device=1)
    waited = 0
    for _ in range(20):
        x = torch.empty(MIB, dtype=torch.int32, device=DEVICES[0])
        address = x.data_ptr()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LATE)
        x.record_stream(side)
        del x
        over = [torch.empty(MIB, dtype=torch.int32, device=DEVICES[0]) for _ in range(4)]
        if not side.query():
            waited += 1
            assert address not in [y.data_ptr() for y in over]
        side.synchronize()
        del over
    assert waited > 0
    finish(rules)
    return {"waited": waited}


# --- threads, counts, limits ---------------------------------------------------------------------


def threads(rules: str) -> Result:
    """Threads of both devices allocate, send to each other and check; for a few seconds."""
    install(rules, capacity=3 * GIB)
    deadline = time.time() + float(os.environ.get("STRESS_SECONDS", "6"))
    exchange: list[tuple[torch.Tensor, int]] = []
    lock = threading.Lock()

    def work(seed: int) -> int:
        generator, device, sent = random.Random(seed), seed % 2, 0
        stream = torch.cuda.Stream(device=device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            while time.time() < deadline:
                size, value = int(2 ** generator.uniform(4, 23)), generator.randint(0, 1 << 30)
                x = torch.full((size,), value, dtype=torch.int32, device="cuda")
                there = x.to(DEVICES[1 - device])
                back = there.to(DEVICES[device])
                assert bool((back == value).all().item()), value
                with lock:
                    exchange.append((back, value))
                    got = exchange.pop(generator.randrange(len(exchange)))
                assert bool((got[0].to(DEVICES[device]) == got[1]).all().item()), got[1]
                sent += 1
        return sent

    with ThreadPoolExecutor(4) as pool:
        rounds = sum(pool.map(work, range(4)))
    exchange.clear()
    finish(rules)
    return {"rounds": rounds}


def counts(rules: str) -> Result:
    """Statistics, peaks, limits, snapshots and the cache are of each device alone."""
    install(rules)
    torch.cuda.memory._record_memory_history(max_entries=100, stacks="python")
    first = torch.empty(30 * MIB, dtype=torch.uint8, device=DEVICES[0])
    second = torch.empty(50 * MIB, dtype=torch.uint8, device=DEVICES[1])
    assert (allocated(0), allocated(1)) == (30 * MIB, 50 * MIB)
    traces = torch.cuda.memory._snapshot()["device_traces"]
    assert [sum(e["action"] == "alloc" for e in trace) for trace in traces[:2]] == [1, 1]
    torch.cuda.memory._record_memory_history(enabled=None)
    del second
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(0) == 30 * MIB
    assert torch.cuda.max_memory_allocated(1) == 0
    total = torch.cuda.get_device_properties(1).total_memory
    torch.cuda.set_per_process_memory_fraction(2 * GIB / total, 1)
    try:
        torch.empty(3 * GIB, dtype=torch.uint8, device=DEVICES[1])
    except torch.OutOfMemoryError as error:
        text = str(error)
    assert "GPU 1 has a total capacity" in text, text
    large = torch.empty(3 * GIB, dtype=torch.uint8, device=DEVICES[0])  # the limit was the other's
    del large
    torch.cuda.set_per_process_memory_fraction(1.0, 1)
    torch.cuda.empty_cache()
    # To the chunk: a block at the edge of one keeps the rest of it.
    assert 30 * MIB <= torch.cuda.memory_reserved(0) <= 30 * MIB + 64 * MIB
    assert torch.cuda.memory_reserved(1) == 0
    if rules != "native":
        import tenure

        assert tenure.memory_summary(0) != tenure.memory_summary(1)
    del first
    finish(rules)
    return {"text": text.partition("\n")[0]}


def parallel(rules: str) -> Result:
    """torch.nn.DataParallel: replicas, scatter, gather and gradients, equal to one device."""
    install(rules)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 8)]
    model = torch.nn.Sequential(*layers).to(DEVICES[0])
    both = torch.nn.DataParallel(model, device_ids=[0, 1])
    for step in range(20):
        x = torch.randn(64 + step, 256, device=DEVICES[0])
        model.zero_grad(set_to_none=True)
        alone = model(x)
        alone.square().sum().backward()
        gradient = model[0].weight.grad.clone()
        model.zero_grad(set_to_none=True)
        spread = both(x)
        spread.square().sum().backward()
        torch.testing.assert_close(spread, alone)
        torch.testing.assert_close(model[0].weight.grad, gradient, rtol=1e-4, atol=1e-4)
    sound(rules)
    return {"allocated": [allocated(0), allocated(1)]}


# --- NCCL, two processes -------------------------------------------------------------------------


def collectives(rules: str) -> Result:
    """NCCL between two processes: sums, gathers and sends over reused memory, checked."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", rules],
                env={**os.environ, "RANK": str(rank), "MEETING": f"file://{folder}/meeting"},
            )
            for rank in (0, 1)
        ]
        try:
            codes = [rank.wait(LONGEST / 2) for rank in ranks]
        finally:  # one that waits for the other for ever
            for rank in ranks:
                rank.kill()
    assert codes == [0, 0], codes
    return {}


def rank(rules: str) -> Result:
    """One of the two processes of `collectives`."""
    from torch import distributed

    own = int(os.environ["RANK"])
    install(rules, **({} if rules == "native" else {"capacity": 4 * GIB}))
    torch.cuda.set_device(own)
    distributed.init_process_group(
        "nccl", init_method=os.environ["MEETING"], rank=own, world_size=2
    )
    generator = random.Random(3)  # the same sizes on both
    for step in range(150):
        size = int(2 ** generator.uniform(4, 24))
        x = torch.full((size,), step + own, dtype=torch.int32, device="cuda")
        work = distributed.all_reduce(x, async_op=True)
        noise = torch.full((size,), -1, dtype=torch.int32, device="cuda")
        work.wait()
        assert bool((x == 2 * step + 1).all().item()), step
        parts = [torch.empty_like(x) for _ in range(2)]
        distributed.all_gather(parts, torch.full_like(x, own))
        assert bool((parts[0] == 0).all().item())
        assert bool((parts[1] == 1).all().item())
        if own == 0:
            distributed.send(noise, 1)
        else:
            got = torch.empty_like(noise)
            distributed.recv(got, 0)
            assert bool((got == -1).all().item())
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
    for _ in range(10):
        layer(torch.randn(generator.randint(1, 256), 512, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    sound(rules)
    distributed.destroy_process_group()
    return {}


SCENARIOS: dict[str, Callable[[str], Result]] = {
    function.__name__: function
    for function in (
        copies,
        grown_after,
        late_copies,
        foreign_streams,
        threads,
        counts,
        parallel,
        collectives,
        rank,
    )
}


def run_one(name: str, rules: str) -> Result | list[str]:
    """A scenario in a process of its own: its result, or the end of what it said."""
    begun = time.time()
    try:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", __file__, name, rules],
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"not done after {LONGEST} s"]
    good = done.returncode == 0
    sys.stdout.write(f"{'ok ' if good else 'FAILED'} {name} {time.time() - begun:.1f} s\n")
    sys.stdout.flush()
    if not good:
        return (done.stdout + done.stderr).strip().splitlines()[-12:]
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def run_all(rules: str) -> Result:
    """Every scenario."""
    names = [name for name in SCENARIOS if name != "rank"]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(names, pool.map(lambda name: run_one(name, rules), names), strict=True))


if __name__ == "__main__":
    chosen, by = sys.argv[1:3]
    outcome = run_all(by) if chosen == "all" else SCENARIOS[chosen](by)
    sys.stdout.write(json.dumps(outcome) + "\n")
    failed = chosen == "all" and any(isinstance(result, list) for result in outcome.values())
    sys.exit(1 if failed else 0)
