"""Replay a trace: as it was recorded, or under other settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tenure import _engine
from tenure.errors import BadInputError, UsageError
from tenure.replays.feeding import Call, feed, recorded_peak
from tenure.replays.result import (
    ByteCounts,
    Divergence,
    Layout,
    OutOfMemory,
    Replay,
    Timeline,
    byte_counts,
)
from tenure.settings import AllocatorSettings, engine_settings, parse_alloc_conf
from tenure.units import parse_size

if TYPE_CHECKING:
    from tenure.traces import Trace

MOST_CORRECTIONS = 4  # of a late start; one is nearly always enough


def replay(
    trace: Trace,
    *,
    conf: str | None = None,
    capacity: int | str | None = None,
    torch_version: tuple[int, int] | None = None,
    rules: str | None = None,
    timeline: bool = False,
) -> Replay:
    """Puts a recorded trace through the engine.

    Without `conf` and `rules`, or with the recorded ones, every address, every segment event and
    the end state are compared with the record. Under other settings or rules the result is what
    would have happened.

    Args:
        trace: What to replay.
        conf: Allocator settings as in PYTORCH_CUDA_ALLOC_CONF; default: the recorded ones.
        capacity: Limit on reserved bytes (the memory fraction): bytes, or "14GiB".
        torch_version: Whose rules hold, such as (2, 13); default: what the file shows.
        rules: "torch", or "elastic": ours, which take no `conf` (docs/elastic.md); default: the
            recorded ones.
        timeline: Keep the four byte counts after every event.

    Raises:
        BadInputError: The trace holds no events.
        UsageError: An unknown setting or size.
    """
    if not len(trace.events):
        raise BadInputError(
            f"device {trace.device}: no events to replay; record with "
            "torch.cuda.memory._record_memory_history() before the first CUDA call"
        )
    settings = asked_settings(trace, conf, capacity, torch_version, rules)
    base = trace.settings
    recorded = recorded_replay(trace, timeline=timeline)
    if settings == base:
        return recorded
    if replace(settings, limit=base.limit) == base:
        limited = _run(trace, settings, compare=True, timeline=timeline)
        if limited.exact and limited.limit_range is None:
            return limited
    return what_if(recorded.trace, settings, calls=list(recorded.calls), timeline=timeline)


def asked_settings(
    trace: Trace,
    conf: str | None,
    capacity: int | str | None,
    torch_version: tuple[int, int] | None = None,
    rules: str | None = None,
) -> AllocatorSettings:
    """The recorded settings with what the caller asked for in their place."""
    settings = trace.settings
    recorded, rules = settings.rules, rules or settings.rules
    if rules == "elastic" and conf:
        hint = ""
        if recorded == "elastic":
            hint = '. The run was recorded under elastic rules: add --rules torch (rules="torch")'
        raise UsageError(
            f"{conf}: these are settings of PyTorch's rules; elastic rules need none of them{hint}"
        )
    if rules == "torch" and recorded == "elastic" and conf is None:
        conf = settings.conf  # heeded by no rules then, but in force without tenure
    version = torch_version or settings.torch_version
    if conf is not None:
        settings = parse_alloc_conf(
            conf,
            torch_version=version,
            base=AllocatorSettings(device_memory=settings.device_memory),
        )
        if recorded == "elastic":
            settings = replace(settings, limit=trace.settings.limit)
    settings = replace(settings, torch_version=version, rules=rules)
    if capacity is None:
        return settings
    limit = parse_size(capacity) if isinstance(capacity, str) else capacity
    if limit <= 0:
        raise UsageError(f"a capacity of {limit} bytes holds nothing; give more than 0")
    return replace(settings, limit=limit)


def recorded_replay(trace: Trace, *, timeline: bool = False) -> Replay:
    """The trace as it was recorded, held against the record."""
    return _run(trace, trace.settings, compare=True, timeline=timeline)


def what_if(
    trace: Trace, settings: AllocatorSettings, *, calls: list[Call], timeline: bool = False
) -> Replay:
    """The trace under other settings, with guessed addresses.

    Args:
        trace: What to replay.
        settings: Under which settings.
        calls: Of `recorded_replay(trace)`.
        timeline: Keep the four byte counts after every event.
    """
    likely = _run(trace, settings, compare=False, calls=calls, timeline=timeline)
    if settings.rules == "elastic":  # its arenas are its own: no address is guessed
        return likely
    other = feed(trace, settings, calls=calls, compare=False, ascending=True)
    peaks = sorted((likely.peak.reserved, other["peaks"]["reserved"]["bytes"]))
    return replace(likely, spread=(peaks[0], peaks[1]))


def state_at(
    trace: Trace,
    events: int,
    *,
    settings: AllocatorSettings | None = None,
    calls: list[Call] | None = None,
) -> Layout:
    """What was where after that many events.

    Args:
        trace: What to replay.
        events: How many of its events.
        settings: Under which settings; default: the recorded ones.
        calls: For a what-if those of `recorded_replay(trace)`; None: held against the record.
    """
    chosen = settings or trace.settings
    plain = feed(trace, chosen, calls=calls or [], compare=calls is None, until=events)
    return _layout(plain, chosen)


def _layout(plain: dict[str, Any], settings: AllocatorSettings) -> Layout:
    return Layout(**plain["blocks"], chunk=_engine.chunk_size(engine_settings(settings)))


def _run(
    trace: Trace,
    settings: AllocatorSettings,
    *,
    compare: bool,
    calls: list[Call] | None = None,
    timeline: bool = False,
) -> Replay:
    if compare:
        trace, plain = _compared(trace, settings, timeline=timeline)
    else:
        plain = feed(trace, settings, calls=calls or [], compare=False, timeline=timeline)
    peak = byte_counts(plain["peaks"], "bytes")
    blocks = _layout(plain, settings)
    statistics = plain["statistics"]
    oom = plain["first_oom"]
    diverged = plain["divergence_event"] >= 0
    return Replay(
        trace=trace,
        settings=settings,
        compared=compare,
        address_mismatches=plain["address_mismatches"] if compare else None,
        segment_mismatches=plain["segment_mismatches"] if compare else None,
        end_state_mismatches=end_state_mismatches(trace, blocks) if compare else None,
        divergence=Divergence(plain["divergence_event"], plain["divergence"]) if diverged else None,
        peak=peak,
        peak_event=byte_counts(plain["peaks"], "event"),
        end=_end_counts(statistics),
        spread=(peak.reserved, peak.reserved),
        statistics=statistics,
        first_oom=OutOfMemory(**oom) if oom else None,
        chunk_moves=plain["chunk_moves"],
        stall_seconds=plain["stall_seconds"] if settings.rules == "elastic" else None,
        recorded_reserved=recorded_peak(trace) if compare else None,
        elastic=plain["elastic"],
        retries=tuple(plain["retries"].tolist()),
        calls=tuple(plain["calls"]),
        limit_range=_limit_range(plain, peak),
        blocks=blocks,
        timeline=Timeline(**plain["timeline"]) if timeline else None,
        seconds=plain["seconds"],
    )


def _compared(
    trace: Trace, settings: AllocatorSettings, *, timeline: bool
) -> tuple[Trace, dict[str, Any]]:
    """A compared replay, from a start corrected by what the record shows on the way.

    Blocks of a late recording's start may turn out to be larger than they had to be; then they
    were so from the beginning, and the replay is made once more.
    """
    plain = feed(trace, settings, calls=[], compare=True, timeline=timeline)
    for _ in range(MOST_CORRECTIONS):
        if not plain["larger"]:
            break
        trace = trace.with_larger_blocks(dict(plain["larger"]))
        plain = feed(trace, settings, calls=[], compare=True, timeline=timeline)
    return trace, plain


def _limit_range(plain: dict[str, Any], peak: ByteCounts) -> tuple[int, int] | None:
    if not plain["inferred_refusals"]:
        return None
    return peak.reserved, plain["smallest_refused"]


def _end_counts(statistics: dict[str, int]) -> ByteCounts:
    return ByteCounts(
        *(
            statistics[f"{name}_bytes.all.current"]
            for name in ("requested", "allocated", "active", "reserved")
        )
    )


def end_state_mismatches(trace: Trace, blocks: Layout) -> int:
    """Blocks of the recorded end state that the engine does not have, and the other way round.

    Compared are address, size, state, and the request of live and pending blocks.
    """
    recorded = trace.end.blocks
    ours = _rows(blocks.address, blocks.size, blocks.state, blocks.requested)
    theirs = _rows(recorded.address, recorded.size, recorded.state, recorded.requested)
    return int(len(np.setdiff1d(ours, theirs)) + len(np.setdiff1d(theirs, ours)))


def _rows(*columns: Any) -> np.ndarray[Any, Any]:
    address, size, state, requested = columns
    table = np.empty(
        len(address), [("address", "u8"), ("size", "i8"), ("state", "u1"), ("requested", "i8")]
    )
    table["address"], table["size"], table["state"] = address, size, state
    table["requested"] = np.where(state == 0, 0, requested)
    return table
