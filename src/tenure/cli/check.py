"""tenure check: what holds here, and what clashes."""

from __future__ import annotations

import dataclasses
import json

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
    for name, version in found.versions.items():
        click.echo(f"{name:<14} {version}")
    click.echo(f"{'driver':<14} {found.driver}, {found.gpus} GPUs")
    settings = f"{found.variable}={found.conf}" if found.variable else "PyTorch's defaults"
    click.echo(f"{'settings':<14} {settings}")
    for clash in found.clashes:
        click.echo(f"\n- {clash}")
    if not found.clashes:
        click.echo("\nNothing clashes.")
    return 1 if found.clashes else 0
