"""Allocators side by side on a real GPU, in one run: native, its settings, and tenure.

    python benchmarks/live.py pairs                     nanoseconds an allocate and free pair
    python benchmarks/live.py workload FILE NAME...     whole training scripts, and under limits

Every configuration runs in a process of its own; one JSON line a case goes to standard output, what
went wrong to standard error. FILE is a script that is called as `FILE NAME FOLDER`, writes
FOLDER/NAME.json with its "steps", and takes a limit from LIMIT_GIB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONFIGURATIONS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
    "tenure-torch": "",
    "tenure-plug-in": "",
    "tenure": "",
}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL = [512 * i for i in range(1, 400)]
LARGE = [MIB * i for i in range(2, 200)]
SIZES = {"small": SMALL, "mixed": SMALL + [MIB * i for i in range(1, 60)], "large": LARGE}
ROUNDS = 3
LONGEST = 240  # seconds, for one process
LIMITS = (None, 1.02, 1.05)  # times the live peak


def install(configuration: str, **options: Any) -> bool:
    """Installs tenure if the configuration is one of its own; whether it was."""
    if not configuration.startswith("tenure"):
        return False
    import tenure

    rules = "torch" if configuration == "tenure-torch" else "elastic"
    with_glue = configuration != "tenure-plug-in"
    tenure.install(rules, quiet=True, glue=with_glue, **options)
    return True


# --- pairs ---------------------------------------------------------------------------------------


def loops() -> Any:
    """The C++ loops; built at the first call, found again by the others."""
    from torch.utils.cpp_extension import load

    source = Path(__file__).with_name("live_loops.cpp")
    return load("tenure_live_loops", [str(source)], extra_cflags=["-O2"], with_cuda=True)


def pairs(configuration: str) -> None:
    """Every case of one configuration, in this process."""
    ours = install(configuration, stacks=os.environ.get("STACKS") == "1")
    import torch

    torch.zeros(1, device="cuda")
    native = loops()
    few = configuration == "async"
    for name, sizes in SIZES.items():
        count = 5_000 if few else 100_000
        report(configuration, f"{name} 64 live", [native.by_torch(sizes, 64, count) for _ in "abc"])
        torch.cuda.empty_cache()
    for threads in (1, 8):
        count = 2_000 if few else 30_000
        figures = [native.by_torch_threads(SMALL, 64, count, threads) for _ in range(ROUNDS)]
        report(configuration, f"small, {threads} threads on their own streams", figures)
    report(configuration, "torch.empty(1000)", [empty_ns(torch) for _ in range(ROUNDS)])
    if ours:
        direct(configuration, native)


def direct(configuration: str, native: Any) -> None:
    """Our functions without PyTorch's own bookkeeping around them."""
    from tenure import _engine

    points = _engine.Live.entry_points()
    ends = points["allocate"], points["free"]
    for name, sizes in SIZES.items():
        figures = [native.by_address(*ends, sizes, 64, 100_000) for _ in range(ROUNDS)]
        report(configuration, f"direct, {name} 64 live", figures)
    for threads in (1, 8):
        figures = [
            native.by_address_threads(*ends, SMALL, 64, 30_000, threads) for _ in range(ROUNDS)
        ]
        report(configuration, f"direct, small, {threads} threads on their own streams", figures)


def empty_ns(torch: Any, count: int = 100_000) -> float:
    """Nanoseconds of torch.empty(1000) from Python, the former tensor freed each time."""
    x = torch.empty(1000, device="cuda")
    begin = time.perf_counter_ns()
    for _ in range(count):
        x = torch.empty(1000, device="cuda")
    del x
    return (time.perf_counter_ns() - begin) / count


def report(configuration: str, case: str, figures: list[float]) -> None:
    """One JSON line."""
    line = {
        "configuration": configuration,
        "case": case,
        "nanoseconds": [round(x) for x in figures],
    }
    print(json.dumps(line), flush=True)


# --- workloads -----------------------------------------------------------------------------------


def workload(configuration: str, file: str, name: str, folder: str) -> None:
    """Runs the script as it is, in this process."""
    if install(configuration):
        import atexit

        from tenure import _engine

        def tell() -> None:
            print(json.dumps({"elastic": _engine.Live.elastic_statistics(0)}), flush=True)

        atexit.register(tell)
    sys.argv = [file, name, folder]
    runpy.run_path(file, run_name="__main__")


def one_workload(configuration: str, file: str, name: str, limit_gib: float | None) -> Any:
    """What the script noted, from a process of its own; None if it failed."""
    extra = {"HISTORY": "0"} | ({} if limit_gib is None else {"LIMIT_GIB": str(limit_gib)})
    with tempfile.TemporaryDirectory() as folder:
        done = child(["workload", configuration, file, name, folder], configuration, extra)
        path = Path(folder) / f"{name}.json"
        if not path.exists():
            print(f"{configuration} {name}: no result\n{done[-1500:]}", file=sys.stderr)
            return None
        result = json.loads(path.read_text(encoding="utf-8"))
    result["elastic"] = next(
        (json.loads(x)["elastic"] for x in done.splitlines() if x.startswith('{"elastic"')), None
    )
    return result


def summary_of(result: Any) -> dict[str, Any]:
    """Step time, peaks and what went wrong."""
    steps = result["steps"]
    failed = any(step["label"] == "oom" for step in steps)
    marks = [step["seconds"] for step in steps if step["label"].startswith(("step", "request"))]
    times = [b - a for a, b in itertools.pairwise(marks)]
    last = [step for step in steps if "num_alloc_retries" in step][-1]
    return {
        "oom": failed,
        "step_ms": round(1000 * statistics.median(times), 2) if times else None,
        "total_s": round(marks[-1] - marks[0], 2) if marks else None,
        "live_gib": round(last["active_bytes.all.peak"] / GIB, 3),
        "reserved_gib": round(last["reserved_bytes.all.peak"] / GIB, 3),
        "retries": last["num_alloc_retries"],
        "elastic": result["elastic"],
    }


def workloads(file: str, names: list[str], configurations: list[str]) -> None:
    """Each workload without a limit and near its live peak, under each configuration."""
    for name in names:
        live_gib = None
        for limit in LIMITS:
            for configuration in configurations:
                gib = None if limit is None or live_gib is None else limit * live_gib
                result = one_workload(configuration, file, name, gib)
                if result is None:
                    continue
                facts = summary_of(result)
                if limit is None and configuration == "native":
                    live_gib = facts["live_gib"]
                line = {"workload": name, "configuration": configuration, "limit": limit, **facts}
                print(json.dumps(line), flush=True)


# --- processes -----------------------------------------------------------------------------------


def child(arguments: list[str], configuration: str, extra: dict[str, str] | None = None) -> str:
    """Runs this file again under a configuration; what it printed."""
    environment = {**os.environ, **(extra or {})}
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if CONFIGURATIONS[configuration]:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = CONFIGURATIONS[configuration]
    command = [sys.executable, __file__, "--here", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {LONGEST} s"
    if done.returncode != 0:
        print(f"{arguments}: {done.stderr[-2000:]}", file=sys.stderr)
    return done.stdout + done.stderr


def main() -> None:
    """Runs what is asked for: here, or in one process a configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", help="configurations, separated by commas")
    parser.add_argument("what", choices=("pairs", "workload"))
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.here:
        {"pairs": pairs, "workload": workload}[options.what](*options.arguments)
        return
    chosen = options.only.split(",") if options.only else list(CONFIGURATIONS)
    if options.what == "workload":
        file, *names = options.arguments
        workloads(file, names, chosen)
        return
    for configuration in chosen:
        printed = child(["pairs", configuration], configuration)
        print("\n".join(x for x in printed.splitlines() if x.startswith("{")), flush=True)


if __name__ == "__main__":
    main()
