"""Allocators side by side on a real GPU, in one run: native, its settings, and tenure.

    python benchmarks/live.py pairs                     nanoseconds an allocate and free pair
    python benchmarks/live.py empty                     torch.empty from Python, in short turns
    python benchmarks/live.py workload FILE NAME...     whole training scripts, and under limits

Every configuration runs in a process of its own; one JSON line a case goes to standard output, what
went wrong to standard error. FILE is a script that is called as `FILE NAME FOLDER`, writes
FOLDER/NAME.json with its "steps", and takes a limit from LIMIT_GIB.

Processes that run a workload get ready side by side (imports, CUDA) and then take turns, a step
each: a turn ends where the script calls torch.cuda.synchronize(), and its clock stands still while
others run. So the machine's moods meet all alike, and a step is compared with the same step of the
process beside it; the first round of each process, which loads kernels and fills the cache, is not.
One run more is made with deterministic settings, of native two: its losses must be native's to the
last bit, where native's are its own.
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
        exact: With deterministic settings, and its losses noted.
    """

    name: str
    configuration: str
    rounds: int = 1
    limit: float | None = None
    limit_gib: float | None = None
    exact: bool = False


def workload(configuration: str, file: str, name: str, folder: str) -> None:
    """Runs the script as it is, in this process, a step for each line read."""
    import_all_of(file)
    ours = install(configuration)
    import torch

    torch.cuda.init()
    share_steps(torch)
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
        torch.cuda.reset_peak_memory_stats()


def share_steps(torch: Any) -> None:
    """Lets the others run where a step ends; the script's clock does not count that."""
    synchronize, clock = torch.cuda.synchronize, time.time
    waited = 0.0

    def ending(*args: Any, **kwargs: Any) -> None:
        nonlocal waited
        synchronize(*args, **kwargs)
        begun = clock()
        print("step", flush=True)
        sys.stdin.readline()
        waited += clock() - begun

    torch.cuda.synchronize = ending
    time.time = lambda: clock() - waited


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


def read_until(process: subprocess.Popen[str], *begins: str) -> str:
    """The next line that begins so; empty if the process ends, or is ended for its time, before."""
    watchdog = threading.Timer(LONGEST, process.kill)
    watchdog.start()
    printed: Any = process.stdout
    found = next((line for line in printed if line.startswith(begins)), "")
    watchdog.cancel()
    return found


def rounds_in_turn(jobs: list[tuple[Job, subprocess.Popen[str]]]) -> list[list[dict[str, Any]]]:
    """What each job noted of its rounds; fewer of them where a process failed."""
    notes: list[list[dict[str, Any]]] = [[] for _ in jobs]
    left = list(zip(notes, jobs, strict=True))
    while left:
        for one in tuple(left):
            own, (job, process) = one
            asked: Any = process.stdin
            with suppress(BrokenPipeError):
                asked.write("go\n")
                asked.flush()
            line = read_until(process, "step", '{"notes"')
            if line.startswith("{"):
                own.append(json.loads(line)["notes"])
            if not line or len(own) == job.rounds:
                left.remove(one)
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
        "out_of_memory": any(step["label"] == "oom" for step in rounds[0]["steps"]),
        "elastic": {key: value for key, value in elastic.items() if value},
        "losses": digest(rounds[0]["losses"]),
    }


def digest(losses: list[str]) -> str:
    """Their number, and a short hash of every bit of them."""
    return f"{len(losses)}:{hashlib.sha256(' '.join(losses).encode()).hexdigest()[:12]}"


def ratio(ones: list[list[float]], others: list[list[float]]) -> float | None:
    """Times as long: the median over the steps of all rounds but the first."""
    ratios = [a / b for run, other in zip(ones[1:], others[1:], strict=False)
              for a, b in zip(run[1:], other[1:], strict=False)]  # fmt: skip
    return round(statistics.median(ratios), 4) if ratios else None


def conclusion(name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A workload's line: times native, times its own unlimited run, and whether losses agree."""
    times: dict[str, list[list[list[float]]]] = {}
    losses: dict[str, list[str]] = {}
    for line in lines:
        if line["name"] != name or line.get("failed"):
            continue
        if line["exact"]:
            losses.setdefault(line["configuration"], []).append(line["losses"])
        else:
            key = " ".join(str(line[x]) for x in ("configuration", "limit") if x in line)
            times.setdefault(key, []).append(line["steps_ms"])
    native = times.get("native", [[]])

    def against(key: str, base: str) -> list[float | None]:
        return [ratio(run, other) for run, other in zip(times[key], times[base], strict=False)]

    limited = {key: key.partition(" ")[0] for key in times if " " in key}
    return {
        "workload": name,
        "times_native": {key: against(key, "native") for key in times
                         if "native" in times and key not in {"native", *limited}},
        "native_again": [ratio(run, native[0]) for run in native[1:]],
        "times_unlimited": {key: against(key, base) for key, base in limited.items()
                            if base in times},
        "losses": losses,
    }  # fmt: skip


def workloads(file: str, names: list[str], chosen: list[str], options: argparse.Namespace) -> None:
    """Each workload without a limit and near its live peak, under each configuration."""
    limits = [float(one) for one in options.limits.split(",") if one]
    exact = options.exact.split(",")
    live = {}
    if limits:
        for line in take_turns([Job(name, chosen[0]) for name in names], file):
            live[line["name"]] = line.get("live")
    jobs = []
    for name in names:
        jobs += [Job(name, c, options.rounds) for _ in range(options.repetitions) for c in chosen]
        for limit, c in itertools.product(limits if live.get(name) else (), chosen):
            rounds = options.rounds if c.startswith("tenure") else 1
            jobs += [Job(name, c, rounds, limit, limit * live[name] / GIB)]
        if name in exact:
            ours = [c for c in chosen if c.startswith("tenure")]
            jobs += [Job(name, c, exact=True) for c in ("native", "native", *ours)]
    lines = take_turns(jobs, file)
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
