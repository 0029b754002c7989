"""tenure plan FILE."""

from __future__ import annotations

from typing import Any

import click

from tenure.cli.options import as_json_text, check_output, emit, progress, progress_done


@click.command("plan")
@click.argument("file", metavar="FILE")
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=2.0,
    show_default=True,
    help="How long to look for a better plan.",
)
@click.option("--streams-apart", is_flag=True, help="No byte is ever used by two streams.")
@click.option(
    "--device", type=click.IntRange(0), help="GPU of the file; default: the one with events."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Save the plan there, as .json.gz."
)
@click.option("--force", is_flag=True, help="Overwrite the output file.")
def command(file: str, **options: Any) -> int:
    """The least memory that a snapshot's allocations can be placed in.

    Every allocation gets one fixed offset for its whole life. The most bytes live at one moment
    are the bound; the plan shows how near to it one can get when all requests are known. FILE is
    a snapshot, also .xz .gz .zst, or - for standard input.
    """
    from tenure.plans import graph_buffers, plan, save  # numpy loads only here
    from tenure.reports.plans import plan_dict, plan_text
    from tenure.snapshots import load

    output = options["output"]
    check_output(output, force=options["force"])
    progress(f"reading {file}")
    trace = load(file, device=options["device"])
    progress("planning")
    made = plan(trace, seconds=options["seconds"], streams_apart=options["streams_apart"])
    progress_done()
    if output:
        save(made, output, force=options["force"])
    in_graphs = graph_buffers(trace)
    if options["as_json"]:
        emit(as_json_text([plan_dict(made, file, trace.notes, in_graphs)]), None)
    else:
        emit(plan_text(made, file, trace.notes, in_graphs, output), None)
    return 0
