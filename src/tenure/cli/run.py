"""tenure run SCRIPT ARGS..."""

from __future__ import annotations

from typing import Any

import click

from tenure.cli.options import as_version


@click.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--gpu",
    metavar="CARD",
    required=True,
    help="On a card that is not there: h100, or 24GiB.",
)
@click.option("--conf", metavar="TEXT", help="As PYTORCH_CUDA_ALLOC_CONF.")
@click.option(
    "--torch-version",
    metavar="VERSION",
    callback=as_version,
    help="Rules of that torch; default: 2.11.",
)
@click.option(
    "--snapshot",
    type=click.Path(dir_okay=False),
    help="Write the run as a PyTorch snapshot.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the report there.")
@click.option("--force", is_flag=True, help="Overwrite the output files.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(script: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Run a script on a card that is not there, and say whether it fits.

    The script keeps its output, its errors and its exit code. The report goes to stderr, or with
    -o to a file.
    """
    from tenure.cli.virtual_run import run_on_virtual_gpu

    return run_on_virtual_gpu(script, list(arguments), options)
