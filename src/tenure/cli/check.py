"""tenure check: what holds here, and what clashes."""

from __future__ import annotations

import dataclasses
import json
import textwrap

import click


@click.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, as_json: bool) -> int:
    """Say which versions, driver and settings hold here, and what clashes.

    Looks at the environment of this shell and at installed packages, without importing them. Exits
    with 1 if something clashes.
    """
    from tenure.live.checking import check

    found = check()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
        return 1 if found.clashes else 0
    gpus = f"{found.gpus} GPU{'' if found.gpus == 1 else 's'}"
    settings = f"{found.variable}={found.conf}" if found.variable else "PyTorch's defaults"
    facts = {
        **found.versions,
        "driver": f"{found.driver}, {gpus}",
        "settings": settings,
        "install()": found.install,
    }
    for name, fact in facts.items():
        click.echo(_wrapped(fact, f"{name:<14} ", " " * 15))
    for clash in found.clashes:
        click.echo("\n" + _wrapped(clash, "- ", "  "))
    if not found.clashes:
        click.echo("\nNothing clashes.")
    return 1 if found.clashes else 0


def _wrapped(text: str, first: str, others: str) -> str:
    # Paths and settings stay whole: they are there to be copied.
    return textwrap.fill(
        text,
        80,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
