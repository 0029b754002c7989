"""Parse, call, print, exit code: one module per command."""

from __future__ import annotations

import click

import tenure


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tenure.__version__, prog_name="tenure")
def main() -> None:
    """Replay, explain and manage GPU memory of PyTorch."""
