"""Allocators side by side on a real GPU, in one run: native, its settings, and tenure.

    python benchmarks/live.py pairs                     nanoseconds an allocate and free pair
    python benchmarks/live.py empty                     torch.empty from Python, in short turns
    python benchmarks/live.py workload FILE NAME...     whole training scripts, and under limits

Every configuration runs in a process of its own; one JSON line a case goes to standard output, what
went wrong to standard error. FILE is a script that is called as `FILE NAME FOLDER`, writes
FOLDER/NAME.json with its "steps", and takes a limit from LIMIT_GIB.

Processes that run a workload get ready side by side (imports, CUDA), and then take turns, a round
each: while one runs, the others wait. Step times are compared step by step, the least of all rounds
each, since the steps of one workload differ in size. One run more is made with deterministic
settings, of native two: its losses must be native's to the last bit, where native's are its own.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONFIGURATIONS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
    "tenure-torch": "",
    "tenure-plug-in": "",
    "tenure-no-stacks": "",
    "tenure": "",
}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL = [512 * i for i in range(1, 400)]
LARGE = [MIB * i for i in range(2, 200)]
SIZES = {"small": SMALL, "mixed": SMALL + [MIB * i for i in range(1, 60)], "large": LARGE}
ROUNDS = 3
BURST = 20_000  # calls
TURNS = 25
LONGEST = 240  # seconds, for one process
READY = 10  # processes that get ready side by side, or those of one workload if they are more


def install(configuration: str) -> bool:
    """Installs tenure if the configuration is one of its own; whether it was."""
    if not configuration.startswith("tenure"):
        return False
    import tenure

    rules = "torch" if configuration == "tenure-torch" else "elastic"
    with_glue = configuration != "tenure-plug-in"
    stacks = configuration != "tenure-no-stacks"
    tenure.install(rules, quiet=True, glue=with_glue, stacks=stacks)
    return True


# --- pairs ---------------------------------------------------------------------------------------


def loops() -> Any:
    """The C++ loops; built at the first call, found again by the others."""
    from torch.utils.cpp_extension import load

    source = Path(__file__).with_name("live_loops.cpp")
    return load("tenure_live_loops", [str(source)], extra_cflags=["-O2"], with_cuda=True)


def pairs(configuration: str) -> None:
    """Every case of one configuration, in this process."""
    ours = install(configuration)
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


def empty(configuration: str) -> None:
    """A burst of torch.empty(1000) for each line read, the former tensor freed each time."""
    install(configuration)
    import torch

    x = torch.empty(1000, device="cuda")
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter_ns()
        for _ in range(BURST):
            x = torch.empty(1000, device="cuda")
        print((time.perf_counter_ns() - begin) / BURST, flush=True)
    del x


def empties(chosen: list[str]) -> None:
    """Processes of all configurations take turns, so that the machine's moods meet them alike."""
    processes: list[Any] = [
        subprocess.Popen(
            [sys.executable, __file__, "--here", "empty", c],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment_of(c, {}),
        )
        for c in chosen
    ]
    for process in processes:
        while process.stdout.readline() not in {"ready\n", ""}:
            pass
    figures: list[list[float]] = [[] for _ in chosen]
    for _ in range(TURNS):
        for process, own in zip(processes, figures, strict=True):
            process.stdin.write("go\n")
            process.stdin.flush()
            own.append(float(process.stdout.readline() or "nan"))
    for process, configuration, own in zip(processes, chosen, figures, strict=True):
        process.communicate()
        report(configuration, "torch.empty(1000)", own)
        ratios = [a / b for a, b in zip(own, figures[0], strict=True)]
        line = {"configuration": configuration, "times": round(statistics.median(ratios), 3)}
        print(json.dumps(line), flush=True)


def report(configuration: str, case: str, figures: list[float]) -> None:
    """One JSON line."""
    line = {
        "configuration": configuration,
        "case": case,
        "nanoseconds": [round(x) for x in figures],
    }
    print(json.dumps(line), flush=True)


# --- workloads -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One process that runs a workload.

    Attributes:
        rounds: Times that it does so, in turn with the others of its workload.
        limit: Times the live peak that may be reserved; None without a limit.
        limit_gib: The same in GiB.
        beside: The limit of the jobs that this one, without a limit, takes turns with.
        exact: With deterministic settings, and its losses noted.
    """

    name: str
    configuration: str
    rounds: int = 1
    limit: float | None = None
    limit_gib: float | None = None
    beside: float | None = None
    exact: bool = False


def workload(configuration: str, file: str, name: str, folder: str) -> None:
    """Runs the script as it is, in this process, once for each line read."""
    import_all_of(file)
    ours = install(configuration)
    import torch

    torch.cuda.init()
    losses: list[str] = []
    if os.environ.get("EXACT"):
        note_losses(torch, losses)
    print("ready", flush=True)
    sys.argv = [file, name, folder]
    for _ in sys.stdin:
        try:
            runpy.run_path(file, run_name="__main__")
        except RuntimeError as error:
            if "deterministic implementation" not in str(error):
                raise
            torch.use_deterministic_algorithms(True, warn_only=True)  # where there is none
            losses.clear()
            runpy.run_path(file, run_name="__main__")
        written = json.loads(Path(folder, f"{name}.json").read_text(encoding="utf-8"))
        notes = {"steps": written["steps"], "losses": losses}
        if ours:
            from tenure import _engine

            notes["elastic"] = _engine.Live.elastic_statistics(0)
        print(json.dumps({"notes": notes}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def import_all_of(file: str) -> None:
    """Imports what the script names, so that no process imports while another is measured."""
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        with suppress(ImportError, AttributeError):
            if isinstance(node, ast.Import):
                for one in node.names:
                    importlib.import_module(one.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for one in node.names:
                    getattr(module, one.name)


def note_losses(torch: Any, losses: list[str]) -> None:
    """Every backward's loss, to the bit."""
    torch.use_deterministic_algorithms(True)
    backward = torch.Tensor.backward

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        losses.append(self.item().hex())
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = noting


def take_turns(jobs: list[Job], file: str) -> list[dict[str, Any]]:
    """What each job noted, a line each."""
    lines = []
    for batch in batches(jobs):
        with tempfile.TemporaryDirectory() as folder:
            running = []
            for number, job in enumerate(batch):
                own = Path(folder, str(number))
                own.mkdir()
                running.append((job, own, started(job, file, own)))
            for _, _, process in running:
                read_until(process, "ready")
            for name in dict.fromkeys(job.name for job in batch):
                own_jobs = [one for one in running if one[0].name == name]
                rounds = rounds_in_turn([(job, process) for job, _, process in own_jobs])
                for (job, own, _), notes in zip(own_jobs, rounds, strict=True):
                    line = facts_of(job, notes)
                    if line.get("failed"):
                        text = (own / "errors").read_text(encoding="utf-8", errors="replace")
                        print(f"{job}: {text[-1500:]}", file=sys.stderr, flush=True)
                    lines.append(line)
                    print(json.dumps(line), flush=True)
    return lines


def batches(jobs: list[Job]) -> list[list[Job]]:
    """Jobs whose processes get ready side by side; those of one workload stay together."""
    cut: list[list[Job]] = []
    for _, same in itertools.groupby(jobs, key=lambda job: job.name):
        group = list(same)
        if cut and len(cut[-1]) + len(group) <= READY:
            cut[-1] += group
        else:
            cut.append(group)
    return cut


def started(job: Job, file: str, own: Path) -> subprocess.Popen[str]:
    """The job's process, getting ready."""
    extra = {"HISTORY": "0"}
    if job.limit_gib is not None:
        extra["LIMIT_GIB"] = str(job.limit_gib)
    if job.exact:
        extra |= {"EXACT": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    arguments = ["workload", job.configuration, file, job.name, str(own)]
    return subprocess.Popen(
        [sys.executable, __file__, "--here", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(own / "errors").open("w", encoding="utf-8"),
        text=True,
        env=environment_of(job.configuration, extra),
    )


def read_until(process: subprocess.Popen[str], begin: str) -> str:
    """The next line that begins so; empty if the process ends, or is ended for its time, before."""
    watchdog = threading.Timer(LONGEST, process.kill)
    watchdog.start()
    printed: Any = process.stdout
    found = next((line for line in printed if line.startswith(begin)), "")
    watchdog.cancel()
    return found


def rounds_in_turn(jobs: list[tuple[Job, subprocess.Popen[str]]]) -> list[list[dict[str, Any]]]:
    """What each job noted of its rounds; fewer of them where a process failed."""
    notes: list[list[dict[str, Any]]] = [[] for _ in jobs]
    for turn in range(max(job.rounds for job, _ in jobs)):
        for own, (job, process) in zip(notes, jobs, strict=True):
            if turn >= job.rounds or len(own) < turn:
                continue
            with suppress(BrokenPipeError):
                asked: Any = process.stdin
                asked.write("go\n")
                asked.flush()
            line = read_until(process, '{"notes"')
            if line:
                own.append(json.loads(line)["notes"])
    for _, process in jobs:
        with suppress(BrokenPipeError):
            process.communicate()
    return notes


def facts_of(job: Job, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Step times of all rounds; the first one's peaks, and what the engine did in it."""
    line: dict[str, Any] = {key: value for key, value in asdict(job).items() if value is not None}
    if not rounds:
        return line | {"failed": True}
    times = []
    for notes in rounds:
        marks = [step["seconds"] for step in notes["steps"]
                 if step["label"].startswith(("step", "request"))]  # fmt: skip
        times.append([round(1000 * (b - a), 2) for a, b in itertools.pairwise(marks)])
    last = [step for step in rounds[0]["steps"] if "num_alloc_retries" in step][-1]
    elastic = rounds[0].get("elastic") or {}
    return line | {
        "steps_ms": times,
        "live": last["active_bytes.all.peak"],
        "reserved": last["reserved_bytes.all.peak"],
        "retries": last["num_alloc_retries"],
        "elastic": {key: value for key, value in elastic.items() if value},
        "losses": digest(rounds[0]["losses"]),
    }


def digest(losses: list[str]) -> str:
    """Their number, and a short hash of every bit of them."""
    return f"{len(losses)}:{hashlib.sha256(' '.join(losses).encode()).hexdigest()[:12]}"


def ratio(ones: list[list[float]], others: list[list[float]]) -> float | None:
    """Times as long, by the median over the steps; each step at its best."""
    if not ones or not others:
        return None
    best, other_best = ([min(times) for times in zip(*runs, strict=False)]
                        for runs in (ones, others))  # fmt: skip
    ratios = [a / b for a, b in zip(best[1:], other_best[1:], strict=False)]
    return round(statistics.median(ratios), 4) if ratios else None


def conclusion(name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A workload's line: times native, times its own unlimited run, and whether losses agree."""
    times: dict[tuple[str, float | None, float | None], list[list[float]]] = {}
    losses: dict[str, list[str]] = {}
    for line in lines:
        if line["name"] != name or line.get("failed"):
            continue
        if line["exact"]:
            losses.setdefault(line["configuration"], []).append(line["losses"])
        else:
            key = line["configuration"], line.get("limit"), line.get("beside")
            times.setdefault(key, []).extend(line["steps_ms"])
    native = times.get(("native", None, None), [])
    return {
        "workload": name,
        "times_native": {c: ratio(runs, native) for (c, limit, beside), runs in times.items()
                         if limit is None and beside is None},
        "native_again": ratio(native[1::2], native[::2]),
        "times_unlimited": {f"{c} {limit}": ratio(runs, times[c, None, limit])
                            for (c, limit, _), runs in times.items()
                            if limit is not None and (c, None, limit) in times},
        "losses": losses,
    }  # fmt: skip


def workloads(file: str, names: list[str], chosen: list[str], options: argparse.Namespace) -> None:
    """Each workload without a limit and near its live peak, under each configuration."""
    ours = [c for c in chosen if c.startswith("tenure")]
    exact = options.exact.split(",")
    jobs = []
    for name in names:
        jobs += [Job(name, c, options.rounds) for _ in range(options.repetitions) for c in chosen]
        if name in exact:
            jobs += [Job(name, c, exact=True) for c in ("native", "native", *ours)]
    lines = take_turns(jobs, file)
    limits = [float(one) for one in options.limits.split(",") if one]
    live = {x["name"]: x["live"] for x in lines
            if x["configuration"] == chosen[0] and not (x["exact"] or x.get("failed"))}  # fmt: skip
    jobs = []
    for limit, (name, peak) in itertools.product(limits, live.items()):
        gib = limit * peak / GIB
        jobs += [Job(name, c, 1, limit, gib) for c in chosen if c not in ours]
        for c in ours:
            jobs += [Job(name, c, options.rounds, limit, gib)]
            jobs += [Job(name, c, options.rounds, beside=limit)]
    lines += take_turns(jobs, file)
    for name in names:
        print(json.dumps(conclusion(name, lines)), flush=True)


# --- processes -----------------------------------------------------------------------------------


def environment_of(configuration: str, extra: dict[str, str]) -> dict[str, str]:
    """This process's, with the configuration's settings and no others."""
    environment = {**os.environ, **extra}
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if CONFIGURATIONS[configuration]:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = CONFIGURATIONS[configuration]
    return environment


def child(arguments: list[str], configuration: str) -> str:
    """Runs this file again under a configuration; what it printed."""
    command = [sys.executable, __file__, "--here", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            env=environment_of(configuration, {}),
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
    parser.add_argument("--limits", default="1.02", help="times the live peak, by commas")
    parser.add_argument("--repetitions", type=int, default=2, help="processes of each kind")
    parser.add_argument("--rounds", type=int, default=3, help="of a workload in each process")
    parser.add_argument("--exact", default="", help="workloads whose losses are compared")
    parser.add_argument("what", choices=("pairs", "empty", "workload"))
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.here:
        {"pairs": pairs, "empty": empty, "workload": workload}[options.what](*options.arguments)
        return
    chosen = options.only.split(",") if options.only else list(CONFIGURATIONS)
    if options.what == "empty":
        empties(chosen)
        return
    if options.what == "workload":
        file, *names = options.arguments
        workloads(file, names, chosen, options)
        return
    for configuration in chosen:
        printed = child(["pairs", configuration], configuration)
        print("\n".join(x for x in printed.splitlines() if x.startswith("{")), flush=True)


if __name__ == "__main__":
    main()
