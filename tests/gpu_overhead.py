"""What `tenure run` costs a training step, on a machine with a GPU; prints JSON.

    python tests/gpu_overhead.py WORKLOADS OUT [--names gpt2,resnet50] [--runs 3] [--longer 8]

WORKLOADS is the script with the workloads, run as `WORKLOADS NAME FOLDER` with HISTORY=0: it writes
the moment of each step's end to FOLDER/NAME.json. Each workload runs alone and under `tenure run`,
in turn. With --longer N it makes N times as many steps: the default of each function's argument
`n` is multiplied on the way, the file stays as it is. Steps from the fifth on are compared, and
all. Should take a quarter of a minute a process.
Needs no pytest.
"""

# ruff: noqa: T201  it prints its results

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from gpu_cases import step_seconds

WARM = 4  # steps that are left out: optimizer state, kernels, and operations under watch
LONGEST = 300  # seconds
INNER = "--inner"  # then this file is the script that runs
STEPS = "n"  # the argument of a workload that says how many


def main() -> int:
    """Measures each workload; returns 1 if one could not be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--names", default="gpt2,resnet50")
    parser.add_argument("--runs", type=int, default=3, help="of each workload of each kind")
    parser.add_argument("--longer", type=int, default=8, help="times as many steps; 1: as written")
    parser.add_argument("--before", default="", help="a script that runs the script it is given")
    options = parser.parse_args()
    results = {name: measured(options, name) for name in options.names.split(",")}
    print(json.dumps(results, indent=2))
    return int(any(result["failed"] for result in results.values()))


def measured(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """One workload, alone and watched in turn."""
    steps: dict[str, list[list[float]]] = {"alone": [], "watched": []}
    reports, failed, seconds = [], [], []
    for number in range(options.runs):
        for kind, runs in steps.items():
            folder = (options.out / f"{name}.{kind}.{number}").resolve()
            folder.mkdir(parents=True, exist_ok=True)
            begun = time.perf_counter()
            code = run(options, name, folder, watched=kind == "watched")
            seconds.append(round(time.perf_counter() - begun, 1))
            if code:
                failed.append(f"{folder.name}: exit code {code}, see {folder}/err")
            runs.append(step_seconds(folder / f"{name}.json"))
            if kind == "watched" and (folder / "report.json").exists():
                reports.append(json.loads((folder / "report.json").read_text()))
    return {
        "from_the_fifth": compared(steps, WARM),
        "all": compared(steps, 0),
        "reports": [told(report) for report in reports],
        "seconds_of_each_process": seconds,
        "failed": failed,
    }


def run(options: argparse.Namespace, name: str, folder: Path, *, watched: bool) -> int | str:
    """The exit code of one process; its output and errors are in the folder."""
    script = [str(Path(__file__).resolve()), INNER, str(options.longer), str(options.workloads)]
    under = [sys.executable]
    if watched:
        under += ["-m", "tenure", "run", "--force", "--json", "-o", str(folder / "report.json")]
    before = [options.before] if options.before else []
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        try:
            return subprocess.run(
                [*under, *before, *script, name, str(folder)],
                stdout=out,
                stderr=err,
                timeout=LONGEST,
                check=False,
                env={**os.environ, "HISTORY": "0"},
            ).returncode
        except subprocess.TimeoutExpired:
            return "timeout"


def compared(steps: dict[str, list[list[float]]], skipped: int) -> dict[str, Any]:
    """Median milliseconds of a step: of each run, of all of them, and the ratio of these."""
    cut = {kind: [one[max(skipped - 1, 0) :] for one in runs] for kind, runs in steps.items()}
    each = {kind: [1e3 * statistics.median(one) for one in runs if one]
            for kind, runs in cut.items()}  # fmt: skip
    pooled = {kind: list(itertools.chain.from_iterable(runs)) for kind, runs in cut.items()}
    medians = {kind: 1e3 * statistics.median(one) for kind, one in pooled.items() if one}
    whole = len(medians) == len(steps)
    return {
        "steps": {kind: len(one) for kind, one in pooled.items()},
        "median_ms": {kind: round(one, 3) for kind, one in medians.items()},
        "median_ms_of_each_run": {kind: [round(m, 3) for m in one] for kind, one in each.items()},
        "ratio": round(medians["watched"] / medians["alone"], 4) if whole else None,
        "ratio_of_the_fastest_runs": round(min(each["watched"]) / min(each["alone"]), 4)
        if whole
        else None,
        "mean_ms": {kind: round(1e3 * statistics.mean(one), 3) for kind, one in pooled.items()
                    if one},
    }  # fmt: skip


def told(report: dict[str, Any]) -> dict[str, Any]:
    """What a report says, in a few values."""
    rows = {row["heading"]: row["bytes"] for row in report["holders"]["rows"]}
    live = sum(rows.values())
    return {
        "findings": [one["code"] for one in report["findings"]],
        "named": round(1 - rows.get("unknown", 0) / live, 5) if live else None,
        "live_at_the_highest_look": live,
        "peak": report["devices"][0]["peak"] if report["devices"] else None,
        "rows": rows,
        "recorded": report["steps"].get("recorded"),
        "missing": report["missing"],
        "seconds_looking": report["seconds"]["looking"],
    }


# --- the script that is run --------------------------------------------------------------------


def run_inner(factor: int, file: str, *arguments: str) -> None:
    """Runs a script as `__main__`, its workloads with so many times the steps."""
    tree = ast.parse(Path(file).read_bytes(), file)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            lengthen(node, factor)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = file
    sys.modules["__main__"] = main_module
    sys.argv = [file, *arguments]
    exec(compile(tree, file, "exec"), main_module.__dict__)


def lengthen(function: ast.FunctionDef, factor: int) -> None:
    """Multiplies the default of the argument that says how many steps there are."""
    named = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    for argument, default in zip(named, function.args.defaults, strict=True):
        if argument.arg == STEPS and isinstance(default, ast.Constant):
            default.value *= factor  # type: ignore[operator]


if __name__ == "__main__":
    if sys.argv[1:2] == [INNER]:
        run_inner(int(sys.argv[2]), *sys.argv[3:])
    else:
        sys.exit(main())
