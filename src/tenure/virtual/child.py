"""The process of one trial: python -m tenure.virtual.child FOLDER."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path

from tenure.errors import TenureError
from tenure.virtual.foretelling import Requests
from tenure.virtual.running import run_script
from tenure.virtual.trials import ASKED, Outcome, Trial
from tenure.virtual.verdict import fit_of, fits_of


def main(folder: Path) -> None:
    """Runs the trial that a folder describes, and writes its outcome there."""
    begun = time.monotonic()
    trial = Trial(**json.loads((folder / ASKED).read_text()))
    version = trial.torch_version
    run = run_script(
        trial.script,
        list(trial.arguments),
        trial.gpu,
        conf=trial.conf,
        torch_version=(version[0], version[1]) if version else None,
        unlimited=True,
        steps=trial.steps,
        change=trial.change,
    )
    peak = run.peak()
    sizes = peak["allocated"], peak["reserved"]
    limited = bool(run.memory.failed)  # by a limit that the script set itself
    error = "" if limited else run.error
    trace = functools.cache(run.trace)
    cards = () if error or limited else fits_of(trace, *sizes)
    outcome = Outcome(
        fits=not error and not limited and fit_of(run.memory.card, trace, *sizes).fits,
        allocated=sizes[0],
        reserved=sizes[1],
        error=error,
        stopped=run.stopped,
        traits=run.traits,
        assumptions=sum(run.assumptions.values()),
        cards={f.card.name: "tight" if f.tight else "yes" if f.fits else "no" for f in cards},
        seconds=time.monotonic() - begun,
        conf=run.memory.settings.conf,
        requests=Requests.of(run.memory) if trial.keeps_requests and not error else None,
    )
    outcome.write(folder)


if __name__ == "__main__":
    code = 0
    try:
        main(Path(sys.argv[1]))
    except TenureError as error:
        sys.stderr.write(f"tenure: {error}\n")
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # The backward pass's threads abort a process that ends in the usual way without a device.
    os._exit(code)
