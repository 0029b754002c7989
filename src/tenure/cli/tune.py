"""tenure tune FILE..."""

from __future__ import annotations

import sys
from typing import Any

import click

from tenure.cli.options import (
    as_json_text,
    as_size,
    check_output,
    emit,
    file_options,
    progress,
    progress_done,
)


@click.command("tune")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--capacity", metavar="SIZE", callback=as_size, help="Must run in that, as 14GiB.")
@click.option("--gpu", metavar="NAME", help="Must run on that card, such as h100 or rtx4090.")
@file_options
def command(files: tuple[str, ...], **options: Any) -> int:
    """Find the allocator settings under which this run needs least memory.

    Replays the snapshot under some twenty settings and says for each what it reserves at its peak
    and the smallest card on which the whole run fits: two different questions. The last rows are
    the best placement there is and the bound that nothing can beat.
    """
    from tenure.reports import tuning_dict, tuning_text  # numpy loads only here

    check_output(options["output"], force=options["force"])
    values, texts, code = [], [], 0
    for file in files:
        tuning = _tune(file, options)
        values.append(tuning_dict(tuning, file))
        texts.append((f"{file}\n\n" if len(files) > 1 else "") + tuning_text(tuning))
        if tuning.best is None:
            code = 1
    emit(as_json_text(values) if options["as_json"] else "\n".join(texts), options["output"])
    return code


def _tune(file: str, options: dict[str, Any]) -> Any:
    from tenure.cards import card_named
    from tenure.snapshots import load
    from tenure.verbs import tune

    card = card_named(options["gpu"]) if options["gpu"] else None
    capacity = options["capacity"] or (card.usable if card else None)
    progress(f"reading {file}")
    trace = load(file, device=options["device"], torch_version=options["torch_version"])
    progress_done()
    if not sys.stderr.isatty():
        return tune(trace, capacity=capacity)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying under each setting", total=None)
        return tune(
            trace,
            capacity=capacity,
            progress=lambda done, all_: bar.update(task, completed=done, total=all_),
        )
