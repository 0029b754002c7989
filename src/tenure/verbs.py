"""The public verbs: each takes a snapshot file or a trace that was loaded before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import tenure.reports.notebook  # noqa: F401  gives results the HTML that notebooks show
from tenure import diagnoses, plans, replays, snapshots
from tenure.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenure.diagnoses import Comparison, Explanation, Tuning
    from tenure.lifetimes.holders import Holders
    from tenure.plans import Plan
    from tenure.replays import Replay
    from tenure.traces import Trace


def load(
    source: str | os.PathLike[str],
    *,
    device: int | None = None,
    torch_version: tuple[int, int] | None = None,
) -> Trace:
    """Reads a PyTorch memory snapshot; nothing in the file is ever run.

    Args:
        source: A path, or "-" for standard input; .xz, .gz and .zst are told by their content.
        device: Which GPU; by default the only one with events.
        torch_version: Of the recording, such as (2, 11); by default as the file shows.

    Raises:
        BadInputError: The file is no snapshot, or broken; one line says what and where.
        UsageError: Several devices have events and none was named.
    """
    return snapshots.load(source, device=device, torch_version=torch_version)


def replay(
    source: Trace | str | os.PathLike[str],
    *,
    conf: str | None = None,
    capacity: int | str | None = None,
    torch_version: tuple[int, int] | None = None,
    rules: str | None = None,
    timeline: bool = False,
) -> Replay:
    """Puts a recorded trace through the allocator, as it was or under other settings.

    Args:
        source: A snapshot file, or a trace.
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF; default: the recorded ones, and then every
            address, segment and end block is compared with the record.
        capacity: Limit on reserved memory: bytes, or "14GiB".
        torch_version: Whose rules hold.
        rules: "torch", or "elastic": ours, which take no `conf`; default: the recorded ones.
        timeline: Keep the four byte counts after every event.

    Raises:
        BadInputError: The file is no snapshot, or holds no events.
        UsageError: An unknown setting or size.
    """
    trace = _trace(source, torch_version)
    return replays.replay(
        trace,
        conf=conf,
        capacity=capacity,
        torch_version=torch_version,
        rules=rules,
        timeline=timeline,
    )


def explain(
    source: Trace | str | os.PathLike[str], *, capacity: int | str | None = None
) -> Explanation:
    """Says what held the memory, what went wrong, and what would have changed it.

    Args:
        source: A snapshot file, or a trace.
        capacity: Ask about a limit on reserved memory: bytes, or "14GiB".

    Raises:
        BadInputError: The file is no snapshot.
    """
    limit = parse_size(capacity) if isinstance(capacity, str) else capacity
    return diagnoses.explain(_trace(source), capacity=limit)


def diff(
    before: Trace | str | os.PathLike[str],
    after: Trace | str | os.PathLike[str],
    *,
    at: str | None = None,
    fail_if: Sequence[str] = (),
) -> Comparison:
    """Says what grew from one snapshot to another, by line and category.

    Args:
        before: A snapshot file, or a trace.
        after: The same, of a later moment, another run, or after a change.
        at: "peak": what is live when most is; "end": when the snapshots were written. Default:
            "end" for two snapshots of one run, else "peak".
        fail_if: Budgets such as "live>+5%" or "site:model.py:40>1GiB"; the result's `broken` says
            whether one does not hold, its `verdicts` which.

    Raises:
        BadInputError: A file is no snapshot.
        UsageError: A budget cannot be read, or is about a line that neither snapshot has.
    """
    budgets = [diagnoses.read_budget(text) for text in fail_if]
    return diagnoses.compare(_trace(before), _trace(after), at=at, budgets=budgets)


def tune(
    source: Trace | str | os.PathLike[str],
    *,
    capacity: int | str | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Tuning:
    """Finds the allocator settings under which a run needs least memory.

    Args:
        source: A snapshot file, or a trace.
        capacity: What it has to run under: bytes, or "14GiB".
        progress: Called with how many settings are done, and how many there are.

    Raises:
        BadInputError: The file is no snapshot, or holds no events.
    """
    limit = parse_size(capacity) if isinstance(capacity, str) else capacity
    return diagnoses.tune(_trace(source), capacity=limit, progress=progress)


def plan(
    source: Trace | str | os.PathLike[str], *, seconds: float = 2.0, streams_apart: bool = False
) -> Plan:
    """Finds fixed places for all allocations of a run in as little memory as it can.

    Args:
        source: A snapshot file, or a trace.
        seconds: How long to search for a better one.
        streams_apart: Let no two streams share a byte.

    Raises:
        BadInputError: The file is no snapshot, or holds no allocations.
    """
    return plans.plan(_trace(source), seconds=seconds, streams_apart=streams_apart)


def holders(x: object = None, *, device: str | None = None, seconds: float = 5.0) -> Holders:
    """Says what holds a tensor, a storage, or every live byte of a device of this process.

    Nothing is kept alive, collected or changed, and no code of the program is run.

    Args:
        x: A tensor, a storage, or an address on a GPU; None for everything.
        device: "cuda", "cuda:1" or "cpu"; default: CUDA if it is in use, else the CPU.
        seconds: How long to look at most.

    Raises:
        UsageError: torch is not in use, or `x` is none of these.
    """
    from tenure.lifetimes.holders import holders

    return holders(x, device=device, seconds=seconds)


def _trace(
    source: Trace | str | os.PathLike[str], torch_version: tuple[int, int] | None = None
) -> Trace:
    if isinstance(source, (str, os.PathLike)):
        return load(source, torch_version=torch_version)
    return source
