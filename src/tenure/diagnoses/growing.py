"""growth, holder.list and holder.cycle: live memory that rises from round to round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity
from tenure.diagnoses.naming import at, kind, some
from tenure.lifetimes import ORDER, Category, Ending, Order
from tenure.units import GIB, format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.lifetimes import GrowingSite, Growth

PLATEAU_SHARE = 0.05  # of the live peak, for what has levelled off to be worth a word
RELEASED_SHARE = 0.25  # of the live peak, for what was released
BARE_SHARE = 0.5  # the same, for loops that do nothing but keep: lists that are built in one go
OFTEN = 2  # times that a tensor grew and began anew, for it to be what the loop does
ALL = 0.9  # of the growth, released at once
CARDS = (24 * GIB, 80 * GIB, 141 * GIB)  # to say when a card is full, where no limit is known
SITES_SHOWN = 4


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """At most one finding for each line that grows."""
    found: list[Finding] = []
    seen: set[int] = set()
    for growth in evidence.growths:
        sites = {s.kind for s in growth.sites}
        if seen & sites:
            continue
        finding = _finding(evidence, growth)
        if finding is not None:
            seen |= sites
            found.append(finding)
    return tuple(found)


def _finding(evidence: Evidence, growth: Growth) -> Finding | None:
    severity, confidence = _weigh(evidence, growth)
    if severity is None:
        return None
    code = code_of(growth)
    if code == "holder.cycle":
        confidence = Confidence.POSSIBLE if severity is Severity.INFO else Confidence.INFERRED
    plateau = growth.ending is Ending.PLATEAU
    return Finding(
        code,
        severity,
        growth.grown,
        _title(growth),
        tuple(_evidence(evidence, growth)),
        () if plateau else (Advice(_advice(evidence, growth)),),
        confidence,
    )


def code_of(growth: Growth) -> str:
    """The code under which a growth is told."""
    if growth.sites[0].replaced and growth.ending is not Ending.PLATEAU:
        return "holder.list"
    return "holder.cycle" if _collected(growth) and growth.times > 1 else "growth"


def _weigh(evidence: Evidence, growth: Growth) -> tuple[Severity | None, Confidence]:
    """How much a growth matters; None for what any healthy run does."""
    peak = max(evidence.recorded.peak.allocated, 1)
    if all(s.replaced for s in growth.sites) and growth.work_rises:
        return None, Confidence.POSSIBLE  # batches become larger, and all that is made with them
    if all(s.replaced and s.restarts >= OFTEN for s in growth.sites):
        return None, Confidence.POSSIBLE  # keys and values of a request, gathered token by token
    if growth.ending is Ending.PLATEAU:
        matters = growth.grown >= PLATEAU_SHARE * peak
        return (Severity.NORMAL if matters else None), Confidence.MEASURED
    gone = growth.release is not None and growth.release.share >= ALL
    if growth.times > 1:
        # An inner loop climbs and falls every time; only the garbage collector is news.
        return (_weigh_cycle(evidence) if _collected(growth) else None), Confidence.INFERRED
    at_peak = growth.begin <= evidence.recorded.peak_event.allocated
    if growth.release is not None and gone:
        at_peak &= evidence.recorded.peak_event.allocated <= growth.release.event
    if (growth.builds_up or not growth.works) and not _trains(evidence, growth):
        # A model being loaded looks the same, so does a list built in one go.
        if _category(evidence, growth.sites[0]) is Category.PARAMETERS:
            return None, Confidence.POSSIBLE
        share = RELEASED_SHARE if growth.works else BARE_SHARE
        told = (growth.works and not gone) or (gone and at_peak and growth.grown >= share * peak)
        weight = Severity.WARNING if gone and growth.works else Severity.INFO
        return (weight if told else None), Confidence.POSSIBLE
    if growth.ending is Ending.RELEASED:
        matters = (
            at_peak and growth.grown >= RELEASED_SHARE * peak and not _is_cache(evidence, growth)
        )
        return (Severity.WARNING if matters else None), Confidence.MEASURED
    return Severity.WARNING, Confidence.MEASURED


def _weigh_cycle(evidence: Evidence) -> Severity:
    """How much it matters that what grew went back oldest first, more than once.

    The garbage collector comes whenever so many objects were made: at another line each time, or
    where it is called. At one and the same line the program itself drops a dict or a deque.
    """
    stacks = {g.release.stack for g in evidence.growths if g.release and _collected(g)}
    called = any(
        "collect" in frame.name or "gc" in frame.file.rsplit("/", 1)[-1]
        for stack in stacks
        for frame in evidence.trace.stacks.frames(stack)
    )
    return Severity.WARNING if len(stacks) > 1 or called else Severity.INFO


def _trains(evidence: Evidence, growth: Growth) -> bool:
    """Whether what grows comes from a model at work: then it does not load one."""
    kinds = {_category(evidence, site) for site in growth.sites}
    return bool(kinds & {Category.ACTIVATIONS, Category.GRADIENTS, Category.BACKWARD})


def _collected(growth: Growth) -> bool:
    """Whether it went back as the garbage collector frees cycles: all at once, oldest first."""
    release = growth.release
    return release is not None and release.share >= ALL and release.order is Order.AS_MADE


def _is_cache(evidence: Evidence, growth: Growth) -> bool:
    """A cache by name, such as the keys and values of a generation."""
    return any("cache" in evidence.label_of_site(s.site).lower() for s in growth.sites)


def _title(growth: Growth) -> str:
    per, each = growth.per, format_bytes(growth.bytes_per_round)
    if growth.ending is Ending.PLATEAU:
        return (
            f"live memory grew {each} a {per} for {growth.rounds} {per}s, "
            f"{format_bytes(growth.grown)} in all, and has been level for {growth.flat}: it stops "
            "there"
        )
    if growth.sites[0].replaced:
        return (
            f"one tensor is made anew each {per}, {each} larger each time, up to "
            f"{format_bytes(growth.grown)}"
        )
    if growth.ending is Ending.RELEASED:
        return (
            f"live memory grows {each} every {per}, {format_bytes(growth.grown)} in "
            f"{growth.rounds} {per}s, before it is released"
        )
    return f"live memory grows {each} every {per} and does not level off ({growth.rounds} {per}s)"


def _evidence(evidence: Evidence, growth: Growth) -> list[str]:
    lines = [_site_line(evidence, site, growth.per) for site in growth.sites[:SITES_SHOWN]]
    if growth.sites[0].replaced:
        lines.append(
            "old and new are live together while it is copied: the peak is about twice what is kept"
        )
    lines.append(
        f"from {growth.per} {growth.first_number:,} (event {growth.begin:,}) to event "
        f"{growth.end:,}" + _loop(evidence)
    )
    lines.append(_addresses(evidence, growth))
    lines += _release_lines(evidence, growth)
    if growth.builds_up and growth.ending is Ending.UNBOUNDED:
        lines.append("nothing else was live before: if this loads a model, it is normal")
    failed = evidence.replay.first_oom is not None
    if growth.ending is Ending.UNBOUNDED and not growth.builds_up and not failed:
        lines.append(_forecast(evidence, growth))
    return lines


def _category(evidence: Evidence, site: GrowingSite) -> Category:
    """What most of a line's kept blocks are for."""
    mine = evidence.category[list(site.allocations)]
    return ORDER[int(np.bincount(mine).argmax())]


def _site_line(evidence: Evidence, site: GrowingSite, per: str) -> str:
    numbers = site.allocations
    what = kind(_category(evidence, site).value)
    blocks = f"{site.blocks:,} block{'s' if site.blocks != 1 else ''}"
    each = f" of {format_bytes(site.requested)}" if site.requested > 0 and site.blocks > 1 else ""
    return (
        f"    {format_bytes(site.bytes_per_round)} a {per}  {what} of "
        f"{evidence.label(numbers[-1])}: {blocks}{each}, {format_bytes(site.held)} held in the end"
    )


def _loop(evidence: Evidence) -> str:
    rounds = evidence.rounds
    if rounds is None or rounds.frame is None:
        return ""
    name = rounds.frame.file.rsplit("/", 1)[-1]
    return f"; the loop is in {rounds.frame.name} of {name}"


def _addresses(evidence: Evidence, growth: Growth) -> str:
    numbers = sorted(n for s in growth.sites for n in s.allocations)
    address = evidence.trace.allocations.address
    return f"at {some([at(int(address[n])) for n in numbers], 3)}"


def _release_lines(evidence: Evidence, growth: Growth) -> list[str]:
    release = growth.release
    if release is None or release.share < 0.5:
        return [] if growth.ending is Ending.PLATEAU else ["nothing in the recording frees it"]
    line = evidence.line_of_event(release.event)
    where = f" at {line}" if line else ""
    share = "all of it" if release.share >= ALL else f"{release.share:.0%} of it"
    lines = [f"{share} was freed at event {release.event:,}{where}"]
    if release.order is Order.AS_MADE:
        lines.append(
            "oldest first, all at once: as the garbage collector frees reference cycles (a dict or "
            "a deque that is emptied looks the same)"
        )
    elif release.order is Order.REVERSED:
        lines.append(
            "youngest first, all at once: as a list goes, or what a function's variables held"
        )
    return lines


def _forecast(evidence: Evidence, growth: Growth) -> str:
    limit = evidence.capacity
    if limit is None and evidence.recorded.limit_range is not None:
        limit = evidence.recorded.limit_range[0]
    live = growth.live_at_end
    card = limit or next((c for c in CARDS if c > 1.2 * live), CARDS[-1])
    left = max(card - live, 0) // max(growth.bytes_per_round, 1)
    return (
        f"at this rate a {format_bytes(card)} card is full after about {left:,} more {growth.per}s"
    )


def _advice(evidence: Evidence, growth: Growth) -> str:
    categories = {_category(evidence, site) for site in growth.sites}
    if growth.sites[0].replaced:
        return (
            "move each part to the host (or reduce it) before keeping it, or collect the parts in "
            "a list and concatenate them once"
        )
    if _collected(growth):
        return (
            "look for objects that refer to themselves (closures over self, exceptions, callbacks) "
            "and break the cycle; or run gc.collect() every so many steps"
        )
    if Category.ACTIVATIONS in categories:
        return (
            "find what keeps the graph: a loss summed without .item() or .detach(), retain_graph, "
            "outputs stored by a hook or in a list, evaluation without torch.no_grad(); tenure run "
            "SCRIPT names the holder"
        )
    return (
        "find what keeps it: a list or dict that collects tensors, a sum of losses that keeps "
        "their graphs (.item(), .detach()), a slice that keeps its whole storage (clone it), an "
        "exception that is kept; tenure run SCRIPT names the holder"
    )
