"""The command as a user runs it: time and memory of the whole process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.measuring import interleaved, report
from benchmarks.workloads import name_of, recorded, uncompressed

# A process that only unpickles the file, as any Python tool must: what the command is held against.
BARE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"

# Runs a program and prints its exit code and its peak memory in KiB. A small process of its own,
# because a child's peak begins with what its parent held.
WATCH = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def command(repetitions: int) -> None:
    """`tenure replay FILE --json`, beside a bare `pickle.load` of the same file."""
    path = recorded()
    peaks: dict[str, list[int]] = {"command": [], "pickle_load": []}
    with tempfile.TemporaryDirectory() as folder:
        plain = uncompressed(path, Path(folder))
        size = plain.stat().st_size
        arguments = {
            "command": ["-m", "tenure", "replay", str(plain), "--json"],
            "pickle_load": ["-c", BARE, str(plain)],
        }

        def seconds(name: str) -> float:
            begin = time.perf_counter()
            peaks[name].append(peak_memory([sys.executable, *arguments[name]]))
            return time.perf_counter() - begin

        runs = {name: partial(seconds, name) for name in arguments}
        figures = interleaved(runs, min(repetitions, 5))
    bare = min(figures["pickle_load"])
    for name, values in figures.items():
        report(
            f"process.{name}",
            name_of(path),
            "s",
            values,
            ratio_to_pickle_load=min(values) / bare,
            file_bytes=size,
            peak_memory_bytes=min(peaks[name]),
            memory_to_file=min(peaks[name]) / size,
        )


def peak_memory(arguments: list[str]) -> int:
    """Runs a program to its end; the most bytes it held."""
    run = subprocess.run([sys.executable, "-c", WATCH, *arguments], check=True, capture_output=True)
    code, kibibytes = map(int, run.stdout.split())
    if code not in (0, 1):  # 1: it has findings
        raise subprocess.CalledProcessError(code, arguments)
    return kibibytes * 1024
