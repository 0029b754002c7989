"""tenure run SCRIPT ARGS..."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tenure.cli.options import as_json_text, as_version, check_output, emit
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.live.running import Run


@click.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--gpu", metavar="CARD", help="On a card that is not there: h100, or 24GiB.")
@click.option("--conf", metavar="TEXT", help="With --gpu: as PYTORCH_CUDA_ALLOC_CONF.")
@click.option(
    "--torch-version",
    metavar="VERSION",
    callback=as_version,
    help="With --gpu: rules of that torch; default: 2.11.",
)
@click.option(
    "--snapshot",
    type=click.Path(dir_okay=False),
    help="With --gpu: write the run as a PyTorch snapshot.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the report there.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(script: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Run a script as python would, and say what held its memory.

    The script keeps its output, its errors and its exit code. The report goes to stderr, or with
    -o to a file, when the script has ended, however it ended.
    """
    if options["gpu"]:
        from tenure.cli.virtual_run import run_on_virtual_gpu

        return run_on_virtual_gpu(script, list(arguments), options)
    for name in ("conf", "torch_version", "snapshot"):
        if options[name]:
            raise UsageError(f"--{name.replace('_', '-')} goes with --gpu")
    from tenure.live.running import run_script

    check_output(options["output"], force=options["force"])
    return run_script(script, arguments, lambda run: _report(script, run, options)).exit_code


def _report(script: str, run: Run, options: dict[str, Any]) -> None:
    from tenure.live.judging import judge
    from tenure.reports.holding import Holding, holding_dict, holding_text

    record = run.record
    if record is None:
        return
    highest = max(record.looks, key=lambda look: look.holders.live, default=None)
    holding = Holding(
        file=script,
        device=record.device,
        exit_code=run.exit_code,
        error=run.error,
        peak=record.peak,
        end=record.end,
        operations=record.operations,
        peak_operation=record.peak_operation,
        holders=highest.holders if highest else None,
        findings=judge(record, failed=bool(run.error)),
        missing=tuple(dict.fromkeys(record.missing)),
        seconds=record.seconds,
    )
    if options["as_json"]:
        text = as_json_text([holding_dict(holding)])
    else:
        text = holding_text(holding)
    if options["output"] is None:
        click.echo(text.rstrip("\n"), err=True)
    else:
        emit(text, options["output"])
