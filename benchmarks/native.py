"""The engine alone, in C++: engine/bench, built here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import report
from benchmarks.workloads import ROOT

BUILD = ROOT / "build" / "bench"


def hot_path(repetitions: int) -> None:
    """Nanoseconds of a pair of allocate and free, on a device of addresses only."""
    for case, figures in run("hot_path", repetitions, ""):
        if not case.startswith("free_blocks"):
            report(f"hot_path.{case}", "synthetic", "ns/pair", figures)


def many_free_blocks(repetitions: int) -> None:
    """The same among 1,000 to 100,000 equal free blocks: no search grows with their number."""
    cases = dict(run("hot_path", repetitions, "free_blocks"))
    fewest = min(cases["free_blocks.1000"])
    for case, figures in cases.items():
        report(f"many_{case}", "synthetic", "ns/pair", figures, ratio=min(figures) / fewest)


def run(program: str, repetitions: int, cases: str) -> list[tuple[str, list[float]]]:
    """Names and figures of the cases of one program of engine/bench."""
    built = build(program)
    output = subprocess.run(
        [str(built), str(repetitions), cases], check=True, capture_output=True, text=True
    ).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    return [(line["case"], line["nanoseconds"]) for line in lines]


def build(program: str) -> Path:
    """The program, built with the tools of this Python's environment."""
    tools = Path(sys.executable).parent
    cmake = str(tools / "cmake")
    configure = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DTENURE_BENCH=ON"]
    target = f"bench_{program}"
    for step in (
        [cmake, "-S", str(ROOT), "-B", str(BUILD), *configure],
        [cmake, "--build", str(BUILD), "--target", target],
    ):
        subprocess.run(step, check=True, stdout=sys.stderr)
    return BUILD / target
