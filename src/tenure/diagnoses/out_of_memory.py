"""oom: a request was not served. What was there, what would have fitted, what would have helped."""

from __future__ import annotations

from tenure.diagnoses.advice import settings_advice
from tenure.diagnoses.evidence import EXPANDABLE, Evidence, Share, limit_of
from tenure.diagnoses.finding import Advice, Finding, Severity
from tenure.diagnoses.naming import age, kind, stream_name
from tenure.diagnoses.split import Split, find_holes, is_private, pins, split_reserved
from tenure.replays import Layout, OutOfMemory
from tenure.traces import BlockState
from tenure.units import GIB, format_bytes


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """One finding if any request failed, in the recording or under the capacity asked about."""
    failed = evidence.replay.first_oom
    layout = evidence.before_failure
    if failed is None or layout is None:
        return ()
    split = split_reserved(layout, failed.stream)
    limit = limit_of(evidence)
    needed = failed.requested if evidence.elastic else failed.segment
    within_reach = split.cached + split.pending.bytes + _free(limit, split) >= needed
    cause = "and not for lack of memory" if within_reach else "for lack of memory"
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
            _advice(evidence, failed, within_reach=within_reach),
        ),
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _free(limit: int | None, split: Split) -> int:
    return max(limit - split.reserved, 0) if limit is not None else 0


def largest_servable(layout: Layout, split: Split, limit: int | None, stream: int) -> int:
    """The largest request in bytes that would have been served then.

    Either from a cached block of the same stream, or as a new segment under the limit once
    everything returnable is returned.
    """
    mine = (layout.state == BlockState.CACHED) & (layout.stream == stream) & ~is_private(layout)
    cached = int(layout.size[mine].max(initial=0))
    whole = sum(share.whole for share in split.pools)
    return max(cached, (_free(limit, split) + whole) // (2 << 20) * (2 << 20))


def _evidence(
    evidence: Evidence, failed: OutOfMemory, layout: Layout, split: Split, limit: int | None
) -> list[str]:
    lines = []
    line = evidence.line_of_event(failed.event)
    if line:
        lines.append(f"asked for by {line}, on {stream_name(failed.stream)}")
    if limit is not None:
        named = evidence.capacity is not None or evidence.trace.settings.limit >= 0
        known = "limit" if named else "limit, as far as the record shows,"
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
        lines += _pieces(split, elastic=evidence.elastic)
    largest = largest_servable(layout, split, limit, failed.stream)
    lines.append(f"the largest request that could have been served: {format_bytes(largest)}")
    if failed.segment > failed.requested and not evidence.elastic:
        lines.append(
            f"PyTorch asked the driver for a segment of {format_bytes(failed.segment)} to serve it"
        )
    if failed.pending_would_fit and not evidence.elastic:
        lines.append(
            "a block that fits was waiting for another stream and became free during the failing "
            "call: the same request, tried once more, would have been served (pytorch#189504)"
        )
    lines += _device(evidence, failed)
    lines += _holders(evidence, layout, failed.event)
    lines += _unhelpful(evidence, layout, failed)
    return lines


def _pieces(split: Split, *, elastic: bool) -> list[str]:
    own, whole, others = split.remainders.bytes, split.whole.bytes, split.other_streams.bytes
    parts = [
        (own, "pinned by live neighbours in their segments"),
        (whole, "whole segments, which PyTorch returned before it failed"),
        (others, "in the pools of other streams, which this stream cannot use"),
    ]
    if elastic:
        movable = sum(share.whole for share in split.pools if share.pool == (0, 0))
        parts = [
            (own + whole + others - movable, "pinned by live neighbours in their chunks"),
            (movable, "in whole chunks, which elastic rules move to where they are needed"),
        ]
    parts.append((split.private.bytes, "in private pools (CUDA graphs, MemPools)"))
    return [f"    {format_bytes(size)}  {what}" for size, what in parts if size]


def _device(evidence: Evidence, failed: OutOfMemory) -> list[str]:
    """What the driver said was free, where the record has it, and what else was on the card."""
    use = evidence.device
    if use is None:
        return []
    rest = ""
    if use.total is not None and use.outside is not None:
        rest = (
            f"; if the card is an {use.card} ({format_bytes(use.total)}), the other "
            f"{format_bytes(use.outside)} is the context, libraries and other processes"
        )
    lines = [
        (
            f"the driver had {format_bytes(use.free)} free on the device, "
            f"{'tenure' if evidence.elastic else 'PyTorch'} held {format_bytes(use.reserved)}{rest}"
        )
    ]
    if use.free >= failed.segment:
        what = "the limit" if evidence.elastic else "a limit (memory fraction)"
        lines.append(f"so it was not the card that refused but {what}")
    return lines


def _holders(evidence: Evidence, layout: Layout, event: int) -> list[str]:
    """Who pins most, and which lines hold most of what is live."""
    lines = []
    for pin in pins(layout)[:1]:
        number = int(layout.allocation[pin.row])
        lines.append(
            f"most is pinned by {format_bytes(int(layout.size[pin.row]))} from "
            f"{evidence.label(number)} ({_since(evidence, number, event)}): it keeps "
            f"{format_bytes(pin.pinned)} from being returned"
        )
    shares = evidence.by_site(layout)[:3] if evidence.trace.has_stacks else ()
    if shares:
        lines.append("most of what was live:")
        lines += [f"    {format_bytes(s.bytes)}  {_named(s)}" for s in shares]
    return lines


def _named(share: Share) -> str:
    """What a line's tensors are; a label of a backward pass says so by itself."""
    if share.label.startswith("backward of "):
        return share.label
    return f"{kind(share.category)} of {share.label}"


def _since(evidence: Evidence, number: int, event: int) -> str:
    born = int(evidence.trace.allocations.born[number])
    if born < 0:
        return "allocated before the recording began"
    return f"allocated at event {born:,}, {age(evidence, number, event)}"


def _unhelpful(evidence: Evidence, layout: Layout, failed: OutOfMemory) -> list[str]:
    """Why the setting that PyTorch's message names does not help, where it does not."""
    tried = evidence.candidates.get(EXPANDABLE)
    if evidence.elastic or tried is None:
        return []
    if _saves(evidence, tried.smallest_capacity, fits=tried.fits):
        return []
    holes = find_holes(layout, failed.stream)
    chunk = layout.chunk
    named = "expandable_segments, which PyTorch's message names,"
    if evidence.trace.settings.expandable_segments:
        named += " was on already"
    else:
        named += " does not help here (replayed)"
    if holes.total and holes.largest < chunk:
        named += (
            f": the holes are at most {format_bytes(holes.largest)}, smaller than the "
            f"{format_bytes(chunk)} that can be unmapped at a time"
        )
    return [named]


def _saves(evidence: Evidence, smallest: int, *, fits: bool) -> bool:
    before = evidence.as_recorded
    if evidence.trace.settings.expandable_segments:
        return False
    return (fits and not before.fits) or smallest < before.smallest_capacity


def _advice(evidence: Evidence, failed: OutOfMemory, *, within_reach: bool) -> tuple[Advice, ...]:
    before = evidence.as_recorded
    advice = list(settings_advice(evidence))
    if not within_reach and not advice:
        nothing = "nothing that moves" if evidence.elastic else "no setting tried"
        advice.append(
            Advice(
                f"{nothing} makes it fit: less has to be live (a smaller batch, gradient "
                "checkpointing, accumulation), or the card has to be larger"
            )
        )
    advice.append(
        Advice(
            "with the settings as they are, what was recorded needs "
            f"{format_bytes(before.smallest_capacity)}"
        )
    )
    if failed.pending_would_fit and not evidence.elastic:
        advice.append(Advice("catch the error and try the same request once more"))
    return tuple(advice)
