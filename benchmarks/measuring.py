"""Repeated measurements and the line that reports them."""

from __future__ import annotations

import json
import os
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tenure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def interleaved(
    runs: Mapping[str, Callable[[], float]], repetitions: int
) -> dict[str, list[float]]:
    """Each run's figures, taken in turn, round after round.

    What is compared meets the same moods of the machine that way. A first round is thrown away.
    """
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(repetitions + 1):
        for name, run in runs.items():
            figure = run()
            if round_number:
                figures[name].append(figure)
    return figures


def report(case: str, workload: str, unit: str, figures: Sequence[float], **more: Any) -> None:
    """Prints one line: believe the best of many, and differences that exceed the spread."""
    line = {
        "case": case,
        "workload": workload,
        "unit": unit,
        "repetitions": len(figures),
        "min": _rounded(min(figures)),
        "median": _rounded(statistics.median(figures)),
        "max": _rounded(max(figures)),
        **{name: _rounded(value) for name, value in more.items()},
        "versions": {
            "tenure": tenure.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "machine": machine(),
    }
    print(json.dumps(line), flush=True)


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def machine() -> str:
    """Processor, cores and load, as far as the system says."""
    model = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
