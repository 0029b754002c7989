"""tenure replay FILE..."""

from __future__ import annotations

import time
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


@click.command("replay")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--conf", help="Settings as in PYTORCH_CUDA_ALLOC_CONF; default: the recorded ones.")
@click.option(
    "--capacity", metavar="SIZE", callback=as_size, help="Limit on reserved memory, such as 14GiB."
)
@click.option(
    "--rules",
    type=click.Choice(["torch", "elastic"]),
    help="Whose rules; default: the recorded ones.",
)
@file_options
def command(files: tuple[str, ...], **options: Any) -> int:
    """Replay PyTorch memory snapshots through the allocator.

    Under the recorded settings every address, every segment and the end state are compared with
    the record; under others (--conf, --capacity, --torch-version) it says what would have been.
    A file is a snapshot, also .xz .gz .zst, or - for standard input.
    """
    from tenure.reports import replay_dict, replay_text

    check_output(options["output"], force=options["force"])
    values, texts, code = [], [], 0
    for file in files:
        result, seconds = _replay(file, options)
        values.append(replay_dict(result, file, seconds))
        texts.append(replay_text(result, file, seconds))
        if result.statistics["num_ooms"] or (result.compared and not result.exact):
            code = 1
    emit(as_json_text(values) if options["as_json"] else "\n".join(texts), options["output"])
    return code


def _replay(file: str, options: dict[str, Any]) -> tuple[Any, float]:
    from tenure.replays import replay
    from tenure.snapshots import load

    begin = time.perf_counter()
    progress(f"reading {file}")
    trace = load(file, device=options["device"], torch_version=options["torch_version"])
    seconds = time.perf_counter() - begin
    progress("replaying")
    result = replay(
        trace,
        conf=options["conf"],
        capacity=options["capacity"],
        torch_version=options["torch_version"],
        rules=options["rules"],
    )
    progress_done()
    return result, seconds
