"""tenure run SCRIPT ARGS..."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tenure.cli.options import as_json_text, check_output, emit, progress, progress_done
from tenure.cli.virtual_run import refuse_virtual_options, run_on_virtual_gpu, virtual_options
from tenure.errors import TenureError, UsageError

if TYPE_CHECKING:
    from tenure.live.runs.running import Run
    from tenure.reports.holding import Holding


_NO_RECORDING = (
    "no GPU's allocator was recorded in this run; with --gpu h100 the script runs on a virtual one"
)


@click.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--gpu", metavar="CARD", help="On a card that is not there: h100, or 24GiB.")
@click.option("--conf", metavar="TEXT", help="With --gpu or --live: as PYTORCH_CUDA_ALLOC_CONF.")
@virtual_options
@click.option("--live", is_flag=True, help="Under tenure's own allocator (tenure.install()).")
@click.option(
    "--rules", type=click.Choice(["elastic", "torch"]), help="With --live; default: elastic."
)
@click.option("--capacity", metavar="SIZE", help="With --live: what each GPU may reserve: 14GiB.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page that shows the run.")
@click.option(
    "--snapshot", type=click.Path(dir_okay=False), help="Write the run as a PyTorch snapshot."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the report there.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(script: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Run a script, or -m MODULE, as python would, and say what held its memory.

    The script keeps its output, its errors and its exit code. The report goes to stderr, or with
    -o to a file, when the script has ended, however it ended.
    """
    for name in ("output", "snapshot", "html"):
        if options[name]:
            options[name] = _of_rank(options[name])
        check_output(options[name], force=options["force"])
    shown = " ".join((script, *arguments[:1])) if script == "-m" else script
    if options["gpu"]:
        if shown != script:
            raise UsageError("--gpu runs a script's file: name it instead of -m MODULE")
        _refuse(options, "live", "rules", "capacity", with_what="--gpu")
        return run_on_virtual_gpu(script, list(arguments), options)
    refuse_virtual_options(options)
    if not options["live"]:
        for name in ("rules", "capacity", "conf"):
            if options[name]:
                raise UsageError(f"--{name} goes with --live")
    from tenure.live.runs.running import run_script

    return run_script(
        script, arguments, lambda run: _report(shown, run, options), before=_before(options)
    ).exit_code


def _of_rank(target: str) -> str:
    """A file for each process of a distributed run; wherever the script may go meanwhile."""
    path = Path(os.path.abspath(target))  # noqa: PTH100  links stay
    rank = os.environ.get("RANK", "")
    if rank.isdigit() and os.environ.get("WORLD_SIZE", "1") != "1":
        path = path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    return str(path)


def _refuse(options: dict[str, Any], *names: str, with_what: str) -> None:
    for name in names:
        if options[name]:
            raise UsageError(f"--{name} does not go with {with_what}")


def _before(options: dict[str, Any]) -> Any:
    """What is done as soon as the script has imported torch."""
    if not options["live"]:
        return None
    from tenure.live import install
    from tenure.live.process import Options, settings_of

    wanted = {"rules": options["rules"] or "elastic", "capacity": options["capacity"]}
    settings_of(Options(**wanted, conf=options["conf"]))  # refuses now, not within the script
    return lambda: install(**wanted, conf=options["conf"])


def _report(script: str, run: Run, options: dict[str, Any]) -> None:
    """Writes all that was asked for; what cannot be written is said, and the rest still is."""
    from tenure.reports.holding import holding_dict, holding_text

    if run.record is None:
        return
    from tenure.live.runs.concluding import conclude

    found = conclude(
        run.record,
        failed=bool(run.error),
        torch_version=run.torch_version,
        races=run.races,
        progress=progress,
    )
    progress_done()
    holding = _holding(script, run, found)
    if options["as_json"]:
        text = as_json_text([holding_dict(holding)])
    else:
        text = holding_text(holding)
    for write, target in ((_write_snapshot, options["snapshot"]), (_write_page, options["html"])):
        if target:
            try:
                write(script, run, found, target)
            except TenureError as error:
                click.echo(f"tenure: {error}", err=True)
    if options["output"] is None:
        click.echo(text.rstrip("\n"), err=True)
    else:
        emit(text, options["output"])


def _write_snapshot(_script: str, run: Run, _found: Any, target: str) -> None:
    data = run.record.gpu.snapshot if run.record else b""
    if not data:
        raise UsageError(f"{target}: not written: {_NO_RECORDING}")
    if Path(target).suffix in {".xz", ".gz"}:
        import gzip
        import lzma

        data = (lzma if target.endswith(".xz") else gzip).compress(data)
    _write(target, data)


def _write_page(script: str, _run: Run, found: Any, target: str) -> None:
    from dataclasses import replace

    from tenure.reports.page import page_html

    if found.explanation is None:
        raise UsageError(f"{target}: not written: {_NO_RECORDING}")
    shown = replace(found.explanation, findings=found.findings)
    _write(target, page_html(shown, script).encode("utf-8", "backslashreplace"))


def _write(target: str, data: bytes) -> None:
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None


def _holding(script: str, run: Run, found: Any) -> Holding:
    """The conclusion as a report takes it."""
    from tenure.reports import holding as reports

    record, attribution = found.record, found.attribution
    looked = found.highest.holders if found.highest else None
    if attribution is not None:
        rows = [reports.Row(r.heading, r.bytes, r.blocks, r.chain) for r in attribution.rows]
        live, pending = attribution.allocated, attribution.pending
    else:
        held = looked.rows if looked else ()
        rows = [reports.Row(r.heading, r.bytes, r.storages, r.chain) for r in held]
        live, pending = (looked.live if looked else 0), 0
    devices = tuple(_device(record.gpu, index) for index in _indices(record.gpu))
    peak = max((d.peak[1] for d in devices if d.peak), default=0) or record.peak
    end = sum(d.end[1] for d in devices if d.end) if devices else record.end
    rise = found.rise
    return reports.Holding(
        file=script,
        device=record.device,
        exit_code=run.exit_code,
        error=run.error,
        peak=peak,
        end=end,
        operations=record.operations,
        peak_operation=record.peak_operation,
        rows=tuple(rows),
        live=live,
        pending=pending,
        whole=looked.complete if looked else False,
        by_site=tuple(
            reports.Row(heading, size, count, label)
            for label, heading, size, count in found.by_site
        ),
        findings=found.findings,
        missing=found.missing,
        seconds=record.seconds,
        stepping=reports.Stepping(
            found.step_count,
            rise.bytes_per_step if rise else 0,
            rise.first if rise else 0,
            record.gpu.recorded,
        ),
        calls=tuple(reports.Call(*call) for call in found.calls),
        devices=devices,
        explanation=found.explanation,
    )


def _indices(gpu: Any) -> list[int]:
    return sorted({*gpu.devices, *gpu.use})


def _device(gpu: Any, index: int) -> Any:
    from tenure.reports.holding import Device

    peak, end, use = gpu.peaks.get(index), gpu.devices.get(index), gpu.use.get(index)
    return Device(
        index,
        (peak.peak_requested, peak.peak_allocated, peak.peak_active, peak.peak_reserved)
        if peak
        else None,
        (end.requested, end.allocated, end.active, end.reserved) if end else None,
        total=use.total if use else None,
        free=use.free if use else None,
        others=use.others if use else None,
        rest=use.rest if use else None,
        why=use.why if use else "",
    )
