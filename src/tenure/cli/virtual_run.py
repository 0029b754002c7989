"""tenure run --gpu: a script on a card that is not there."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import click

from tenure.cli.options import check_output, emit
from tenure.errors import UsageError
from tenure.settings import parse_alloc_conf


def run_on_virtual_gpu(script: str, arguments: list[str], options: dict[str, Any]) -> int:
    """Runs the script and reports; does not come back where the script ran.

    Args:
        script: Its path.
        arguments: Its own.
        options: gpu, torch_version, conf, snapshot, as_json, output, force.

    Raises:
        UsageError: Something asked for cannot be.
    """
    from tenure.virtual import run_script

    for file in (options["output"], options["snapshot"]):
        check_output(file, force=options["force"])
    parse_alloc_conf(options["conf"] or "", torch_version=options["torch_version"])
    run = run_script(
        script,
        arguments,
        options["gpu"],
        conf=options["conf"] or "",
        torch_version=options["torch_version"],
    )
    code = run.exit_code
    try:
        _report(run, script, options)
    except UsageError as error:
        click.echo(f"tenure: {error}", err=True)
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # The backward pass's threads abort a process that ends in the usual way without a device.
    os._exit(code)


def _report(run: Any, script: str, options: dict[str, Any]) -> None:
    from tenure.diagnoses import explain
    from tenure.reports import explanation_dict, explanation_text

    if options["snapshot"]:
        _save(run.snapshot(), options["snapshot"])
    if not run.memory.actions:
        click.echo("tenure: the script asked for no GPU memory", err=True)
        return
    trace = run.trace()
    verdict = run.verdict(trace)
    explanation = explain(trace)
    if options["as_json"]:
        value = explanation_dict(explanation, script)
        value["peak"].update(run.peak())
        value["virtual"] = verdict.as_dict()
        text = json.dumps(value, indent=2) + "\n"
    else:
        text = verdict.text() + "\n" + explanation_text(explanation)
    if options["output"]:
        emit(text, options["output"])
    else:
        click.echo(text, err=True)  # stdout is the script's


def _save(snapshot: Any, target: str) -> None:
    """A plain pickle, or a compressed one by its ending."""
    data = pickle.dumps(snapshot, protocol=4)
    path = Path(target)
    try:
        if path.suffix in {".xz", ".gz"}:
            import gzip
            import lzma

            data = (lzma if path.suffix == ".xz" else gzip).compress(data)
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
