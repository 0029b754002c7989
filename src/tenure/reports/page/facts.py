"""What the page is told: plain values for its head, and columns of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import tenure
from tenure.lifetimes import ORDER
from tenure.replays import recorded_replay
from tenure.reports.page.lives import Lives, lives_of
from tenure.reports.page.packing import Column
from tenure.reports.plain import explanation_dict
from tenure.traces import Action
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses import Explanation
    from tenure.replays import Replay
    from tenure.traces import Trace


@dataclass(frozen=True)
class Facts:
    """The content of a page.

    Attributes:
        head: Names, sentences and single numbers.
        columns: Allocations, spans, stretches, stacks, times.
    """

    head: dict[str, Any]
    columns: list[Column]


def facts_of(explanation: Explanation, file: str) -> Facts:
    """The content of the page about one explanation.

    Args:
        explanation: What to show.
        file: What the page calls the recording.
    """
    trace = explanation.trace
    replay = recorded(explanation)
    lives = lives_of(trace, replay, explanation)
    told = explanation_dict(explanation, file)
    used, stack = np.unique(lives.stack, return_inverse=True)
    kept = [int(s) for s in used if s >= 0]
    stacks = stack.astype(np.int64) - (0 if len(used) and used[0] >= 0 else 1)
    strings, frame_columns = _frames(trace, kept)
    head = {
        "tenure": tenure.__version__,
        "file": file,
        "device": trace.device,
        "rules": _rules(trace),
        "events": len(trace.events),
        "allocations": len(lives),
        "exact": replay.exact,
        "complete": explanation.complete,
        "missing": list(explanation.missing),
        "peak": replay.peak.as_dict(),
        "end": replay.end.as_dict(),
        "marks": _marks(trace, replay),
        "findings": told["findings"],
        "categories": [category.value for category in ORDER],
        "sites": list(lives.labels),
        "streams": [_stream_name(stream) for stream in lives.streams],
        "pools": [_pool_name(pool) for pool in trace.pools],
        "strings": strings,
        "stretches": [f"{int(address):#x}" for address in lives.ground.stretch_address],
        "has_time": bool((trace.events.time_us > 0).any()),
    }
    columns = [
        *_life_columns(lives),
        Column("stack", stacks),
        *_ground_columns(lives),
        *frame_columns,
        Column("steps", _positions(lives.steps.end) if lives.steps else _none(), delta=True),
    ]
    if head["has_time"]:
        columns.append(Column("time", _times(trace), delta=True))
    return Facts(head, columns)


def _rules(trace: Trace) -> str:
    """Whose rules were in force, as the page's head says it."""
    settings = trace.settings
    if settings.rules == "elastic":
        limit = f", limit {format_bytes(settings.limit)}" if settings.limit >= 0 else ""
        return f"tenure's elastic rules{limit}"
    version = ".".join(map(str, settings.torch_version))
    return f"rules of torch {version} · {settings.conf or 'default allocator settings'}"


def recorded(explanation: Explanation) -> Replay:
    """The trace replayed as recorded, with its timeline; addresses are known of no other."""
    replay = explanation.replay
    if replay.compared and replay.timeline is not None:
        return replay
    return recorded_replay(explanation.trace, timeline=True)


def _none() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.empty(0, np.int64)


def _positions(events: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    return events.astype(np.int64) + 1


def _life_columns(lives: Lives) -> list[Column]:
    """One row an allocation; pairs of bytes that many share stand in a table of their own."""
    shapes, shape = np.unique(np.stack([lives.size, lives.requested]), axis=1, return_inverse=True)
    return [
        Column("born", lives.born, delta=True),
        Column("served", lives.made - lives.born),
        Column("life", lives.freed - lives.born),
        Column("wait", lives.done - lives.freed),
        Column("place", lives.place),
        Column("home", lives.home),
        Column("shape", shape.reshape(-1).astype(np.int64)),
        Column("shape_size", shapes[0]),
        Column("shape_requested", shapes[1]),
        Column("site", lives.site),
        Column("category", lives.category),
        Column("stream", lives.stream),
        Column("pool", lives.pool),
    ]


def _ground_columns(lives: Lives) -> list[Column]:
    ground = lives.ground
    stream = np.searchsorted(np.array(lives.streams, np.uint64), ground.stream)
    return [
        Column("span_place", ground.place(ground.address)),
        Column("span_size", ground.size),
        Column("span_born", ground.born),
        Column("span_died", ground.died),
        Column("span_stream", stream.astype(np.int64)),
        Column("span_pool", ground.pool),
        Column("span_small", ground.small),
        Column("span_arena", ground.arena),
        Column("stretch_place", ground.stretch_place),
        Column("stretch_size", ground.stretch_size),
    ]


def _frames(trace: Trace, stacks: list[int]) -> tuple[list[str], list[Column]]:
    """The strings that the named stacks use, and their frames as columns."""
    source = trace.stacks
    pieces = [source.frame[source.offset[s] : source.offset[s + 1]] for s in stacks]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    flat = np.concatenate([*pieces, np.empty(0, np.int32)])
    frames, frame = np.unique(flat, return_inverse=True)
    files, names = source.file[frames], source.name[frames]
    texts, text = np.unique(np.concatenate([files, names]), return_inverse=True)
    half = len(files)
    columns = [
        Column("stack_length", lengths),
        Column("stack_frame", frame.astype(np.int64)),
        Column("frame_file", text[:half].astype(np.int64)),
        Column("frame_name", text[half:].astype(np.int64)),
        Column("frame_line", source.line[frames].astype(np.int64)),
    ]
    return [source.strings[i] for i in texts.tolist()], columns


def _times(trace: Trace) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Microseconds from the first event to each; never falling."""
    times = trace.events.time_us
    first = times[np.argmax(times > 0)]
    return np.asarray(np.maximum.accumulate(np.maximum(times - first, 0)))


def _marks(trace: Trace, replay: Replay) -> list[dict[str, Any]]:
    """Moments worth pointing at: the two peaks, and requests that failed or nearly did."""
    marks = [
        {
            "kind": "peak",
            "position": replay.peak_event.allocated + 1,
            "bytes": replay.peak.allocated,
        },
        {
            "kind": "reserved",
            "position": replay.peak_event.reserved + 1,
            "bytes": replay.peak.reserved,
        },
    ]
    failed = np.flatnonzero(trace.events.action == Action.OOM)
    marks += [
        {"kind": "oom", "position": int(i) + 1, "bytes": int(trace.events.size[i])}
        for i in failed[:1000]
    ]
    marks += [{"kind": "retry", "position": int(i) + 1, "bytes": 0} for i in replay.retries[:1000]]
    return marks


def _stream_name(stream: int) -> str:
    return "default" if stream == 0 else f"{stream:#x}"


def _pool_name(pool: tuple[int, int]) -> str:
    return "default pool" if pool == (0, 0) else f"private pool ({pool[0]}, {pool[1]})"
