"""tenure view FILE -o OUT."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tenure.cli.options import (
    as_json_text,
    check_output,
    emit,
    file_options,
    progress,
    progress_done,
)
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.traces import Trace

# Ending of the output's name -> format, where --format does not say.
ENDINGS = {
    ".html": "html",
    ".htm": "html",
    ".png": "png",
    ".svg": "svg",
    ".pdf": "pdf",
    ".json": "perfetto",
    ".folded": "collapsed",
    ".collapsed": "collapsed",
    ".txt": "collapsed",
}
PICTURES = ("png", "svg", "pdf")
REDACTED = "recording"  # what the output calls a file whose paths are left out


@click.command("view")
@click.argument("file", metavar="FILE")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", *PICTURES, "perfetto", "chrome", "collapsed"]),
    help="Default: as the ending of OUT says.",
)
@click.option(
    "--redact",
    metavar="WHAT",
    help="Leave out: paths (of files), or paths,names (and functions).",
)
@file_options
def command(file: str, **options: Any) -> int:
    """Write a page that shows a recording; it opens from disk and needs no network.

    -o OUT.html writes the page; .png .svg .pdf a picture (needs the extra `plots`); .json a file
    for ui.perfetto.dev or chrome://tracing; .folded collapsed stacks of the live peak for flame
    graphs. With .gz behind .json or .folded it is compressed.
    """
    form = _format_of(file, options["output"], options["form"])
    check_output(options["output"], force=options["force"])
    kinds = _kinds(options["redact"])
    begin = time.perf_counter()
    trace = _load(file, kinds, options)
    loaded = time.perf_counter()
    path = Path(options["output"])
    _write(trace, form, REDACTED if kinds else Path(file).name, path)
    progress_done()
    size = path.stat().st_size
    done = {
        "file": file,
        "output": str(path),
        "format": form,
        "bytes": size,
        "events": len(trace.events),
        "allocations": len(trace.allocations),
        "redacted": list(kinds),
        "seconds": {"load": loaded - begin, "write": time.perf_counter() - loaded},
    }
    text = f"{path}: {size / 1e6:.2f} MB, {len(trace.events):,} events\n"
    emit(as_json_text([done]) if options["as_json"] else text, None)
    return 0


def _format_of(file: str, output: str | None, asked: str | None) -> str:
    if output is None:
        raise UsageError("view writes a file; name it with -o, such as -o memory.html")
    path = Path(output)
    if file != "-" and path.exists() and Path(file).exists() and path.samefile(file):
        raise UsageError(f"{output} is the recording itself; name another file")
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    form = asked or ENDINGS.get(ending.lower())
    if form is None:
        raise UsageError(
            f"{output}: the ending {ending!r} names no format; use .html, .png, .svg, .json or "
            ".folded, or add --format"
        )
    if form in PICTURES and path.suffix.lower() != f".{form}":
        raise UsageError(f"{output}: a picture of that format is named .{form}")
    return form


def _kinds(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    from tenure.reports.redaction import parse_kinds

    return parse_kinds(text)


def _load(file: str, kinds: tuple[str, ...], options: dict[str, Any]) -> Trace:
    from tenure.reports.redaction import redacted
    from tenure.snapshots import load

    progress(f"reading {file}")
    trace = load(file, device=options["device"], torch_version=options["torch_version"])
    return redacted(trace, kinds) if kinds else trace


def _write(trace: Trace, form: str, name: str, path: Path) -> None:
    from tenure.replays import recorded_replay

    if form == "html":
        from tenure.diagnoses import explain
        from tenure.reports.page import page_html

        explanation = explain(trace, progress=progress)
        progress("writing the page")
        _save(page_html(explanation, name), path)
        return
    progress("replaying the recording")
    replay = recorded_replay(trace, timeline=True)
    progress(f"writing {path.name}")
    if form in PICTURES:
        from tenure.reports.plots import save_plot

        save_plot(trace, replay, name, path)
    elif form == "collapsed":
        from tenure.reports.exports import collapsed_stacks

        _save(collapsed_stacks(trace, replay), path)
    else:
        from tenure.reports.exports import trace_events

        _save(trace_events(trace, replay, name), path)


def _save(text: str, path: Path) -> None:
    data = text.encode("utf-8", "backslashreplace")
    if path.suffix == ".gz":
        data = gzip.compress(data, 6, mtime=0)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
