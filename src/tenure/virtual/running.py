"""Run a script, or a block of code, on a card that is not there."""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.cards import Card, card_named
from tenure.errors import UsageError
from tenure.settings import DEFAULT_VERSION, AllocatorSettings, parse_alloc_conf
from tenure.virtual import recording, stand_ins
from tenure.virtual.memory import Memory
from tenure.virtual.shim import load_shim
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
        operators: How often each operator ran.
    """

    memory: Memory
    exit_code: int = 0
    assumptions: dict[str, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)

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


def virtual_settings(
    card: Card, conf: str, torch_version: tuple[int, int] | None
) -> AllocatorSettings:
    """The allocator's settings on a card."""
    base = AllocatorSettings(device_memory=card.total)
    return parse_alloc_conf(conf, torch_version=torch_version or DEFAULT_VERSION, base=base)


@contextlib.contextmanager
def virtual_gpu(
    gpu: str | Card, *, conf: str = "", torch_version: tuple[int, int] | None = None
) -> Iterator[VirtualRun]:
    """Makes a card that is not there: inside, tensors on `cuda` have sizes but no data.

    Args:
        gpu: A card's name, such as "h100", or its memory, such as "24GiB".
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF.
        torch_version: Whose allocator is asked; 2.11 by default.

    Raises:
        UsageError: No such card or setting; or torch was imported before the first virtual GPU.
    """
    card = gpu if isinstance(gpu, Card) else card_named(gpu)
    settings = virtual_settings(card, conf, torch_version)
    _prepare()
    from tenure.virtual.stage import Stage

    run = VirtualRun(Memory(card, settings))
    stage = Stage(run.memory)
    try:
        with stage:
            yield run
    finally:
        run.assumptions = dict(stage.shadows.assumptions)
        run.operators = {str(f): n for f, n in stage.tracker.operators.items()}


_shim: list[Any] = []


def _prepare() -> None:
    """Loads the shim, then torch: once a process."""
    if _shim:
        return
    library = load_shim()
    # Before torch.cuda is patched: it refuses functions under two names.
    importlib.import_module("torch._dynamo")
    # rich draws from `random` when it is imported: before the script has seeded it, not after.
    importlib.import_module("rich.style")
    stand_ins.install()

    library.tenure_install_guard()
    _shim.append(library)


def run_script(
    script: str,
    arguments: list[str],
    gpu: str,
    *,
    conf: str = "",
    torch_version: tuple[int, int] | None = None,
) -> VirtualRun:
    """Runs a script as `python SCRIPT ARGUMENTS...` would, on a virtual card.

    Args:
        script: Its path.
        arguments: What it finds in sys.argv.
        gpu: A card's name or its memory.
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF.
        torch_version: Whose allocator is asked; 2.11 by default.

    Raises:
        UsageError: No such script, card or setting; no torch; no compiler.
    """
    if not Path(script).is_file():
        raise UsageError(f"{script}: no such script; check the path")
    before = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path[0:1] = [str(Path(script).resolve().parent)]
    try:
        with virtual_gpu(gpu, conf=conf, torch_version=torch_version) as run:
            run.exit_code = _exit_code(script)
        return run
    finally:
        sys.argv, sys.path[:] = before


def _exit_code(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return int(leaving.code or 0)
        print(leaving.code, file=sys.stderr)  # noqa: T201  as Python itself does
        return 1
    except Exception as error:  # noqa: BLE001  a script may raise anything; Python prints it
        _print_traceback(error, script)
        return 1
    return 0


def _print_traceback(error: Exception, script: str) -> None:
    """As Python prints it, from the script's own frame on."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename != script:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error, traceback or error.__traceback__)
