"""What a watched run shows into findings: each decided by what was seen, none by names."""

from __future__ import annotations

import dis
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tenure.diagnoses import Advice, Finding, Severity
from tenure.lifetimes.chains import Heading
from tenure.lifetimes.edges import short_file
from tenure.live.runs.stepping import rise_of
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tenure.lifetimes.holders import Holder
    from tenure.live.runs.record import Birth, Look, Record

LEAST = 1 << 16  # bytes below which nothing is worth a finding
SHARE = 100  # ... nor below this part of the peak
MANY = 3  # of the same line, or looks in a row
AT_REST = frozenset({"step", "rising", "end"})  # looks between two steps
SETTLED = 2  # steps after which what is live is that of a running loop
SURVIVED = 2  # backward passes that saved tensors of one step do not outlive
_NAMED = frozenset({Heading.VARIABLE, Heading.CONTAINER, Heading.GRAPH, Heading.CLOSURE})

ADVICE = {
    "holder.graph": (
        "take the value out of the graph where it leaves the step: float(x) or x.detach(); wrap "
        "evaluation in torch.no_grad(); do not pass retain_graph=True to carry state"
    ),
    "holder.ctx": "use ctx.save_for_backward(x): what is set on ctx outlives the backward pass",
    "holder.hook": (
        "let the hook keep output.detach() (or a copy on the host), clear its list every step, and "
        "remove() the handle when done"
    ),
    "holder.exception": (
        "leave the except block before retrying, keep str(error) instead of the error, or call "
        "traceback.clear_frames(error.__traceback__); gc.collect() and empty_cache() do nothing"
    ),
    "holder.view": "keep a copy: x[...].clone() lets the large storage go",
    "holder.list": "move each piece to the host, or reduce it, before it is kept: x.detach().cpu()",
    "holder.overlap": "del the old one before the new one is made",
    "holder.gc_off": "call gc.collect() every some steps, or enable the collector",
}
_CYCLE = "break the cycle (weakref.ref for the way back), or gc.collect() after dropping it"
_GRADIENT_CYCLE = (
    "use torch.autograd.grad(..., create_graph=True), or set .grad = None after use: Python's "
    "collector cannot break a cycle that runs through autograd's graph"
)


@dataclass
class _Case:
    """Bytes under one code and one holder, the largest moment of all that were looked at."""

    code: str
    key: str
    bytes: int
    title: str
    evidence: tuple[str, ...]
    severity: Severity = Severity.WARNING
    advice: str = ""


@dataclass
class _Judge:
    record: Record
    failed: bool
    cases: dict[tuple[str, str], _Case] = field(default_factory=dict)

    @property
    def least(self) -> int:
        return max(LEAST, self.record.peak // SHARE)

    def add(self, case: _Case) -> None:
        """Keeps the largest of one kind."""
        known = self.cases.get((case.code, case.key))
        if case.bytes >= self.least and (known is None or case.bytes > known.bytes):
            self.cases[case.code, case.key] = case


def judge(record: Record, *, failed: bool = False) -> tuple[Finding, ...]:
    """Findings of a run, what concerns most bytes first.

    Args:
        record: What was seen.
        failed: Whether an exception ended the run: then what a step held is no fault.
    """
    judge = _Judge(record, failed)
    for look in record.looks:
        _simple(judge, look)
        _hooks(judge, look)
        _cycles(judge, look)
        _graphs(judge, look)
        _overlaps(judge, look)
        _copies(judge, look)
    _views(judge)
    _growing(judge)
    _risen(judge)
    _collected(judge)
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NORMAL: 2, Severity.INFO: 3}
    cases = sorted(_joined(_causes(judge.cases)), key=lambda c: (order[c.severity], -c.bytes))
    shown: Counter[str] = Counter()
    findings = []
    for case in cases:
        shown[case.code] += 1
        if shown[case.code] <= MANY:
            advice = (Advice(case.advice or ADVICE[case.code]),)
            findings.append(
                Finding(case.code, case.severity, case.bytes, case.title, case.evidence, advice)
            )
    return tuple(findings)


def _causes(cases: dict[tuple[str, str], _Case]) -> list[_Case]:
    """Without lists that gather views of larger storages, where copies would be small."""
    views = {key: case.bytes for (code, key), case in cases.items() if code == "holder.view"}
    return [
        case
        for (code, key), case in cases.items()
        if code != "holder.list" or 2 * views.get(key, 0) < case.bytes
    ]


def _joined(cases: Iterable[_Case]) -> list[_Case]:
    """Takes what is on its way between two lines, under no name yet, for what had one before."""
    joined = {id(case): case for case in cases}
    named = {(c.code, _made_at(c)): c for c in joined.values() if _has_name(c)}
    for case in list(joined.values()):
        twin = None if _has_name(case) else named.get((case.code, _made_at(case)))
        if twin is not None:
            del joined[id(case)]
            if case.bytes > joined[id(twin)].bytes:
                joined[id(twin)] = replace(case, evidence=(twin.evidence[0], *case.evidence[1:]))
    return list(joined.values())


def _has_name(case: _Case) -> bool:
    return not case.evidence[0].startswith("held by: .")


def _made_at(case: _Case) -> str:
    return next((text for text in case.evidence if text.startswith("made at: ")), "")


def _groups(look: Look, headings: Iterable[Heading]) -> Iterator[tuple[str, list[Holder]]]:
    wanted = frozenset(headings)
    groups: dict[str, list[Holder]] = defaultdict(list)
    for holder in look.holders.holders:
        if holder.heading in wanted:
            groups[_without_line(holder.key)].append(holder)
    yield from groups.items()


def _total(holders: Iterable[Holder]) -> int:
    return sum(holder.bytes for holder in holders)


def _made(look: Look, holders: Iterable[Holder]) -> str:
    """The lines that made most of the bytes."""
    lines: Counter[str] = Counter()
    for holder in holders:
        birth = look.births.get(holder.storage)
        if birth is not None and birth.lines:
            file, line, name = birth.lines[0]
            lines[f"{short_file(file)}:{line} {name}"] += holder.bytes
    return ", ".join(text for text, _ in lines.most_common(2))


def _evidence(look: Look, holders: list[Holder], *more: str) -> tuple[str, ...]:
    largest = max(holders, key=lambda h: h.bytes)
    lines = [f"held by: {largest.chain}", *more]
    made = _made(look, holders)
    if made:
        lines.append(f"made at: {made}")
    lines.append(f"{len(holders):,} storages, seen after {look.operation:,} operations")
    return tuple(lines)


def _simple(judge: _Judge, look: Look) -> None:
    for code, heading, what in (
        ("holder.exception", Heading.EXCEPTION, "the frames of an exception that is kept"),
        ("holder.ctx", Heading.CTX, "attributes of an autograd Function's ctx"),
    ):
        for key, group in _groups(look, [heading]):
            size = _total(group)
            title = f"{format_bytes(size)} live only through {what}"
            judge.add(_Case(code, key, size, title, _evidence(look, group)))


def _hooks(judge: _Judge, look: Look) -> None:
    groups: dict[str, list[Holder]] = defaultdict(list)
    for holder in look.holders.holders:
        if holder.heading is Heading.HOOK:
            groups[holder.hook].append(holder)
    for hook, group in groups.items():
        size = _total(group)
        title = f"{format_bytes(size)} kept by what a hook stores"
        judge.add(
            _Case("holder.hook", hook, size, title, _evidence(look, group, f"stored by: {hook}"))
        )


def _cycles(judge: _Judge, look: Look) -> None:
    for key, group in _groups(look, [Heading.CYCLE]):
        cycle = group[0].cycle
        if cycle is None:
            continue
        size = _total(group)
        title = f"{format_bytes(size)} in dropped objects that refer to themselves"
        evidence = _evidence(look, group)
        if "(set on ctx)" in cycle.text:  # the one cause; no collector would help
            title = f"{format_bytes(size)} kept by an output that was set on its own ctx"
            judge.add(_Case("holder.ctx", key, size, title, evidence))
            continue
        advice = _GRADIENT_CYCLE if cycle.through_graph else _CYCLE
        judge.add(_Case("holder.cycle", key, size, title, evidence, advice=advice))
        if not look.collecting and not cycle.through_graph:
            title = f"{format_bytes(size)} wait for the garbage collector, which is switched off"
            judge.add(_Case("holder.gc_off", "", size, title, evidence))
    for chain, size, cycle in look.holders.live_cycles:
        title = f"{format_bytes(size)} in a gradient whose graph leads back to its parameter"
        text = (f"parameter: {chain}", f"cycle: {cycle.text}")
        case = _Case("holder.cycle", cycle.text, size, title, text, advice=_GRADIENT_CYCLE)
        judge.add(case)


def _graphs(judge: _Judge, look: Look) -> None:
    for key, group in _groups(look, [Heading.GRAPH]):
        births = [(h, b) for h in group if (b := look.births.get(h.storage)) is not None]
        outlived = [h for h, b in births if _passes_outlived(judge, b) >= SURVIVED]
        unused = [h for h, b in births if _never_used(judge, b)]
        if outlived and _total(outlived) >= judge.least:
            passes = max(_passes_outlived(judge, look.births[h.storage]) for h in outlived)
            size = _total(outlived)
            title = f"{format_bytes(size)} of saved tensors outlived {passes} backward passes"
            judge.add(_Case("holder.graph", key, size, title, _evidence(look, outlived)))
        elif unused and _repeats(look, unused) >= MANY:
            size = _total(unused)
            title = f"{format_bytes(size)} saved for a backward pass that never came"
            judge.add(_Case("holder.graph", key, size, title, _evidence(look, unused)))


def _passes_outlived(judge: _Judge, birth: Birth) -> int:
    return (birth.fate_passes if birth.fate else judge.record.passes) - birth.passes


def _never_used(judge: _Judge, birth: Birth) -> bool:
    if birth.fate:
        return birth.fate == "dropped"
    return not judge.failed


def _repeats(look: Look, holders: list[Holder]) -> int:
    lines = Counter(look.births[h.storage].lines[:1] for h in holders)
    lines.pop((), None)  # too small for its line to be noted
    return max(lines.values(), default=0)


def _overlaps(judge: _Judge, look: Look) -> None:
    if look.why != "peak":
        return
    here = {(name, file): line for file, line, name in look.lines}
    groups: dict[tuple[str, str, int], list[Holder]] = defaultdict(list)
    for holder in look.holders.holders:
        birth = look.births.get(holder.storage)
        variable = _variable(holder)
        if birth is None or holder.heading not in _NAMED or not variable:
            continue
        for file, line, name in birth.lines:
            if here.get((name, file)) == line:
                groups[variable, file, line].append(holder)
                break
    for (variable, file, line), group in groups.items():
        size = _total(group)
        if size * 10 < look.live or not _only_stores(look, variable, file, line):
            continue
        title = f"{format_bytes(size)} of the old `{variable}` live while the new one is made"
        text = f"{short_file(file)}:{line} binds `{variable}` again only when its new value is done"
        severity = Severity.WARNING if size * 4 >= look.live else Severity.INFO
        case = _Case("holder.overlap", f"{variable} {line}", size, title, (text,), severity)
        judge.add(case)


def _variable(holder: Holder) -> str:
    """Name of the local or global variable that a chain begins with."""
    words = holder.chain.split(" ", 2)
    if holder.kinds and holder.kinds[0] in {"local", "global"} and len(words) > 1:
        return words[1].split(".")[0].split("[")[0]
    return ""


def _only_stores(look: Look, variable: str, file: str, line: int) -> bool:
    """Whether a running line binds the name and does not read it."""
    for frame in look.running:
        if frame.code.co_filename != file or frame.line != line:
            continue
        stored = loaded = False
        current = 0
        for step in dis.get_instructions(frame.code):
            current = step.positions.lineno if step.positions and step.positions.lineno else current
            if current == line and step.argval == variable:
                stored |= step.opname.startswith("STORE")
                loaded |= step.opname.startswith("LOAD")
        if stored and not loaded:
            return True
    return False


def _copies(judge: _Judge, look: Look) -> None:
    """A second set of the parameters, such as a loaded checkpoint that is still bound."""
    sizes = Counter(h.bytes for h in look.holders.holders if h.heading is Heading.PARAMETER)
    total = sum(size * count for size, count in sizes.items())
    if len(list(sizes.elements())) < 2 or total * 10 < look.live:
        return
    groups: dict[str, list[Holder]] = defaultdict(list)
    for holder in look.holders.holders:
        if holder.heading is Heading.CONTAINER and (variable := _variable(holder)):
            groups[variable].append(holder)
    for variable, group in groups.items():
        if sizes <= Counter(h.bytes for h in group):
            size = _total(group)
            title = f"{format_bytes(size)} in `{variable}` are a second copy of the parameters"
            evidence = _evidence(look, group)
            advice = (
                "load it on the host (map_location='cpu') and del it once it has been copied in"
            )
            judge.add(_Case("holder.overlap", variable, size, title, evidence, advice=advice))


def _views(judge: _Judge) -> None:
    """Small views that pin large storages: seen more than once, or gathered until the end."""
    seen: Counter[int] = Counter()
    for look in judge.record.looks:
        groups: dict[str, list[Holder]] = defaultdict(list)
        for holder in look.holders.holders:
            hidden = holder.bytes - holder.visible
            plain = holder.heading in _NAMED and "graph" not in holder.kinds
            if plain and hidden * 2 > holder.bytes:
                birth = look.births.get(holder.storage)
                serial = birth.serial if birth is not None else -holder.storage
                seen[serial] += 1
                gathered = look.why == "end" and holder.heading is Heading.CONTAINER
                if seen[serial] > 1 or gathered:
                    groups[_without_line(holder.key)].append(holder)
        for key, group in groups.items():
            if len(group) == 1 and look.why == "end":
                continue  # what the last step left
            hidden = sum(h.bytes - h.visible for h in group)
            visible = format_bytes(sum(h.visible for h in group))
            title = f"{format_bytes(hidden)} pinned by views that show only {visible}"
            judge.add(_Case("holder.view", key, hidden, title, _evidence(look, group)))


def _growing(judge: _Judge) -> None:
    """Containers and variables that hold more at every look."""
    sizes: dict[str, list[tuple[Look, list[Holder]]]] = defaultdict(list)
    for look in judge.record.looks:
        for key, group in _groups(look, [Heading.CONTAINER, Heading.VARIABLE]):
            sizes[key].append((look, group))
    for key, moments in sizes.items():
        grown = 1
        for (_, before), (look, after) in itertools.pairwise(moments):
            grown = grown + 1 if _total(after) > _total(before) else 1
            size = _total(after)
            if grown >= MANY and size * 4 >= look.live:
                title = f"{format_bytes(size)} gathered, and more at every look"
                judge.add(_Case("holder.list", key, size, title, _evidence(look, after)))


_RISEN = {
    Heading.GRAPH: "holder.graph",
    Heading.HOOK: "holder.hook",
    Heading.CTX: "holder.ctx",
    Heading.CONTAINER: "holder.list",
    Heading.VARIABLE: "holder.list",
    Heading.CLOSURE: "holder.list",
}


def _risen(judge: _Judge) -> None:
    """Where live bytes rise from step to step: what holds as much more now than some steps ago."""
    rise = rise_of(judge.record.steps)
    looks = judge.record.looks
    if rise is None or len(looks) < 2:
        return
    before = next((look for look in looks if look.steps >= SETTLED), None)
    if before is None:
        return
    for look in looks:
        steps = look.steps - before.steps
        if steps < MANY or look.why not in AT_REST:  # a step holds its own graph and inputs
            continue
        for heading, code in _RISEN.items():
            earlier = {key: _total(group) for key, group in _groups(before, [heading])}
            for key, group in _groups(look, [heading]):
                size = _total(group) - earlier.get(key, 0)
                if size * MANY >= rise.bytes_per_step * steps:
                    title = f"{format_bytes(size)} more than {steps} steps before, and rising"
                    judge.add(_Case(code, key, size, title, _evidence(look, group)))


def _without_line(key: str) -> str:
    """A chain without the line its frame is at, which moves."""
    head, mark, rest = key.partition(":")
    return head + (")" + rest.partition(")")[2] if mark else "")


def _collected(judge: _Judge) -> None:
    size = sum(judge.record.collected)
    if any(code in {"holder.cycle", "holder.ctx"} for code, _ in judge.cases):
        return
    title = f"{format_bytes(size)} were freed only by the garbage collector"
    count = len(judge.record.collected)
    text = (f"{count:,} collections freed them: they lay in reference cycles",)
    judge.add(_Case("holder.cycle", "collected", size, title, text, advice=_CYCLE))
