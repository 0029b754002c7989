"""oom: a request was not served. What was there, what would have fitted, what would have helped."""

from __future__ import annotations

from tenure.diagnoses.advice import settings_advice
from tenure.diagnoses.evidence import Evidence, limit_of
from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.diagnoses.split import Split, pins, split_reserved
from tenure.replays import Layout, OutOfMemory
from tenure.traces import BlockState
from tenure.units import format_bytes


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if any request failed, in the recording or under the capacity asked about."""
    failed = evidence.replay.first_oom
    layout = evidence.before_failure()
    if failed is None or layout is None:
        return ()
    split = split_reserved(layout)
    limit = limit_of(evidence)
    fragmented = split.cached + split.pending.bytes + _free(limit, split) >= failed.segment
    cause = "and not for lack of memory" if fragmented else "for lack of memory"
    title = (
        f"out of memory, {cause}: {format_bytes(failed.requested)} asked for at event "
        f"{failed.event:,}"
    )
    return (
        Finding(
            "oom",
            Severity.ERROR,
            failed.requested,
            title,
            tuple(_evidence(evidence, failed, layout, split, limit)),
            _advice(evidence, failed),
        ),
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def _free(limit: int | None, split: Split) -> int:
    return max(limit - split.reserved, 0) if limit is not None else 0


def largest_servable(layout: Layout, split: Split, limit: int | None, stream: int) -> int:
    """The largest request in bytes that would have been served then.

    Either from a cached block of the same stream, or as a new segment under the limit once
    everything returnable is returned.
    """
    mine = (layout.state == BlockState.CACHED) & (layout.stream == stream)
    cached = int(layout.size[mine].max(initial=0))
    whole = split.whole.bytes
    return max(cached, (_free(limit, split) + whole) // (2 << 20) * (2 << 20))


def _evidence(
    evidence: Evidence, failed: OutOfMemory, layout: Layout, split: Split, limit: int | None
) -> list[str]:
    lines = []
    if limit is not None:
        known = "limit" if evidence.capacity is not None else "limit, as far as the record shows,"
        pending = f" + pending {_gib(split.pending.bytes)}" if split.pending.bytes else ""
        lines.append(
            f"{known} {_gib(limit)} GiB = live {_gib(split.live.bytes)}{pending} + cached "
            f"{_gib(split.cached)} + never reserved {_gib(_free(limit, split))}"
        )
    sizes = layout.size[layout.state == BlockState.CACHED]
    if len(sizes):
        lines.append(
            f"the cached {format_bytes(int(sizes.sum()))} is in {len(sizes):,} pieces, the largest "
            f"{format_bytes(int(sizes.max()))}:"
        )
        lines += _pieces(split)
    largest = largest_servable(layout, split, limit, failed.stream)
    lines.append(f"the largest request that could have been served: {format_bytes(largest)}")
    if failed.segment > failed.requested:
        lines.append(
            f"PyTorch asked the driver for a segment of {format_bytes(failed.segment)} to serve it"
        )
    if failed.pending_would_fit:
        lines.append(
            "a block that fits was waiting for another stream and became free during the failing "
            "call: the same request, tried once more, would have been served (pytorch#189504)"
        )
    worst = pins(layout)[:1]
    lines += [_pin_line(evidence, layout, pin.row, pin.pinned, failed.event) for pin in worst]
    return lines


def _pieces(split: Split) -> list[str]:
    parts = (
        (split.remainders, "remainders, each pinned by a live neighbour in its segment"),
        (split.whole, "whole segments, which PyTorch returned before it failed"),
        (split.other_streams, "in the pools of other streams, which this stream cannot use"),
        (split.private, "in private pools (CUDA graphs, MemPools)"),
    )
    return [f"    {format_bytes(part.bytes)}  {what}" for part, what in parts if part.bytes]


def _pin_line(evidence: Evidence, layout: Layout, row: int, pinned: int, event: int) -> str:
    number = int(layout.allocation[row])
    born = int(evidence.trace.allocations.born[number])
    since = f"allocated at event {born:,}, alive for {event - born:,} events"
    if born < 0:
        since = "allocated before the recording began"
    return (
        f"most is pinned by {format_bytes(int(layout.size[row]))} from {evidence.label(number)} "
        f"({since}): it keeps {format_bytes(pinned)} from being returned"
    )


def _advice(evidence: Evidence, failed: OutOfMemory) -> tuple[Advice, ...]:
    before = evidence.as_recorded
    advice = list(settings_advice(evidence))
    advice.append(
        Advice(
            f"with the settings as they are, the run needs {format_bytes(before.smallest_capacity)}"
        )
    )
    if failed.pending_would_fit:
        advice.append(Advice("catch the error and try the same request once more"))
    return tuple(advice)
