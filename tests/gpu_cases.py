"""The collected cases and the healthy workloads under `tenure run`, on a machine with a GPU.

    python tests/gpu_cases.py CASES OUT [--jobs 4] [--only l01,a05] [--workloads FILE]

CASES is the folder with the cases and their expected.json. One line each: what was found, the exit
code, the seconds. With --workloads, gpt2, resnet50 and vit run alone and under `tenure run`: the
ratio of their step times, what was found (races and leaks must be none), and how many of the bytes
at the highest moment have a name. Reports, output and errors lie in OUT. Exits with 1 if any is not
as expected. Needs no pytest.
"""

# ruff: noqa: T201  it prints its results

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM = 4  # steps that are left out: optimizer state, kernels, and operations under watch
WORKLOADS = ("gpt2", "resnet50", "vit")
LONGEST = 240  # seconds
MOST = 1.03  # times the plain step
LEAST_NAMED = 0.99
ILL = ("growth", "holder.", "stream.")  # what a healthy run must not be called
EXACT = ("parameters", "gradients", "optimizer state")


def main() -> int:
    """Runs what was asked for; returns the exit code."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    bad = run_cases(options) if not options.no_cases else 0
    if options.workloads:
        for name in options.names.split(","):
            bad += not run_workload(options, name)
    print("all as expected" if not bad else f"{bad} not as expected", flush=True)
    return int(bool(bad))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time")
    parser.add_argument("--only", default="", help="prefixes of cases, by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tenure", default=f"{sys.executable} -m tenure", help="the command")
    parser.add_argument("--before", default="", help="a script that runs the case it is given")
    parser.add_argument("--workloads", type=Path, help="the script with the workloads")
    parser.add_argument("--names", default=",".join(WORKLOADS))
    parser.add_argument("--repeat", type=int, default=2, help="runs of each workload of each kind")
    parser.add_argument("--no-cases", action="store_true")
    return parser.parse_args()


# --- cases ------------------------------------------------------------------------------------


def run_cases(options: argparse.Namespace) -> int:
    """Every case, some at a time; returns how many were not named."""
    expected = json.loads((options.cases / "expected.json").read_text())
    wanted = tuple(options.only.split(","))
    names = [name for name in sorted(expected) if name.startswith(wanted)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(lambda name: run_case(options, name, expected[name]["codes"]), names)
        bad = sum(not fine for fine in done)
    print(f"{len(names) - bad} of {len(names)} cases named", flush=True)
    return bad


def run_case(options: argparse.Namespace, name: str, codes: list[str]) -> bool:
    """One case; prints its line, and returns whether an expected code was found."""
    begun = time.perf_counter()
    script = [options.before] if options.before else []
    arguments = [*script, str(options.cases / f"{name}.py"), options.device]
    code, report = under_tenure(options, name, arguments, {})
    found = [one["code"] for one in report.get("findings", [])]
    fine = bool(set(codes) & set(found))
    seconds = time.perf_counter() - begun
    tell(fine, f"{name:32} exit {code} {seconds:5.1f} s  {' '.join(found) or '(nothing)'}")
    if not fine:
        print(f"        expected {' or '.join(codes)}", flush=True)
    for text in report.get("missing", []):
        print(f"        note: {text}", flush=True)
    return fine


def under_tenure(
    options: argparse.Namespace, name: str, arguments: list[str], environment: dict[str, str]
) -> tuple[int | str, dict[str, Any]]:
    """Exit code and report of a script under `tenure run`."""
    target = options.out / f"{name}.report.json"
    target.unlink(missing_ok=True)
    command = [*shlex.split(options.tenure), "run", "--json", "-o", str(target), *arguments]
    code = run(command, options.out / name, environment)
    try:
        report: dict[str, Any] = json.loads(target.read_text())
    except (OSError, ValueError) as error:
        return code, {"missing": [f"no report: {error}"]}
    return code, report


def run(command: list[str], stem: Path, environment: dict[str, str]) -> int | str:
    """A command's exit code; its output and errors go to files."""
    with Path(f"{stem}.out").open("wb") as out, Path(f"{stem}.err").open("wb") as err:
        try:
            done = subprocess.run(
                command,
                stdout=out,
                stderr=err,
                timeout=LONGEST,
                check=False,
                env={**os.environ, **environment},
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    return done.returncode


# --- workloads --------------------------------------------------------------------------------


def run_workload(options: argparse.Namespace, name: str) -> bool:
    """One workload alone and watched, in turn; prints what was seen, returns whether all is well.

    PyTorch's history is off in the script itself (HISTORY=0), so that what `tenure run` records
    counts against it.
    """
    plain: list[list[float]] = []
    watched: list[list[float]] = []
    report: dict[str, Any] = {}
    code: int | str = 0
    for number in range(options.repeat):
        for kind, times in (("plain", plain), ("watched", watched)):
            folder = options.out / f"{name}.{kind}.{number}"
            folder.mkdir(exist_ok=True)
            before = [options.before] if options.before else []
            arguments = [*before, str(options.workloads), name, str(folder)]
            if kind == "plain":
                code = run([sys.executable, *arguments], folder / "run", {"HISTORY": "0"})
            else:
                code, report = under_tenure(
                    options, f"{name}.{number}", arguments, {"HISTORY": "0"}
                )
            times.append(step_seconds(folder / f"{name}.json"))
    return tell_workload(name, plain, watched, report, code)


def step_seconds(path: Path) -> list[float]:
    """Seconds of each step, as the workload wrote the moments of their ends."""
    try:
        steps = json.loads(path.read_text())["steps"]
    except (OSError, ValueError, KeyError):
        return []
    ends = [one["seconds"] for one in steps if one["label"].startswith("step")]
    return [after - before for before, after in itertools.pairwise(ends)]


def tell_workload(
    name: str,
    plain: list[list[float]],
    watched: list[list[float]],
    report: dict[str, Any],
    code: int | str,
) -> bool:
    """Prints a workload's lines; returns whether all is well."""
    medians = [[statistics.median(run[WARM:]) for run in runs if len(run) > WARM + 2]
               for runs in (plain, watched)]  # fmt: skip
    ratio = min(medians[1]) / min(medians[0]) if all(medians) else float("nan")
    found = [one["code"] for one in report.get("findings", [])]
    ill = [one for one in found if one.startswith(ILL)]
    rows = {row["heading"]: row["bytes"] for row in report.get("holders", {}).get("rows", [])}
    live = sum(rows.values())
    named = 1 - rows.get("unknown", 0) / live if live else float("nan")
    tell(ratio <= MOST, f"{name:10} step {shown(medians[0])} alone, {shown(medians[1])} watched: "
         f"{ratio:.3f} times")  # fmt: skip
    for kind, runs in (("alone", plain), ("watched", watched)):
        for times in runs:
            print(f"        {kind:8} ms: " + " ".join(f"{t * 1e3:.1f}" for t in times), flush=True)
    tell(not ill, f"{name:10} exit {code}, found: {' '.join(found) or '(nothing)'}")
    tell(named >= LEAST_NAMED, f"{name:10} {named:.2%} of {live:,} bytes named; "
         + ", ".join(f"{key} {rows.get(key, 0):,}" for key in EXACT))  # fmt: skip
    counted = (report.get("devices") or [{}])[0].get("peak") or {}
    print(f"        peak allocated {counted.get('allocated')}, looked at {live}", flush=True)
    for heading, size in rows.items():
        print(f"        {size:>15,}  {heading}", flush=True)
    for text in report.get("missing", []):
        print(f"        note: {text}", flush=True)
    return ratio <= MOST and not ill and named >= LEAST_NAMED


def shown(times: list[float]) -> str:
    """Medians of runs in milliseconds."""
    return "/".join(f"{t * 1e3:.1f}" for t in times) + " ms" if times else "no steps"


def tell(fine: bool, text: str) -> None:
    """One line."""
    print(f"{'ok ' if fine else 'BAD'} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
