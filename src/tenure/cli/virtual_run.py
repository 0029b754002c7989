"""tenure run --gpu: a script on a card that is not there."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tenure.cli.options import as_version, emit, progress, progress_done
from tenure.errors import UsageError
from tenure.settings import parse_alloc_conf

OPTIONS = (
    click.option(
        "--torch-version",
        metavar="VERSION",
        callback=as_version,
        help="With --gpu: rules of that torch; default: 2.11.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(0),
        metavar="N",
        help="With --gpu: end after N optimizer steps; default: with the script, 3 when run again.",
    ),
    click.option(
        "--find-batch",
        metavar="ARG[=N]",
        help="With --gpu: the largest value of the script's argument that fits.",
    ),
    click.option(
        "--advise/--no-advise",
        default=None,
        help="With --gpu: run again with changes that save memory; default: if it does not fit.",
    ),
)


def virtual_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that only --gpu knows."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def refuse_virtual_options(options: dict[str, Any]) -> None:
    """Raises UsageError if one of them is given without --gpu."""
    for name in ("torch_version", "steps", "find_batch", "advise"):
        if options[name] is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --gpu")


def run_on_virtual_gpu(script: str, arguments: list[str], options: dict[str, Any]) -> int:
    """Runs the script and reports; does not come back where the script ran in this process.

    Args:
        script: Its path.
        arguments: Its own.
        options: Of the command.

    Raises:
        UsageError: Something asked for cannot be.
    """
    from tenure.virtual import run_script

    parse_alloc_conf(options["conf"] or "", torch_version=options["torch_version"])
    if options["find_batch"]:
        return _find_batch(script, arguments, options)
    run = run_script(
        script,
        arguments,
        options["gpu"],
        conf=options["conf"],
        torch_version=options["torch_version"],
        steps=options["steps"] or 0,
    )
    code = run.exit_code
    try:
        _report(run, script, arguments, options)
    except UsageError as error:
        click.echo(f"tenure: {error}", err=True)
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # The backward pass's threads abort a process that ends in the usual way without a device.
    os._exit(code)


def _trial(script: str, arguments: list[str], options: dict[str, Any]) -> Any:
    from tenure.virtual.trials import STEPS, Trial

    return Trial(
        script,
        tuple(arguments),
        options["gpu"],
        conf=options["conf"],
        torch_version=options["torch_version"],
        steps=STEPS if options["steps"] is None else options["steps"],
    )


def _find_batch(script: str, arguments: list[str], options: dict[str, Any]) -> int:
    """Searches, and prints what was found to stdout: the script's own output goes nowhere."""
    from tenure.cards import card_named
    from tenure.virtual.batches import find_batch

    def note(label: str, value: int, outcome: Any) -> None:
        answer = outcome.error or ("fits" if outcome.fits else "does not fit")
        click.echo(f"tenure: {label} {value}: {answer}", err=True)

    trial = _trial(script, arguments, options)
    found = find_batch(options["find_batch"], trial, card_named(options["gpu"]).usable, note)
    text = json.dumps(found.as_dict(), indent=2) + "\n" if options["as_json"] else found.text()
    emit(text, options["output"])
    return 0 if found.largest is not None else 1


def _report(run: Any, script: str, arguments: list[str], options: dict[str, Any]) -> None:
    from tenure.diagnoses import explain
    from tenure.reports import explanation_dict, explanation_text

    if options["snapshot"]:
        _save(run.snapshot(), options["snapshot"])
    if not run.memory.actions:
        why = f": {run.hint}" if run.hint else ""
        click.echo(f"tenure: the script asked for no GPU memory{why}", err=True)
        return
    trace = run.trace()
    verdict = run.verdict(trace)
    explanation = explain(trace, capacity=run.memory.failed_under)
    if options["html"]:
        from tenure.reports.page import page_html

        _write(options["html"], page_html(explanation, script).encode("utf-8", "backslashreplace"))
    advised = _advice(run, script, arguments, options)
    if options["as_json"]:
        value = explanation_dict(explanation, script)
        value["peak"].update(run.peak())
        value["virtual"] = verdict.as_dict()
        value["virtual"]["advice"] = advised.as_dict() if advised else None
        text = json.dumps(value, indent=2) + "\n"
    else:
        text = verdict.text() + "\n" + explanation_text(explanation)
        if advised:
            text += "\n" + advised.text()
    if options["output"]:
        emit(text, options["output"])
    else:
        click.echo(text, err=True)  # stdout is the script's


def _advice(run: Any, script: str, arguments: list[str], options: dict[str, Any]) -> Any:
    """What running again with changes showed: if asked for, or for a while if memory ended it."""
    from tenure.virtual.advising import BUDGET, advise
    from tenure.virtual.batches import likely_batch

    wanted = options["advise"]
    died = bool(run.memory.failed and run.exit_code)
    if wanted is False or (wanted is None and not died):
        return None
    budget = None if wanted else BUDGET
    if wanted is None:
        click.echo(
            f"tenure: it does not fit; running it again with changes, for {BUDGET:.0f} s at most "
            "(--no-advise: not)",
            err=True,
        )
    try:
        return advise(
            _trial(script, arguments, options),
            run.memory.card.usable,
            batch=likely_batch(arguments),
            budget=budget,
            progress=progress,
        )
    finally:
        progress_done()


def _save(snapshot: Any, target: str) -> None:
    """A plain pickle, or a compressed one by its ending."""
    data = pickle.dumps(snapshot, protocol=4)
    if Path(target).suffix in {".xz", ".gz"}:
        import gzip
        import lzma

        data = (lzma if target.endswith(".xz") else gzip).compress(data)
    _write(target, data)


def _write(target: str, data: bytes) -> None:
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
