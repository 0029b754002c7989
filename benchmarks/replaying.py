"""The engine's replay: events a second, and how that holds for longer traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measuring import interleaved, report
from benchmarks.workloads import name_of, recorded
from tenure import _engine
from tenure.replays.feeding import feed
from tenure.settings import engine_settings
from tenure.snapshots import load
from tenure.traces import Action

if TYPE_CHECKING:
    from tenure.traces import Trace

MOVES = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)


def replay(repetitions: int) -> None:
    """Events a second, held against the record and as a what-if."""
    path = recorded()
    trace = load(path)
    events = len(trace.events)

    def rate(*, compare: bool) -> float:
        result = feed(trace, trace.settings, calls=[], compare=compare)
        return events / float(result["seconds"])

    figures = interleaved(
        {"compared": lambda: rate(compare=True), "what_if": lambda: rate(compare=False)},
        repetitions,
    )
    for mode, rates in figures.items():
        report(f"replay.{mode}", name_of(path), "events/s", rates, events=events)


def linear(repetitions: int) -> None:
    """Nanoseconds an event for one, two and four times the same trace."""
    path = recorded()
    trace = load(path)
    columns = {times: repeated(trace, times) for times in (1, 2, 4)}

    def nanoseconds(times: int) -> float:
        events = columns[times]
        result = _engine.replay(
            engine_settings(trace.settings),
            **events,
            pools=list(trace.pools),
            start=[],
            allocations=int(events["allocation"].max()) + 1,
            calls=[],
            known_calls=[],
            recorded_peak=0,
            compare=False,
        )
        return float(result["seconds"]) * 1e9 / len(events["action"])

    runs = {f"linear.{times}x": partial(nanoseconds, times) for times in columns}
    figures = interleaved(runs, repetitions)
    once = min(figures["linear.1x"])
    for name, values in figures.items():
        events = len(columns[int(name[-2])]["action"])
        report(name, name_of(path), "ns/event", values, events=events, ratio=min(values) / once)


def repeated(trace: Trace, times: int) -> dict[str, Any]:
    """The trace's events several times over, each time ended by freeing what is still live."""
    events = trace.events
    kept = np.flatnonzero(np.isin(events.action, list(MOVES)))
    once = {
        name: np.asarray(getattr(events, name))[kept]
        for name in ("action", "address", "size", "stream", "pool", "allocation")
    }
    freed = once["allocation"][once["action"] == Action.FREE_COMPLETED]
    born = np.flatnonzero(once["action"] == Action.ALLOC)
    leaving = born[~np.isin(once["allocation"][born], freed)]
    closing = {name: np.repeat(column[leaving], 2) for name, column in once.items()}
    closing["action"] = np.tile(
        np.array([Action.FREE_REQUESTED, Action.FREE_COMPLETED], np.uint8), len(leaving)
    )
    whole = {name: np.concatenate([once[name], closing[name]]) for name in once}
    tiled = {name: np.tile(column, times) for name, column in whole.items()}
    length = len(whole["action"])
    stride = int(whole["allocation"].max()) + 1
    tiled["allocation"] += np.repeat(np.arange(times), length) * stride
    return tiled
