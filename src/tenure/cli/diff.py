"""tenure diff A B."""

from __future__ import annotations

from typing import Any

import click

from tenure.cli.options import (
    as_json_text,
    check_output,
    emit,
    file_options,
    progress,
    progress_done,
)


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--at",
    type=click.Choice(["peak", "end"]),
    help="Compare what is live at the peak, or when the snapshots were written. Default: end for "
    "two snapshots of one run, else peak.",
)
@click.option(
    "--fail-if",
    "budgets",
    metavar="BUDGET",
    multiple=True,
    help="Exit with 1 if B breaks it: live>+5%, reserved>20GiB, category:gradients>+100MiB, "
    "site:model.py:40>1GiB. May be given several times.",
)
@click.option("--no-findings", is_flag=True, help="Leave out which findings came and went.")
@file_options
def command(before: str, after: str, **options: Any) -> int:
    """Say what grew from snapshot A to snapshot B, by line and category.

    A and B may be two moments of one run, two runs, or a run before and after a change.
    """
    from tenure.diagnoses import compare, read_budget
    from tenure.reports import comparison_dict, comparison_text

    budgets = [read_budget(text) for text in options["budgets"]]
    check_output(options["output"], force=options["force"])
    traces = [_load(file, options) for file in (before, after)]
    comparison = compare(
        *traces,
        at=options["at"],
        budgets=budgets,
        findings=not options["no_findings"],
        progress=progress,
    )
    progress_done()
    if options["as_json"]:
        text = as_json_text([comparison_dict(comparison, before, after)])
    else:
        text = comparison_text(comparison, before, after)
    emit(text, options["output"])
    return 1 if comparison.broken else 0


def _load(file: str, options: dict[str, Any]) -> Any:
    from tenure.snapshots import load

    progress(f"reading {file}")
    return load(file, device=options["device"], torch_version=options["torch_version"])
