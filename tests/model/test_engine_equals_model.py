"""The engine does what the reference model does: address for address, number for number.

Hypothesis makes up settings and a sequence of calls; both sides run each call, and after each call
everything that can be seen of them must be equal. A failure prints a short sequence of calls as a
script. `--hypothesis-profile=deep` searches fifty times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from model.reference_allocator import ReferenceAllocator
from model.reference_blocks import (
    DEFAULT_POOL,
    MIB,
    Block,
    ModelOutOfMemoryError,
    Pool,
    PoolId,
    PyTorchAbortsError,
    ReferenceDevice,
    Settings,
)
from tenure.errors import OutOfMemoryError

OUT_OF_MEMORY = "out of memory"

Call = tuple[Any, ...]  # name of a rule, then numbers that choose its arguments
Build = Callable[["Machine"], Any]


@dataclass(frozen=True)
class Machine:
    """What both sides are made of."""

    settings: Settings
    capacity: int
    placement: str

    def script(self) -> str:
        default = Settings()
        lines = ["s = _engine.Settings()"]
        for field in fields(Settings):
            value = getattr(self.settings, field.name)
            if value != getattr(default, field.name):
                lines.append(f"s.{field.name} = {value!r}")
        lines.append(f"d = _engine.VirtualDevice({self.capacity}, {self.placement!r})")
        lines.append("a = _engine.Allocator(s, d)")
        return "\n".join(lines)


def build_model(machine: Machine) -> ReferenceAllocator:
    device = ReferenceDevice(machine.capacity, machine.placement)
    return ReferenceAllocator(machine.settings, device)


def build_engine(machine: Machine) -> Any:
    engine = pytest.importorskip("tenure._engine", reason="needs the built engine")
    chosen = engine.Settings()
    for field in fields(Settings):
        setattr(chosen, field.name, getattr(machine.settings, field.name))
    return engine.Allocator(chosen, engine.VirtualDevice(machine.capacity, machine.placement))


class DifferenceError(AssertionError):
    """The two sides are not equal."""


class Twins:
    """The model and its counterpart, and what a caller of both has in its hands."""

    def __init__(self, machine: Machine, model: ReferenceAllocator, other: Any) -> None:
        self.model, self.other = model, other
        self.lines = machine.script().split("\n")
        self.live: list[int] = []
        self.pools: list[PoolId] = []  # in use
        self.released: list[PoolId] = []
        self.named_pools = 0
        self.captures = 0

    def both(self, name: str, *arguments: Any) -> Any:
        """Calls both, and compares what they return and all that can be seen afterwards."""
        self.lines.append(f"a.{name}({', '.join(map(repr, arguments))})")
        expected = attempt(self.model, name, arguments)
        found = attempt(self.other, name, arguments)
        self.lines[-1] += f"  # {expected}" if expected is not None else ""
        self.same("result", expected, found)
        for what in ("segment_events", "blocks", "statistics"):
            self.same(what, getattr(self.model, what)(), getattr(self.other, what)())
        self.model.check()
        self.other.check()
        return expected

    def same(self, what: str, expected: Any, found: Any) -> None:
        if expected == found:
            return
        if isinstance(expected, dict):
            keys = [k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k)]
            expected = {key: expected.get(key) for key in sorted(keys)}
            found = {key: found.get(key) for key in sorted(keys)}
        raise DifferenceError(f"{what}: the model has\n  {expected}\nthe other\n  {found}")

    def run(self, calls: list[Call]) -> None:
        try:
            for name, *choices in calls:
                getattr(self, name)(*choices)
        except PyTorchAbortsError:
            return  # beyond this point PyTorch has no behaviour to agree with

    # One method per rule. Choices are any numbers; they are taken modulo what there is.

    def allocate(self, size: int, stream: int, pool: int) -> None:
        usable = [DEFAULT_POOL, *self.pools]
        address = self.both("allocate", size, stream, usable[pool % len(usable)])
        if address not in {0, OUT_OF_MEMORY}:
            self.live.append(address)

    def free(self, choice: int) -> None:
        if self.live:
            self.both("free", self.live.pop(choice % len(self.live)))

    def free_some(self, first: int, step: int) -> None:
        """Frees every so manieth block: holes."""
        for address in self.live[first :: step + 1]:
            self.live.remove(address)
            self.both("free", address)

    def use(self, choice: int, stream: int) -> None:
        if self.live:
            self.both("record_stream", self.live[choice % len(self.live)], stream)

    def finish(self, stream: int) -> None:
        self.both("finish", stream)

    def empty_cache(self) -> None:
        self.both("empty_cache")

    def set_limit(self, limit: int) -> None:
        self.both("set_limit", limit)

    def create_pool(self, user: bool, use_on_oom: bool) -> None:
        self.named_pools += 1
        pool = (0, self.named_pools) if user else (self.named_pools, 0)
        self.both("create_pool", pool)
        self.pools.append(pool)
        if use_on_oom:
            self.both("set_use_on_oom", pool, True)

    def share_pool(self, choice: int) -> None:
        if self.pools:
            pool = self.pools[choice % len(self.pools)]
            self.both("create_pool", pool)
            self.pools.append(pool)

    def release_pool(self, choice: int) -> None:
        if self.pools:
            pool = self.pools.pop(choice % len(self.pools))
            if pool not in self.pools:
                self.both("set_use_on_oom", pool, False)  # as MemPool's end does
                self.released.append(pool)
            self.both("release_pool", pool)

    def empty_cache_pool(self, choice: int) -> None:
        pools = [*self.pools, *self.released]
        if pools:
            self.both("empty_cache_pool", pools[choice % len(pools)])

    def set_no_split(self, choice: int) -> None:
        if self.pools:
            self.both("set_no_split", self.pools[choice % len(self.pools)])

    def set_use_on_oom(self, choice: int, on: bool) -> None:
        if self.pools:
            self.both("set_use_on_oom", self.pools[choice % len(self.pools)], on)

    def begin_capture(self) -> None:
        self.captures += 1
        self.both("begin_capture")

    def end_capture(self) -> None:
        if self.captures:
            self.captures -= 1
            self.both("end_capture")

    def reset_peak(self) -> None:
        self.both("reset_peak")

    def reset_accumulated(self) -> None:
        self.both("reset_accumulated")


def difference(build: Build, machine: Machine, calls: list[Call]) -> str:
    """What differs and the script that shows it; empty if nothing does."""
    twins = Twins(machine, build_model(machine), build(machine))
    try:
        twins.run(calls)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the script leads to
        script = "\n".join(twins.lines)
        return f"{type(error).__name__}: {error}\n\n{script}"
    return ""


def shortest(build: Build, machine: Machine, calls: list[Call]) -> str:
    """The difference, shown with as few calls and settings as can be found quickly.

    Calls choose among what there is, so that any of them can be left out.
    """
    before: tuple[Machine, list[Call]] | None = None
    while before != (machine, calls):
        before = machine, calls
        for simpler in simpler_machines(machine):
            if difference(build, simpler, calls):
                machine = simpler
                break
        size = len(calls)
        while size:
            shorter = [calls[:at] + calls[at + size :] for at in range(0, len(calls), size)]
            found = next((some for some in shorter if difference(build, machine, some)), None)
            calls, size = (calls, size // 2) if found is None else (found, min(size, len(found)))
    return difference(build, machine, calls)


def simpler_machines(machine: Machine) -> Iterator[Machine]:
    for field in fields(Settings):
        if getattr(machine.settings, field.name) != field.default:
            default: dict[str, Any] = {field.name: field.default}
            yield replace(machine, settings=replace(machine.settings, **default))
    if machine.capacity >= 0:
        yield replace(machine, capacity=-1)
    if machine.placement != "descending":
        yield replace(machine, placement="descending")


def check_equal(build: Build, machine: Machine, calls: list[Call]) -> None:
    if difference(build, machine, calls):
        raise DifferenceError(shortest(build, machine, calls))


def attempt(allocator: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(allocator, name)(*arguments)
    except (ModelOutOfMemoryError, OutOfMemoryError):
        return OUT_OF_MEMORY


# --- what is drawn --------------------------------------------------------------------------------

ROOM = st.one_of(
    st.just(-1),
    st.integers(40, 300).map(lambda n: n * MIB),
    st.integers(100 * MIB, 1 << 30),
)
DIVISIONS = st.one_of(
    st.just((0,) * 16),
    st.sampled_from((1, 2, 4, 8, 32)).map(lambda n: (n,) * 16),
    st.lists(st.sampled_from((0, 1, 2, 4, 16)), min_size=16, max_size=16).map(tuple),
)
SETTINGS = st.builds(
    Settings,
    torch_version=st.sampled_from(((2, 11), (2, 12), (2, 13))),
    expandable_segments=st.booleans(),
    max_split_size=st.sampled_from((-1, -1, 20 * MIB, 24 * MIB, 40 * MIB)),
    max_non_split_rounding=st.sampled_from((20 * MIB, 20 * MIB, 32 * MIB)),
    large_segment_size=st.sampled_from((20 * MIB, 20 * MIB, 11 * MIB, 32 * MIB)),
    roundup_power2_divisions=DIVISIONS,
    garbage_collection_threshold=st.sampled_from((0.0, 0.0, 0.1, 0.5, 0.9)),
    limit=ROOM,
    # No smaller than the largest request that a reservation must hold.
    device_memory=st.sampled_from((256 * MIB, 150_109_880_320)),
)
MACHINES = st.builds(
    Machine, SETTINGS, ROOM, st.sampled_from(("descending", "descending", "ascending"))
)

BASIC = ["allocate"] * 16 + ["free"] * 8 + ["free_some"] * 3
# What a sequence is mostly about; a rule named more often is drawn more often.
MOODS = {
    "blocks": [*BASIC, "empty_cache", "set_limit", "reset_peak", "reset_accumulated"],
    "streams": [*BASIC, *["use"] * 8, *["finish"] * 4, "empty_cache"],
    "captures": [*BASIC, *["use"] * 8, "finish", *["begin_capture", "end_capture"] * 2],
    "overflow": [*BASIC, *["create_pool"] * 3, "release_pool", "set_limit"],
    "pools": [
        *BASIC,
        *["create_pool", "use", "finish"] * 2,
        *["share_pool", "release_pool", "empty_cache_pool", "set_no_split", "set_use_on_oom"],
        *["begin_capture", "end_capture", "empty_cache", "set_limit", "reset_peak"],
    ],
}
EDGES = [1, 512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 22 * MIB, 24 * MIB, 40 * MIB]
OFFSETS = [-MIB, -513, -512, -1, 0, 1, 512, 513, MIB]
PLAIN_SIZES = [512, 4096, 300 * 1024, MIB, 3 * MIB, 5 * MIB, 12 * MIB, 64 * MIB, 100 * MIB]


def any_size(random: Random) -> int:
    edge = max(random.choice(EDGES) + random.choice(OFFSETS), 0)
    small, large = random.randrange(3 * MIB), random.randrange(48 * MIB)
    return random.choice([random.choice(PLAIN_SIZES), edge, edge, small, large])


@st.composite
def sequences(draw: st.DrawFn, mood: str) -> list[Call]:
    """Up to 100 calls, most of whose requests are of a few sizes, so that free blocks tie."""
    random = draw(st.randoms(use_true_random=True))  # hundreds of draws would take far longer
    sizes = [any_size(random) for _ in range(random.randint(1, 5))]

    def stream() -> int:
        return random.choice([0, 0, 0, 0, 0, 1, 2, 3])

    def choice() -> int:
        return random.randrange(64)

    arguments: dict[str, Callable[[], Call]] = {
        "allocate": lambda: (random.choice([*sizes, any_size(random)]), stream(), choice()),
        "free_some": lambda: (random.randrange(4), random.randrange(4)),
        "use": lambda: (choice(), stream()),
        "finish": lambda: (stream(),),
        "set_limit": lambda: (random.choice([-1, random.randrange(400 * MIB)]),),
        "create_pool": lambda: (random.random() < 0.5, random.random() < 0.5),
        "set_use_on_oom": lambda: (choice(), random.random() < 0.5),
        **dict.fromkeys(
            ["free", "share_pool", "release_pool", "empty_cache_pool", "set_no_split"],
            lambda: (choice(),),
        ),
    }
    rules = random.choices(MOODS[mood], k=random.randint(1, 100))
    return [(rule, *(arguments[rule]() if rule in arguments else ())) for rule in rules]


thorough = settings(
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # `shortest` is faster than shrinking
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PROFILE = settings.default
EXAMPLES = PROFILE.max_examples if PROFILE else 100


# --- the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mood", MOODS)
@settings(thorough, max_examples=8 * EXAMPLES)
@given(machine=MACHINES, data=st.data())
def test_engine_equals_model(mood: str, machine: Machine, data: st.DataObject) -> None:
    check_equal(build_engine, machine, data.draw(sequences(mood)))


# --- the comparison itself ------------------------------------------------------------------------


class HighestAddressFirst(Pool):
    """A planted fault: ties between equal sizes go to the highest address."""

    def order(self, block: Block) -> tuple[int, ...]:
        return (block.stream, block.size, -block.address)


class ForgetsTheSecondNeighbour(Block):
    """A planted fault: a freed block merges with one neighbour at most."""

    def merge(self, other: Block | None) -> int:
        return 0 if other is not None and other is self.next else super().merge(other)


def with_highest_address_first(machine: Machine) -> ReferenceAllocator:
    model = build_model(machine)
    pair = model.pools[DEFAULT_POOL]
    pair.small, pair.large = (HighestAddressFirst(pair, small=s) for s in (True, False))
    return model


class SplitsAtEqual(ReferenceAllocator):
    """A planted fault: a remainder of exactly 1 MiB is split off a large block."""

    def should_split(self, request: Any, block: Block) -> bool:
        rest = block.size - request.size
        return super().should_split(request, block) or (not block.pool.small and rest == MIB)


class PollsNever(ReferenceAllocator):
    """A planted fault: events that are done are not noticed."""

    def process_events(self) -> None:
        pass


def with_class(kind: type[ReferenceAllocator]) -> Callable[[Machine], ReferenceAllocator]:
    return lambda machine: kind(
        machine.settings, ReferenceDevice(machine.capacity, machine.placement)
    )


@pytest.mark.parametrize(
    "faulty", [with_highest_address_first, with_class(SplitsAtEqual), with_class(PollsNever)]
)
def test_the_comparison_finds_a_planted_fault(
    faulty: Callable[[Machine], ReferenceAllocator],
) -> None:
    def differs(drawn: tuple[Machine, list[Call]]) -> bool:
        return "DifferenceError" in difference(faulty, *drawn)

    without_shrinking = settings(
        max_examples=3000, phases=[Phase.generate], derandomize=True, database=None
    )
    try:
        machine, calls = find(
            st.tuples(MACHINES, sequences("streams")), differs, settings=without_shrinking
        )
    except NoSuchExample:
        pytest.fail("the fault went unnoticed")
    assert len(shortest(faulty, machine, calls).split("\na.")) < 20  # calls in the script


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(MACHINES, sequences("pools"))
def test_the_model_equals_itself(machine: Machine, calls: list[Call]) -> None:
    check_equal(build_model, machine, calls)
