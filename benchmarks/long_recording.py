"""A million events: explain and view as a user runs them, and the page in a browser.

`python -m benchmarks million`: each line names its bar, and whether the best run is under it. Where
playwright or chromium is missing, the page is not measured, and standard error says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import report
from benchmarks.workloads import ROOT, SHARED, name_of

SOURCES = ("gpt2", "gpt2_varlen")
EXPLAIN_SECONDS, EXPLAIN_MEMORY = 5.0, 4.0  # memory: times the file's bytes
VIEW_SECONDS, OPEN_SECONDS, ZOOM_MILLISECONDS = 15.0, 2.0, 50.0
MOST_REPETITIONS = 5
SETTLED = 1_000  # milliseconds after opening, until the zoom is measured
# Half-way in, twenty steps closer to the peak, and back: every frame is drawn and timed.
ZOOM = """() => {
  const {view, stage} = tenureView;
  return Array.from({length: 40}, (_, k) => {
    view.zoom(k < 20 ? 0.7 : 1 / 0.7, view.axis.x(view.record.peak));
    stage.draw();
    return stage.lastDraw;
  });
}"""
READY = "document.documentElement.dataset.ready !== undefined"


@dataclass(frozen=True)
class Run:
    """One process: its wall-clock and processor seconds, and the most bytes it held."""

    wall: float
    processor: float
    memory: int


def million(repetitions: int) -> None:
    """Explain, view, and the page, of two recordings repeated up to a million events."""
    times = min(repetitions, MOST_REPETITIONS)
    for source in (SHARED / f"{name}.pickle.xz" for name in SOURCES):
        if not source.exists():
            raise SystemExit(f"{source} is not here: name the folder in TENURE_SHARED")
        with tempfile.TemporaryDirectory() as folder:
            _measure(source, Path(folder), times)


def _measure(source: Path, folder: Path, times: int) -> None:
    snapshot, page = folder / "million.pickle", folder / "million.html"
    # In a process of its own: a child's peak memory begins with what its parent holds.
    make = [sys.executable, "-m", "benchmarks.repeating", str(source), str(snapshot)]
    made = subprocess.run(make, check=True, capture_output=True, text=True, cwd=ROOT)
    facts = {"events": int(made.stdout), "file_bytes": snapshot.stat().st_size}
    name = name_of(source)
    runs = [run("explain", str(snapshot)) for _ in range(times)]
    memory = [r.memory / facts["file_bytes"] for r in runs]
    _report("explain", name, "s", [r.wall for r in runs], EXPLAIN_SECONDS, runs=runs, **facts)
    _report("explain.memory", name, "x file", memory, EXPLAIN_MEMORY, **facts)
    view = ("view", str(snapshot), "-o", str(page), "--force")
    runs = [run(*view) for _ in range(times)]
    _report("view", name, "s", [r.wall for r in runs], VIEW_SECONDS, runs=runs, **facts)
    shown = _shown(page, folder, times)
    if shown is None:
        print("the page is not measured: playwright and chromium are needed", file=sys.stderr)
        return
    opening, frames = shown
    facts["page_bytes"] = page.stat().st_size
    _report("page.open", name, "s", opening, OPEN_SECONDS, **facts)
    middle = [sorted(each)[len(each) // 2] for each in frames]
    worst = [max(each) for each in frames]
    _report("page.zoom.median", name, "ms", middle, ZOOM_MILLISECONDS, **facts)
    _report("page.zoom.worst", name, "ms", worst, ZOOM_MILLISECONDS, **facts)


def _report(case: str, name: str, unit: str, figures: list[float], bar: float, **more: Any) -> None:
    runs = more.pop("runs", None)
    if runs:
        more["processor_seconds"] = min(r.processor for r in runs)
    report(f"million.{case}", name, unit, figures, bar=bar, met=min(figures) < bar, **more)


def run(*arguments: str) -> Run:
    """Runs a command of tenure to its end."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "tenure", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):  # 1: it has findings
        raise subprocess.CalledProcessError(child.returncode, command)
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _shown(page: Path, folder: Path, times: int) -> tuple[list[float], list[list[float]]] | None:
    """Seconds until the page is ready, and milliseconds of each frame of a zoom, for each opening.

    None where no browser is installed.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not chromium:
        return None
    opening, frames = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=chromium,
            args=["--headless", "--no-sandbox", "--disable-gpu"],
            viewport={"width": 1440, "height": 1600},
        )
        for _ in range(times):
            tab = browser.new_page()
            begin = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_function(READY)
            opening.append(time.perf_counter() - begin)
            tab.wait_for_timeout(SETTLED)
            frames.append(tab.evaluate(ZOOM))
            tab.close()
        browser.close()
    return opening, frames
