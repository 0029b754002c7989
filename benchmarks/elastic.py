"""Elastic rules beside PyTorch's: the smallest capacity, the unlimited footprint, moves and stall.

`python -m benchmarks.elastic` prints the tables of docs/elastic.md; `python -m benchmarks elastic`
one JSON line a trace. Everything is replayed from recordings: no GPU, and nothing is timed.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measuring import report
from benchmarks.workloads import SHARED, name_of
from tenure.replays import live_peak, recorded_replay, smallest_capacity
from tenure.replays.costs import torch_stall
from tenure.replays.feeding import feed
from tenure.settings import AllocatorSettings
from tenure.snapshots import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tenure.traces import Trace

GIB = 1 << 30
LIMITS = (1.02, 1.05, 1.10)  # of the peak live bytes
SOFT_LIMIT = 1.05


@dataclass(frozen=True)
class Rules:
    """One set of rules on one trace.

    Attributes:
        unlimited: Peak reserved without a limit, over peak live: what a job takes, not what it
            needs.
        smallest: The least limit under which the whole trace runs, over peak live.
        chunks: Chunks made without a limit; each is three calls to the driver.
        runs: Under each of LIMITS, whether it runs.
        moves: Under each, chunks moved; PyTorch: retries, each of which waits for the device.
        stall: Under each, percent of the recorded time in driver calls beyond growing.
        waits: Under each, waits of the host for one event.
    """

    unlimited: float
    smallest: float
    chunks: int
    runs: tuple[bool, ...]
    moves: tuple[int, ...]
    stall: tuple[float, ...]
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A trace under the three sets of rules.

    Attributes:
        live: Peak bytes of tensors: no capacity can be below it.
        active: Peak bytes with blocks that were freed and waited for another stream; LIMITS are
            multiples of this, so that nothing has to wait for those.
        soft: Peak reserved under the soft limit, over `active`.
        soft_stall: Percent of the recorded time.
    """

    name: str
    live: int
    active: int
    default: Rules
    expandable: Rules
    elastic: Rules
    soft: float
    soft_stall: float


def default_traces() -> Iterator[Path]:
    """Shared recordings under default settings, without a limit, of more than 1 GiB live."""
    for path in sorted(SHARED.glob("*.pickle.xz")):
        truth = json.loads(path.with_name(f"{name_of(path)}.json").read_text(encoding="utf-8"))
        peak = truth["stats"]["allocated_bytes.all.peak"]
        if not truth["conf"] and truth["limit_bytes"] is None and peak > GIB:
            yield path


def measure(path: Path) -> Row:
    """All of one trace's figures."""
    trace = load(path)
    calls = list(recorded_replay(trace).calls)
    live, active = live_peak(trace), active_peak(trace)
    plain = AllocatorSettings(device_memory=trace.settings.device_memory)
    soft = replace(plain, rules="elastic", soft_limit=SOFT_LIMIT)
    softly = feed(trace, soft, calls=calls, compare=False)
    return Row(
        name_of(path),
        live,
        active,
        _under(trace, plain, calls, live, active),
        _under(trace, replace(plain, expandable_segments=True), calls, live, active),
        _under(trace, replace(plain, rules="elastic"), calls, live, active),
        softly["peaks"]["reserved"]["bytes"] / active,
        100 * softly["stall_seconds"] / recorded_seconds(trace),
    )


def active_peak(trace: Trace) -> int:
    """Most bytes held at a time until their free completed; requests rounded up to 512 bytes."""
    allocations = trace.allocations
    size = (allocations.requested + 511) // 512 * 512
    change = np.zeros(len(trace.events) + 1, np.int64)  # [0]: before the first event
    np.add.at(change, allocations.born + 1, size)
    gone = allocations.done >= 0
    np.subtract.at(change, allocations.done[gone] + 1, size[gone])
    return int(np.cumsum(change).max(initial=0))


def _under(
    trace: Trace, settings: AllocatorSettings, calls: list[Any], live: int, active: int
) -> Rules:
    free = feed(trace, settings, calls=calls, compare=False)
    peak = free["peaks"]["reserved"]["bytes"]
    least = smallest_capacity(trace, settings, calls=calls, enough=peak)
    limited = [
        feed(trace, replace(settings, limit=int(active * factor)), calls=calls, compare=False)
        for factor in LIMITS
    ]
    elastic = settings.rules == "elastic"
    seconds = recorded_seconds(trace)
    stall = [
        each["stall_seconds"] if elastic else torch_stall(each["statistics"], settings)
        for each in limited
    ]
    return Rules(
        peak / live,
        least / live,
        free["elastic"]["creates"] if elastic else _chunks(free["statistics"], settings),
        tuple(each["first_oom"] is None for each in limited),
        tuple(
            each["chunk_moves"] if elastic else each["statistics"]["num_alloc_retries"]
            for each in limited
        ),
        tuple(100 * each / seconds for each in stall),
        tuple(int(each["elastic"]["host_waits"]) for each in limited),
    )


def _chunks(statistics: dict[str, int], settings: AllocatorSettings) -> int:
    if not settings.expandable_segments:
        return statistics["num_device_alloc"]
    small = statistics["reserved_bytes.small_pool.allocated"] // (2 << 20)
    return small + statistics["reserved_bytes.large_pool.allocated"] // (20 << 20)


def recorded_seconds(trace: Trace) -> float:
    """Length of the recording on the host's clock."""
    times = trace.events.time_us[trace.events.time_us > 0]
    return float(int(times.max()) - int(times.min())) * 1e-6


def rows() -> list[Row]:
    """Every trace, on all cores."""
    paths = list(default_traces())
    if not paths:
        raise SystemExit(f"no recordings in {SHARED}: name their folder in TENURE_SHARED")
    with ThreadPoolExecutor() as pool:
        return list(pool.map(measure, paths))


def elastic(_repetitions: int) -> None:
    """One JSON line a trace and set of rules; the figures do not vary between repetitions."""
    for row in rows():
        for name in ("default", "expandable", "elastic"):
            rules: Rules = getattr(row, name)
            more = {f"stall_percent_{f}": s for f, s in zip(LIMITS, rules.stall, strict=True)}
            report(
                f"smallest_capacity.{name}",
                row.name,
                "x live",
                [rules.smallest],
                unlimited=rules.unlimited,
                chunks=rules.chunks,
                **more,
            )


def tables(measured: list[Row]) -> str:
    """The tables of docs/elastic.md, in Markdown."""
    return "\n".join([*_capacity_table(measured), "", *_limit_table(measured)])


def _capacity_table(measured: list[Row]) -> list[str]:
    lines = [
        "| trace | live GiB | default | expandable_segments | elastic | elastic, soft limit 1.05 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    names = ("default", "expandable", "elastic")
    for row in measured:
        each = [getattr(row, name) for name in names]
        cells = " | ".join(f"{rules.unlimited:.3f} / {rules.smallest:.4f}" for rules in each)
        lines.append(f"| {row.name} | {row.live / GIB:.2f} | {cells} | {row.soft:.3f} |")
    for title, of in (("mean", np.mean), ("worst", np.max)):
        cells = " | ".join(
            f"{of([getattr(r, name).unlimited for r in measured]):.3f} / "
            f"{of([getattr(r, name).smallest for r in measured]):.4f}"
            for name in names
        )
        soft = of([row.soft for row in measured])
        lines.append(f"| **{title}** | | {cells} | {soft:.3f} |")
    return lines


def _limit_table(measured: list[Row]) -> list[str]:
    heads = " | ".join(f"{name} {f}" for name in ("expandable", "elastic") for f in LIMITS)
    lines = [f"| trace | {heads} |", "| --- |" + " --- |" * 2 * len(LIMITS)]
    for row in measured:
        cells = []
        for rules in (row.expandable, row.elastic):
            for runs, moves, stall, waits in zip(
                rules.runs, rules.moves, rules.stall, rules.waits, strict=True
            ):
                waited = f", {waits} waits" if waits else ""
                cells.append(f"{moves} · {stall:.2f}{waited}" if runs else "out of memory")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    means = []
    for name in ("expandable", "elastic"):
        for i in range(len(LIMITS)):
            every: list[Rules] = [getattr(row, name) for row in measured]
            ran = [rules.stall[i] for rules in every if rules.runs[i]]
            means.append(f"{len(ran)} run, {np.mean(ran):.2f}")
    lines.append(f"| **mean** | {' | '.join(means)} |")
    return lines


if __name__ == "__main__":
    print(tables(rows()))
