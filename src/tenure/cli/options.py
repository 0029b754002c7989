"""Options that several commands share, and where their output goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tenure.errors import UsageError
from tenure.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable


def as_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes from 14GiB, 5.5GiB or a plain number; a click callback."""
    if value is None:
        return None
    try:
        size = parse_size(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if size <= 0:
        raise click.BadParameter(f"{value!r} holds nothing; give more than 0", ctx, param)
    return size


def as_version(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Major and minor of a torch version such as 2.11; a click callback."""
    if value is None:
        return None
    parts = value.split("+")[0].split(".")
    if len(parts) not in {2, 3} or not all(p.isdigit() for p in parts) or int(parts[0]) != 2:
        raise click.BadParameter(f"{value!r} is not a torch version such as 2.11", ctx, param)
    return int(parts[0]), int(parts[1])


def file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--device, --torch-version, --json, -o, --force: for commands that read snapshots."""
    for option in reversed(
        (
            click.option(
                "--device",
                type=click.IntRange(0),
                help="GPU of the file; default: the one with events.",
            ),
            click.option(
                "--torch-version",
                metavar="VERSION",
                callback=as_version,
                help="Rules of that torch; default: as the file shows.",
            ),
            click.option(
                "--json", "as_json", is_flag=True, help="One JSON object instead of text."
            ),
            click.option(
                "-o",
                "--output",
                type=click.Path(dir_okay=False),
                help="Write there, not to the screen.",
            ),
            click.option("--force", is_flag=True, help="Overwrite the output file."),
        )
    ):
        command = option(command)
    return command


def check_output(output: str | None, *, force: bool) -> None:
    """Refuses to overwrite before any work is done."""
    if output and Path(output).exists() and not force:
        raise UsageError(f"{output} exists; name another file or add --force")


def emit(text: str, output: str | None) -> None:
    """Prints, or writes the file that was asked for."""
    if output is None:
        click.echo(text.rstrip("\n"))
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None


def as_json_text(values: list[dict[str, Any]]) -> str:
    """One object, or one object a line for several files."""
    if len(values) == 1:
        return json.dumps(values[0], indent=2) + "\n"
    return "".join(json.dumps(value) + "\n" for value in values)


def progress(word: str) -> None:
    """A word on stderr while something takes its time, if a person is watching."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{word} ...\r", nl=False, err=True)


def progress_done() -> None:
    """Clears the word."""
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
