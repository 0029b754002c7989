"""stream.race_read and its kin: what streams, and the host, do to each other's memory."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.streams import Kind
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure.streams import PendingFrees, Race, Site, StreamId

LEAST_PENDING = 16 << 20  # bytes
RUN_AHEAD = 3  # blocks waiting at a time, from which the host is ahead by rounds

_CODES = {
    Kind.READ: "stream.race_read",
    Kind.WRITE: "stream.race_write",
    Kind.REUSE: "stream.race_reuse",
    Kind.HOST: "stream.host_overwrite",
}


def race_finding(race: Race, names: Mapping[StreamId, str]) -> Finding:
    """What a race is, its lines, and the line to add.

    Args:
        race: As the checker found it.
        names: What the program calls its streams, as expressions.
    """
    if race.kind is Kind.REUSE:
        return _reuse(race, names)
    if race.kind is Kind.HOST or race.stream is None:
        return _host(race, names)
    earlier, later = called(race.earlier.stream, names), called(race.stream, names)
    done = "writes" if race.earlier.writes else "reads"
    if race.kind is Kind.READ:
        title = f"{format_bytes(race.bytes)} may be read on {later} before {earlier} wrote it"
        does = "reads"
    else:
        title = (
            f"{format_bytes(race.bytes)} may be overwritten on {later} while {earlier} {done} it"
        )
        does = "writes"
    evidence = (
        f"{earlier} {done} it at {place(race.earlier.site)} ({race.earlier.what})",
        f"{later} {does} it at {place(race.site)} ({race.what}), and waits for nothing in between",
        *_made(race),
        *_times(race),
    )
    line = (
        f"{_expression(race.stream, names)}.wait_stream({_expression(race.earlier.stream, names)})"
        f"  # before {place(race.site)}"
    )
    return Finding(_CODES[race.kind], Severity.ERROR, race.bytes, title, evidence, (Advice(line),))


def _reuse(race: Race, names: Mapping[StreamId, str]) -> Finding:
    user = called(race.earlier.stream, names)
    does = "writing" if race.earlier.writes else "reading"
    freed = race.freed or race.site
    took = f"{place(race.site)} ({race.what}) "
    took += (
        "was given that memory"
        if race.reused
        else "asks for memory next and may be given it; this time it was not seen to be"
    )
    evidence = [
        f"{user} uses it at {place(race.earlier.site)} ({race.earlier.what})",
        f"it is freed at {place(freed)}, and its stream waits for nothing in between",
        took,
        *_made(race),
        *_times(race),
    ]
    if race.self_recorded is not None:
        evidence.append(
            f"record_stream at {place(race.self_recorded)} names the stream that owns it: no effect"
        )
    owner = _expression(race.stream, names) if race.stream else "torch.cuda.current_stream()"
    other = _expression(race.earlier.stream, names)
    return Finding(
        _CODES[race.kind],
        Severity.ERROR,
        race.bytes,
        f"{format_bytes(race.bytes)} was freed while {user} may still be {does} it",
        tuple(evidence),
        (
            Advice(f"{owner}.wait_stream({other})  # before {place(freed)}"),
            Advice(f"or call record_stream({other}) on the tensor before {place(freed)}"),
        ),
    )


def _host(race: Race, names: Mapping[StreamId, str]) -> Finding:
    stream = called(race.earlier.stream, names)
    copy = f"{place(race.earlier.site)} ({race.earlier.what})"
    if race.kind is Kind.READ:
        title = f"the host may read {format_bytes(race.bytes)} before a copy to it is done"
        does = "reads"
    else:
        title = f"the host overwrites {format_bytes(race.bytes)} that a copy may still be using"
        does = "writes"
    evidence = (
        f"{copy} copies without blocking, on {stream}",
        f"the host {does} that memory at {place(race.site)} ({race.what}), and has not waited",
        *_made(race),
        *_times(race),
    )
    expression = _expression(race.earlier.stream, names)
    lines = (
        f"copied = {expression}.record_event()  # after {place(race.earlier.site)}",
        f"copied.synchronize()  # before {place(race.site)}",
    )
    return Finding(
        _CODES[race.kind],
        Severity.ERROR,
        race.bytes,
        title,
        evidence,
        tuple(Advice(line) for line in lines),
    )


def self_record_finding(site: Site, size: int) -> Finding:
    """record_stream named the stream that the memory belongs to."""
    return Finding(
        "stream.self_record",
        Severity.INFO,
        size,
        "record_stream names the stream that owns the memory, which does nothing",
        (
            f"at {place(site)}",
            "the current stream within `with torch.cuda.stream(s)` is s, which allocates there",
        ),
        (Advice("name the stream that uses it: take it before the `with` is entered"),),
    )


def self_wait_finding(site: Site, count: int) -> Finding:
    """A stream waited for itself."""
    return Finding(
        "stream.self_wait",
        Severity.INFO,
        0,
        "a stream waits for itself, which does nothing",
        (
            f"at {place(site)}, {count:,} times",
            "the current stream within `with torch.cuda.stream(s)` is s",
        ),
        (Advice("take the other stream before the `with` is entered, and wait for that"),),
    )


def pending_findings(pending: PendingFrees) -> tuple[Finding, ...]:
    """Memory that waits because of record_stream."""
    if pending.peak < LEAST_PENDING:
        return ()
    lines = [
        f"up to {pending.peak_blocks:,} frees waited at a time"
        + ("" if pending.measured else ", until the host next knew the other stream to be done"),
        f"the host was up to {pending.ahead:,} operations ahead of what it knew to be done",
    ]
    for (recorded, freed), size in pending.sites.most_common(2):
        lines.append(
            f"{format_bytes(size)} a time: record_stream at {place(recorded)}, freed at "
            f"{place(freed)}"
        )
    late = [
        f"the event at {place(freed)} covers {count:,} operations behind the last use"
        for (_, freed), count in list(pending.late.items())[:2]
    ]
    ahead = pending.peak_blocks >= RUN_AHEAD
    return (
        Finding(
            "stream.pending" if ahead else "stream.late_event",
            Severity.WARNING if ahead else Severity.INFO,
            pending.peak,
            f"up to {format_bytes(pending.peak)} was freed but waited for another stream",
            (*lines, *late),
            (
                Advice(
                    "instead of record_stream, let the owning stream wait for an event at the last "
                    'use before the free; tenure.guard("sync") does that'
                ),
            ),
            Confidence.MEASURED if pending.measured else Confidence.POSSIBLE,
        ),
    )


def stranded_finding(stream: StreamId, size: int, names: Mapping[StreamId, str]) -> Finding:
    """A stream that is done keeps memory that no other stream can be given."""
    return Finding(
        "stream.stranded",
        Severity.WARNING,
        size,
        f"{called(stream, names)} is done and keeps at least {format_bytes(size)} free",
        ("it asked for nothing in the last half of all requests; blocks serve their stream only",),
        (
            Advice("allocate on the stream that goes on working"),
            Advice("or call torch.cuda.empty_cache() once, after this stream's phase"),
        ),
        Confidence.INFERRED,
    )


def place(site: Site) -> str:
    """A line as it is printed."""
    return f"{PurePath(site.file).name}:{site.line}" if site.file else f"({site.function})"


def called(stream: StreamId, names: Mapping[StreamId, str]) -> str:
    """A stream's name in a sentence."""
    if stream.handle == 0:
        return "the default stream"
    name = names.get(stream)
    return f"stream `{name}`" if name else f"stream {stream.handle:#x}"


def _expression(stream: StreamId, names: Mapping[StreamId, str]) -> str:
    if stream.handle == 0:
        return "torch.cuda.default_stream()"
    return names.get(stream) or f"stream_{stream.handle:x}"


def _made(race: Race) -> tuple[str, ...]:
    return (f"made at {place(race.born)}",) if race.born.file else ()


def _times(race: Race) -> tuple[str, ...]:
    return (f"{race.count:,} times",) if race.count > 1 else ()
