"""Run a script, or a block of code, on a card that is not there."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.cards import Card, card_named
from tenure.errors import UsageError
from tenure.settings import DEFAULT_VERSION, AllocatorSettings, parse_alloc_conf
from tenure.virtual import recording, stand_ins
from tenure.virtual.ending import EnoughSteps, exit_code
from tenure.virtual.memory import Memory
from tenure.virtual.obstacles import hint_for, line_of
from tenure.virtual.shim import CurrentStream, load_shim
from tenure.virtual.traits import Traits
from tenure.virtual.verdict import Verdict, judge

if TYPE_CHECKING:
    from tenure.traces import Trace


@dataclass
class VirtualRun:
    """What a run on a virtual card asked for.

    Attributes:
        memory: The card's memory with its record.
        exit_code: Of the script.
        assumptions: What had to be assumed, with its line, and how often.
        decisive: Those by which the script may have decided what to do.
        operators: How often each operator ran.
        error: The last line of what ended the script; empty if it ended well.
        error_at: The line of the script at which it ended.
        hint: Why, and what to try, where a virtual GPU is the reason.
        unmodelled: Operators that take memory for which there is no rule, with how often they ran.
        reach: Most bytes allocated, had they taken much (`unmodelled.Unmodelled`).
        traits: What the script was seen to do that decides which changes are worth trying.
        seconds: How long it ran.
        stopped: Whether it was ended after the steps that were asked for.
        main: The script's module: while it is kept, so is what the script left on the card.
    """

    memory: Memory
    exit_code: int = 0
    assumptions: dict[str, int] = field(default_factory=dict)
    decisive: set[str] = field(default_factory=set)
    operators: dict[str, int] = field(default_factory=dict)
    error: str = ""
    error_at: str = ""
    hint: str = ""
    unmodelled: dict[str, int] = field(default_factory=dict)
    reach: int = 0
    traits: Traits = field(default_factory=Traits)
    seconds: float = 0.0
    stopped: bool = False
    main: types.ModuleType | None = None

    def peak(self) -> dict[str, int]:
        """Bytes requested, allocated, active and reserved at their peaks."""
        return self.memory.peak()

    def snapshot(self) -> dict[str, Any]:
        """The run as torch.cuda.memory._snapshot() would give it."""
        return recording.plain_snapshot(self.memory)

    def trace(self) -> Trace:
        """The run as a trace: replay, tune and explain take it."""
        return recording.trace(self.memory)

    def verdict(self, trace: Trace | None = None) -> Verdict:
        """Whether it fits, on which cards, and what that rests on.

        Args:
            trace: Of this run, if it is there already.
        """
        return judge(self, self.trace if trace is None else lambda: trace)


# As PyTorch reads them: the first that is set holds.
CONF_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def virtual_settings(
    card: Card, conf: str | None, torch_version: tuple[int, int] | None
) -> AllocatorSettings:
    """The allocator's settings on a card; with no conf, those of the environment."""
    if conf is None:
        conf = next((os.environ[name] for name in CONF_VARIABLES if os.environ.get(name)), "")
    base = AllocatorSettings(device_memory=card.total)
    return parse_alloc_conf(conf, torch_version=torch_version or DEFAULT_VERSION, base=base)


@contextlib.contextmanager
def virtual_gpu(
    gpu: str | Card,
    *,
    conf: str | None = None,
    torch_version: tuple[int, int] | None = None,
    unlimited: bool = False,
) -> Iterator[VirtualRun]:
    """Makes a card that is not there: inside, tensors on `cuda` have sizes but no data.

    Args:
        gpu: A card's name, such as "h100", or its memory, such as "24GiB".
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF; None takes that variable.
        torch_version: Whose allocator is asked; 2.11 by default.
        unlimited: The card's kernels, but memory without end, to find out how much is needed.

    Raises:
        UsageError: No such card or setting; or torch was imported before the first virtual GPU.
    """
    card = gpu if isinstance(gpu, Card) else card_named(gpu)
    if conf is not None:
        virtual_settings(card, conf, torch_version)  # wrong ones are refused before anything runs
    current = _prepare()
    from tenure.virtual.stage import Stage

    memory = Memory(card, lambda: virtual_settings(card, conf, torch_version), unlimited=unlimited)
    run = VirtualRun(memory)
    stage = Stage(run.memory, current)
    try:
        with stage:
            yield run
    finally:
        run.assumptions = dict(stage.shadows.assumptions)
        run.decisive = stage.shadows.decisive
        run.unmodelled, run.reach = stage.unmodelled.counts, stage.unmodelled.reach
        run.operators = {str(f): n for f, n in stage.tracker.operators.items()}


_prepared: list[CurrentStream] = []


def _prepare() -> CurrentStream:
    """Loads the shim, then torch: once a process."""
    if _prepared:
        return _prepared[0]
    library = load_shim()
    # Before torch.cuda is patched: it refuses functions under two names.
    importlib.import_module("torch._dynamo")
    # rich draws from `random` when it is imported: before the script has seeded it, not after.
    importlib.import_module("rich.style")
    stand_ins.install()

    library.tenure_install_guard()
    _prepared.append(CurrentStream(library))
    return _prepared[0]


def run_script(
    script: str,
    arguments: list[str],
    gpu: str,
    *,
    conf: str | None = None,
    torch_version: tuple[int, int] | None = None,
    unlimited: bool = False,
    steps: int = 0,
    change: str = "",
) -> VirtualRun:
    """Runs a script as `python SCRIPT ARGUMENTS...` would, on a virtual card.

    Args:
        script: Its path.
        arguments: What it finds in sys.argv.
        gpu: A card's name or its memory.
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF; None takes that variable.
        torch_version: Whose allocator is asked; 2.11 by default.
        unlimited: The card's kernels, but memory without end.
        steps: Ends the script after so many steps of an optimizer; 0 lets it run to its end.
        change: Name of a change to make to what it does (`changes.CHANGES`).

    Raises:
        UsageError: No such script, card or setting; no torch, or one that was not tried.
    """
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"{script}: no such script ({error.strerror}); check the path") from None
    before = sys.argv, list(sys.path), sys.modules.get("__main__")
    sys.argv = [script, *arguments]
    sys.path[0:1] = [str(Path(script).resolve().parent)]
    try:
        with virtual_gpu(gpu, conf=conf, torch_version=torch_version, unlimited=unlimited) as run:
            from tenure.virtual import changes, traits

            begun = time.monotonic()
            with traits.watch(run.traits, steps), changes.make(change):
                _execute(run, script, source)
            run.seconds = time.monotonic() - begun
        return run
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is not None:
            sys.modules["__main__"] = before[2]


def _execute(run: VirtualRun, script: str, source: bytes) -> None:
    main = run.main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=script, __builtins__=__builtins__, __spec__=None, __cached__=None, __doc__=None
    )
    sys.modules["__main__"] = main
    try:
        exec(compile(source, script, "exec", dont_inherit=True), main.__dict__)  # noqa: S102
    except EnoughSteps:
        run.stopped = True
    except BaseException as error:  # noqa: BLE001  whatever ends a script ends it
        run.exit_code = exit_code(error)
        if run.exit_code:
            said = str(error).strip().splitlines()
            run.error = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
            run.error_at, run.hint = line_of(error), hint_for(error)
