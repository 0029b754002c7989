"""Runs of one script with something changed, each in a fresh process, to compare what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tenure.errors import UsageError
from tenure.virtual.foretelling import Requests
from tenure.virtual.traits import Traits

ASKED, _ANSWER, _REQUESTS = "asked.json", "answer.json", "requests.npz"  # in a trial's folder
STEPS = 3  # from the second step on a job of fixed shapes has its peak; the third shows growth
_TOGETHER = 2  # processes at a time: each takes a core and about 1 GiB


@dataclass(frozen=True)
class Trial:
    """One run to make.

    Attributes:
        script: Path of the script.
        arguments: Its own.
        gpu: A card's name or its memory.
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF; None takes that variable.
        torch_version: Whose allocator is asked; None: 2.11.
        steps: The run ends after so many steps of an optimizer; 0: with the script.
        change: Name of a change to make (`changes.CHANGES`); empty for none.
        environment: Variables to set.
        keeps_requests: Whether the outcome says what the run asked for.
    """

    script: str
    arguments: tuple[str, ...]
    gpu: str
    conf: str | None = None
    torch_version: tuple[int, int] | None = None
    steps: int = STEPS
    change: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    keeps_requests: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run needed, were there no limit; sizes in bytes.

    Attributes:
        fits: Whether it would have run on the card without running out of memory.
        allocated: At its peak.
        reserved: At its peak.
        error: The last line of what ended the script; empty if it ended well, or was stopped.
        seconds: How long it ran, the start of the process included.
        stopped: Whether it was ended after the steps that were asked for.
        traits: What it was seen to do.
        assumptions: How many values were assumed.
        cards: Name of each card in the table -> "yes", "tight" or "no", smallest first.
        conf: Settings that were in force.
        requests: What it asked for, where the trial keeps that.
    """

    fits: bool
    allocated: int = 0
    reserved: int = 0
    error: str = ""
    seconds: float = 0.0
    stopped: bool = False
    traits: Traits = field(default_factory=Traits)
    assumptions: int = 0
    cards: dict[str, str] = field(default_factory=dict)
    conf: str = ""
    requests: Requests | None = None

    def write(self, folder: Path) -> None:
        """Writes it into a folder."""
        value = {**vars(self), "traits": self.traits.as_dict()}
        requests = value.pop("requests")
        if requests is not None:
            requests.save(folder / _REQUESTS)
        (folder / _ANSWER).write_text(json.dumps(value))

    @staticmethod
    def read(folder: Path) -> Outcome | None:
        """Reads what `write` wrote; None if it did not."""
        if not (folder / _ANSWER).exists():
            return None
        value = json.loads((folder / _ANSWER).read_text())
        requests = folder / _REQUESTS
        return Outcome(
            **{**value, "traits": Traits.from_dict(value["traits"])},
            requests=Requests.read(requests) if requests.exists() else None,
        )


def run_trials(
    trials: Iterable[Trial],
    timeout: float | None = None,
    done: Callable[[Trial, Outcome], None] = lambda _trial, _outcome: None,
) -> list[Outcome]:
    """Runs each in a process of its own, as many at a time as there are cores, at most two.

    Args:
        trials: What to run.
        timeout: Seconds after which a run is ended, which its outcome says; None for none.
        done: Called as each ends.

    Raises:
        UsageError: A virtual GPU cannot be had here.
    """

    def one(trial: Trial) -> Outcome:
        outcome = run_trial(trial, timeout)
        done(trial, outcome)
        return outcome

    with ThreadPoolExecutor(min(_TOGETHER, os.cpu_count() or 1)) as pool:
        return list(pool.map(one, trials))


def run_trial(trial: Trial, timeout: float | None = None) -> Outcome:
    """One run; the script's output goes nowhere but into the outcome's error."""
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        (Path(folder) / ASKED).write_text(json.dumps(asdict(trial)))
        command = [sys.executable, "-m", "tenure.virtual.child", folder]
        try:
            ended = subprocess.run(  # noqa: S603  this interpreter, with a module of this package
                command,
                env={**os.environ, **trial.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return Outcome(fits=False, error=f"took more than {timeout:.0f} s, and was ended")
        said = [line for line in ended.stderr.splitlines() if line.strip()]
        outcome = Outcome.read(Path(folder))
        if outcome is None:
            last = said[-1] if said else "no message"
            if ended.returncode == UsageError.exit_code:
                raise UsageError(last.removeprefix("tenure: "))
            return Outcome(fits=False, error=f"the process ended ({ended.returncode}): {last}")
        return outcome
