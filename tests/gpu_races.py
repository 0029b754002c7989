"""What tenure.guard does on a real GPU: patterns of races, healthy programs, and what it costs.

    python tests/gpu_races.py            every mode, each in a process of its own; a verdict
    python tests/gpu_races.py MODE       off, report or sync: one JSON line for each pattern

A line that does not hold what it should has "ok": false, with what was expected.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ("off", "report", "sync")
MIB = 1 << 20
LATE = 100_000_000  # cycles that keep a stream busy
LONGEST = 240  # seconds, for one mode

torch: Any = None
tenure: Any = None

Facts = dict[str, Any]
fresh = itertools.count(2)


# --- races ---------------------------------------------------------------------------------------


def pending() -> Facts:
    """Sixteen buffers for a side stream, kept by record_stream while the host runs ahead."""
    cuda, side = torch.cuda, torch.cuda.Stream()
    cuda.synchronize()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    base = cuda.memory_stats()["active_bytes.all.current"]
    for _ in range(16):
        buffer = torch.ones(32 * MIB // 4, device="cuda")
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            cuda._sleep(6_000_000)
            buffer.mul_(2)
        buffer.record_stream(side)
        del buffer
    peak = cuda.memory_stats()["active_bytes.all.peak"] - base
    cuda.synchronize()
    return {"peak_active_mib": peak // MIB}


def reuse() -> Facts:
    """Freed under a late copy, and made anew on the default stream."""
    cuda, side, count = torch.cuda, torch.cuda.Stream(), 1 << 22
    out = torch.zeros(count, device="cuda")
    source = torch.full((count,), 1.0, device="cuda")
    cuda.synchronize()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        cuda._sleep(LATE)
        out.copy_(source)
    where = source.data_ptr()
    del source
    other = torch.full((count,), -1.0, device="cuda")
    reused = other.data_ptr() == where
    cuda.synchronize()
    return {"wrong": int((out != 1.0).sum()), "reused": reused}


def read() -> Facts:
    """Read on a side stream before the default stream has written."""
    cuda, side, count = torch.cuda, torch.cuda.Stream(), 1 << 22
    x = torch.zeros(count, device="cuda")
    y = torch.zeros(count, device="cuda")
    cuda.synchronize()
    cuda._sleep(LATE)
    x.fill_(1.0)
    with cuda.stream(side):
        torch.add(x, 0.0, out=y)
    cuda.synchronize()
    return {"wrong": int((y != 1.0).sum())}


def write() -> Facts:
    """Overwritten on a side stream while the default stream has yet to read."""
    cuda, side, count = torch.cuda, torch.cuda.Stream(), 1 << 22
    x = torch.ones(count, device="cuda")
    y = torch.zeros(count, device="cuda")
    cuda.synchronize()
    cuda._sleep(LATE)
    torch.add(x, 0.0, out=y)
    with cuda.stream(side):
        x.fill_(7.0)
    cuda.synchronize()
    return {"wrong": int((y != 1.0).sum())}


def overwrite() -> Facts:
    """A pinned buffer refilled while its copy is queued."""
    cuda, count = torch.cuda, 1 << 20
    host = torch.full((count,), 1.0).pin_memory()
    target = torch.zeros(count, device="cuda")
    cuda.synchronize()
    cuda._sleep(LATE)
    target.copy_(host, non_blocking=True)
    host.fill_(7.0)
    cuda.synchronize()
    return {"wrong": int((target != 1.0).sum())}


def early_read() -> Facts:
    """The host reads a result before its copy is done."""
    cuda, count = torch.cuda, 1 << 20
    x = torch.ones(count, device="cuda")
    cuda.synchronize()
    cuda._sleep(LATE)
    value = float(next(fresh))  # pinned memory that is used again may hold an older one
    x.fill_(value)
    host = x.to("cpu", non_blocking=True)
    wrong = int((host != value).sum())
    cuda.synchronize()
    return {"wrong": wrong}


# --- healthy -------------------------------------------------------------------------------------


def prefetch() -> Facts:
    """Batches copied ahead on a side stream, waited for and recorded."""
    cuda, copies = torch.cuda, torch.cuda.Stream()
    weight = torch.randn(512, 512, device="cuda", requires_grad=True)
    total = torch.zeros((), device="cuda")

    def load() -> Any:
        with cuda.stream(copies):
            return torch.ones(256, 512).pin_memory().to("cuda", non_blocking=True)

    following = load()
    for _ in range(8):
        cuda.current_stream().wait_stream(copies)
        batch = following
        batch.record_stream(cuda.current_stream())
        following = load()
        loss = (batch @ weight).square().mean()
        loss.backward()
        total += loss.detach()
    return {"value": float(total)}


def reductions() -> Facts:
    """Gradients reduced on a side stream, ordered by events, as data parallel training does."""
    cuda, side = torch.cuda, torch.cuda.Stream()
    weights = [torch.ones(256, 256, device="cuda", requires_grad=True) for _ in range(4)]
    buckets = [torch.zeros_like(w) for w in weights]
    done = []

    def hook(index: int) -> Callable[[Any], None]:
        def reduce(parameter: Any) -> None:
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                buckets[index].copy_(parameter.grad).mul_(0.5)
                done.append(side.record_event())

        return reduce

    for index, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(hook(index))
    for _ in range(3):
        x = torch.ones(64, 256, device="cuda")
        for weight in weights:
            x = torch.tanh(x @ weight)
        x.sum().backward()
        for event in done:
            cuda.current_stream().wait_event(event)
        done.clear()
        with torch.no_grad():
            for weight, bucket in zip(weights, buckets, strict=True):
                weight.sub_(0.01 * bucket)
                weight.grad = None
    return {"value": float(weights[0].detach().sum())}


def graph() -> Facts:
    """Warm-up on a side stream, capture, replays."""
    cuda, side = torch.cuda, torch.cuda.Stream()
    model = torch.nn.Linear(128, 128).cuda()
    static = torch.ones(32, 128, device="cuda")
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            model(static).sum().backward()
    cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    recorded = cuda.CUDAGraph()
    with cuda.graph(recorded):
        out = model(static).square()
    for _ in range(3):
        static.copy_(torch.ones(32, 128, device="cuda"))
        recorded.replay()
    return {"value": float(out.sum().item() > 0)}


def backward() -> Facts:
    """Half of the forward on a side stream, joined; the backward follows by itself."""
    cuda, side = torch.cuda, torch.cuda.Stream()
    first = torch.ones(256, 256, device="cuda", requires_grad=True)
    second = torch.ones(256, 256, device="cuda", requires_grad=True)
    for _ in range(3):
        x = torch.ones(64, 256, device="cuda")
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            left = torch.tanh(x @ first)
        right = torch.tanh(x @ second)
        cuda.current_stream().wait_stream(side)
        left.record_stream(cuda.current_stream())
        (left * right).sum().backward()
        with torch.no_grad():
            first -= 0.01 * first.grad
            second -= 0.01 * second.grad
        first.grad = second.grad = None
        cuda.current_stream().wait_stream(side)
        side.wait_stream(cuda.current_stream())
    return {"value": float((first + second).detach().sum())}


def loader() -> Facts:
    """A DataLoader that pins, and copies that do not block."""
    data = torch.utils.data.TensorDataset(torch.ones(512, 64))
    batches = torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True)
    weight = torch.ones(64, 64, device="cuda")
    total = sum((b.to("cuda", non_blocking=True) @ weight).sum() for (b,) in batches)
    return {"value": float(total)}


# --- cost ----------------------------------------------------------------------------------------


def seconds(step: Callable[[], None], count: int) -> float:
    """The shortest of three rounds, for one step."""
    for _ in range(5):
        step()
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begun) / count)
    return best


def training(width: int, layers: int, rows: int) -> Callable[[], None]:
    """One step of training a stack of encoder layers, on one stream."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(rows, 256, width, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def two_streams() -> Callable[[], None]:
    """One step of a loop that reads each tensor on another stream too."""
    cuda, side = torch.cuda, torch.cuda.Stream()
    weight = torch.randn(1024, 1024, device="cuda")

    def step() -> None:
        for _ in range(10):
            x = torch.ones(1024, 1024, device="cuda") @ weight
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                y = x.sum()
            cuda.current_stream().wait_stream(side)
            x.mul_(y)

    return step


LOOPS: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
    "one stream, small steps": (lambda: training(128, 2, 4), 20),
    "one stream, large steps": (lambda: training(1024, 6, 16), 10),
    "two streams": (two_streams, 20),
}


def costs(mode: str) -> None:
    """Time of a step without and with the guard; PyTorch tells of its events from the first on."""
    steps = {name: make() for name, (make, _) in LOOPS.items()}
    without = {name: seconds(step, LOOPS[name][1]) for name, step in steps.items()}
    for name, step in steps.items():
        guard = tenure.guard(mode)
        try:
            taken = seconds(step, LOOPS[name][1])
        finally:
            guard.stop()
        inserted = sum(wait.count for wait in guard.inserted)
        codes = [finding.code for finding in guard.findings]
        alone = not inserted or name == "two streams"
        say(
            {
                "pattern": f"cost: {name}",
                "mode": mode,
                "ms_without": without[name] * 1e3,
                "ms_with": taken * 1e3,
                "ratio": taken / without[name],
                "inserted": inserted,
                "codes": codes,
                "faults": guard.faults[:2],
                "ok": alone and not codes and not guard.faults,
            }
        )


# --- running -------------------------------------------------------------------------------------

RACES: dict[Callable[[], Facts], str] = {
    pending: "stream.pending",
    reuse: "stream.race_reuse",
    read: "stream.race_read",
    write: "stream.race_write",
    overwrite: "stream.host_overwrite",
    early_read: "stream.race_read",
}
HEALTHY = (prefetch, reductions, graph, backward, loader)


def wanted(pattern: Callable[[], Facts], mode: str, facts: Facts) -> str:
    """What a race's facts should hold and do not; empty if they do."""
    if facts["faults"]:
        return "no faults of the guard"
    if mode == "report" and RACES[pattern] not in facts["codes"]:
        return f"a finding {RACES[pattern]}"
    if mode == "sync":
        if facts.get("wrong"):
            return "right results"
        if facts.get("peak_active_mib", 0) > 64:
            return "at most 64 MiB active"
    if mode == "off" and not (facts.get("wrong") or facts.get("peak_active_mib", 0) >= 256):
        return "the race to strike"
    return ""


def run_pattern(pattern: Callable[[], Facts], mode: str) -> Facts:
    """Runs one under a guard; what came of it."""
    facts: Facts = {"pattern": pattern.__name__, "mode": mode, "codes": [], "faults": []}
    guard = None if mode == "off" else tenure.guard(mode)
    try:
        facts.update(pattern())
    except Exception:  # noqa: BLE001  one that fails is told, and the others run
        facts["error"] = traceback.format_exc()[-1500:]
    if guard is not None:
        guard.stop()
        facts["codes"] = [f.code for f in guard.findings]
        facts["faults"] = guard.faults[:3]
        facts["inserted"] = sum(w.count for w in guard.inserted)
        facts["operators"] = guard.operators
        facts["report"] = str(guard).splitlines()[:6]
    return facts


def one_mode(mode: str) -> int:
    """Every pattern in this process; how many did not hold what they should."""
    global torch, tenure
    import torch as torch_module

    import tenure as tenure_module

    torch, tenure = torch_module, tenure_module
    if mode != "off":
        costs(mode)
    for pattern in (*RACES, *HEALTHY):  # kernels are loaded first: loading blocks the host
        run_pattern(pattern, "off")
    failed = 0
    for pattern in RACES:
        facts = run_pattern(pattern, mode)
        missing = "no error" if "error" in facts else wanted(pattern, mode, facts)
        facts["ok"] = not missing
        if missing:
            facts["expected"] = missing
        failed += bool(missing)
        say(facts)
    for pattern in HEALTHY:
        facts = run_pattern(pattern, mode)
        races = [c for c in facts["codes"] if "race" in c or "overwrite" in c]
        facts["ok"] = not races and not facts["faults"] and "error" not in facts
        failed += not facts["ok"]
        say(facts)
    return failed


def say(facts: Facts) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> int:
    """One mode, or each in a process of its own."""
    if len(sys.argv) > 1:
        return min(one_mode(sys.argv[1]), 1)
    failed = 0
    for mode in MODES:
        command = [sys.executable, "-X", "faulthandler", str(Path(__file__)), mode]
        try:
            code = subprocess.run(
                command, check=False, timeout=LONGEST, env=dict(os.environ)
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
        failed += code != 0
        say({"mode": mode, "exit": code})
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
