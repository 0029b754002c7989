"""A recording for other viewers: Perfetto and chrome://tracing, and flame graphs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

import tenure
from tenure.lifetimes import NO_FRAMES, ORDER
from tenure.reports.page.lives import Lives, lives_of
from tenure.reports.text import visible
from tenure.traces import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tenure.replays import Replay
    from tenure.traces import Trace

    Ints = NDArray[np.int64]
    Plain = dict[str, Any]

MOST_BLOCKS = 100_000  # shown one by one; what is left out is counted in the file
MOST_MOMENTS = 50_000  # of a counter
FRAMES_SHOWN = 12


def collapsed_stacks(trace: Trace, replay: Replay) -> str:
    """Live bytes at the live peak as collapsed stacks: `outermost;...;innermost bytes` a line.

    Args:
        trace: What to export.
        replay: The trace as recorded, with its timeline.
    """
    lives = lives_of(trace, replay)
    live = lives.live_at(replay.peak_event.allocated + 1)
    bytes_of: dict[str, int] = {}
    text: dict[tuple[int, int], str] = {}
    rows = zip(
        lives.stack[live].tolist(),
        lives.site[live].tolist(),
        lives.size[live].tolist(),
        strict=True,
    )
    for stack, site, size in rows:
        if (stack, site) not in text:
            text[stack, site] = _collapsed(trace, stack, lives.labels[site])
        line = text[stack, site]
        bytes_of[line] = bytes_of.get(line, 0) + size
    ordered = sorted(bytes_of.items(), key=lambda row: (-row[1], row[0]))
    return "".join(f"{line} {size}\n" for line, size in ordered)


def _collapsed(trace: Trace, stack: int, label: str) -> str:
    """Outermost frame first; without frames what is known instead, such as the forward line."""
    frames = trace.stacks.frames(stack)
    names = [f"{f.name} ({_base(f.file)}:{f.line})" for f in reversed(frames)]
    if not names:
        names = [NO_FRAMES] if label == NO_FRAMES else [NO_FRAMES, label]
    return ";".join(visible(name).replace(";", ",") for name in names)


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]


def trace_events(trace: Trace, replay: Replay, file: str) -> str:
    """The recording in the Trace Event Format, which Perfetto and chrome://tracing read.

    Counters hold live, pending and cached bytes and live bytes by category; each larger block is a
    slice from its request to its free; segments, annotations and failures are there too. Times
    are microseconds after the first event, or event numbers where none were recorded.

    Args:
        trace: What to export.
        replay: The trace as recorded, with its timeline.
        file: What the export calls the recording.
    """
    lives = lives_of(trace, replay)
    times = _times(trace)
    chosen, least = _largest(lives)
    events = [
        {
            "ph": "M",
            "pid": 1,
            "name": "process_name",
            "args": {"name": f"GPU {trace.device} memory"},
        },
        *_counters(lives, times),
        *_segments(lives, times),
        *_blocks(trace, lives, times, chosen),
        *_moments(trace, times),
    ]
    about = {
        "written_by": f"tenure {tenure.__version__}",
        "file": visible(file),
        "blocks": len(lives),
        "blocks_shown": len(chosen),
        "smallest_block_shown_bytes": least,
    }
    # One event a line, so that the file can be searched and compared with other tools.
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return (
        f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{lines}\n]}}\n'
    )


def _times(trace: Trace) -> Ints:
    """The time of each position, and of one more, in microseconds or events."""
    recorded = trace.events.time_us
    if not (recorded > 0).any():
        return np.arange(len(recorded) + 2)
    passed = np.maximum.accumulate(np.maximum(recorded - recorded[np.argmax(recorded > 0)], 0))
    last = passed[-1:]
    return np.concatenate([[0], passed, last])


def _largest(lives: Lives) -> tuple[Ints, int]:
    """Blocks to show one by one, in order, and the bytes of the smallest."""
    if len(lives) <= MOST_BLOCKS:
        return np.arange(len(lives)), int(lives.size.min()) if len(lives) else 0
    least = int(np.partition(lives.size, -MOST_BLOCKS)[-MOST_BLOCKS])
    chosen = np.flatnonzero(lives.size >= least)
    if len(chosen) > 2 * MOST_BLOCKS:  # very many of that very size
        chosen = np.flatnonzero(lives.size > least)
        least = int(lives.size[chosen].min()) if len(chosen) else 0
    return chosen, least


def _sampled(level: Ints) -> Ints:
    """Positions to write a counter at: those with the most of it, evenly spread."""
    if len(level) <= MOST_MOMENTS:
        return np.arange(len(level))
    edges = np.linspace(0, len(level), MOST_MOMENTS + 1).astype(np.int64)
    pieces = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.array([a + int(level[a:b].argmax()) for a, b in pieces])


def _counters(lives: Lives, times: Ints) -> Iterator[Plain]:
    live, pending, reserved = lives.level(), lives.pending_level(), lives.reserved_level()
    positions = _sampled(live)
    cached = np.maximum(reserved - live - pending, 0)
    series = {"live": live, "pending": pending, "cached": cached}
    yield from _counter("bytes reserved", series, positions, times)
    shares = {}
    for index, category in enumerate(ORDER):
        mine = lives.category == index
        if mine.any():
            shares[category.value] = lives.level(lives.size * mine)
    yield from _counter("live bytes by category (inferred)", shares, positions, times)


def _counter(name: str, series: dict[str, Ints], positions: Ints, times: Ints) -> Iterator[Plain]:
    before: list[int] | None = None
    columns = [level[positions].tolist() for level in series.values()]
    for i, at in enumerate(times[positions].tolist()):
        values = [column[i] for column in columns]
        if values != before:
            args = dict(zip(series, values, strict=True))
            yield {"ph": "C", "pid": 1, "tid": 0, "name": name, "ts": at, "args": args}
        before = values


def _blocks(trace: Trace, lives: Lives, times: Ints, chosen: Ints) -> Iterator[Plain]:
    shown: dict[int, list[str]] = {}
    for i in chosen.tolist():
        stack = int(lives.stack[i])
        if stack not in shown:
            frames = trace.stacks.frames(stack)[:FRAMES_SHOWN]
            shown[stack] = [visible(f"{f.name} {f.file}:{f.line}") for f in frames]
        category = ORDER[int(lives.category[i])].value
        args = {
            "bytes": int(lives.size[i]),
            "requested": int(lives.requested[i]),
            "address": f"{int(trace.allocations.address[i]):#x}",
            "stream": f"{lives.streams[int(lives.stream[i])]:#x}",
            "stack": shown[stack],
        }
        name = visible(lives.labels[int(lives.site[i])])
        slice_of = {"pid": 1, "tid": 0, "cat": category, "id": i, "name": name}
        yield {"ph": "b", **slice_of, "ts": int(times[lives.born[i]]), "args": args}
        yield {"ph": "e", **slice_of, "ts": int(times[lives.freed[i]])}


def _segments(lives: Lives, times: Ints) -> Iterator[Plain]:
    ground = lives.ground
    for i in range(len(ground.size)):
        kind = "mapped run" if ground.arena[i] else "segment"
        args = {
            "bytes": int(ground.size[i]),
            "address": f"{int(ground.address[i]):#x}",
            "stream": f"{int(ground.stream[i]):#x}",
        }
        slice_of = {"pid": 1, "tid": 0, "cat": "segments", "id": f"s{i}", "name": kind}
        yield {"ph": "b", **slice_of, "ts": int(times[ground.born[i]]), "args": args}
        yield {"ph": "e", **slice_of, "ts": int(times[ground.died[i]])}


def _moments(trace: Trace, times: Ints) -> Iterator[Plain]:
    events = trace.events
    for i in np.flatnonzero(events.action == Action.OOM).tolist():
        args = {"bytes": int(events.size[i])}
        yield {
            "ph": "i",
            "s": "g",
            "pid": 1,
            "tid": 0,
            "name": "out of memory",
            "ts": int(times[i + 1]),
            "args": args,
        }
    recorded = events.time_us
    if not (recorded > 0).any():
        return
    first = int(recorded[np.argmax(recorded > 0)])
    for span in trace.annotations:
        if span.end_us is not None:
            yield {
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "name": visible(span.name),
                "ts": span.start_us - first,
                "dur": span.end_us - span.start_us,
            }
