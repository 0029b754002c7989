"""tenure explain FILE..."""

from __future__ import annotations

from typing import Any

import click

from tenure.cli.options import (
    as_json_text,
    as_size,
    check_output,
    emit,
    file_options,
    progress,
    progress_done,
)


@click.command("explain")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--capacity",
    metavar="SIZE",
    callback=as_size,
    help="Ask about a limit on reserved memory, as 14GiB.",
)
@file_options
def command(files: tuple[str, ...], **options: Any) -> int:
    """Say what held the memory, what went wrong, and what would have changed it.

    Every advice about settings was checked by replaying the file under them.
    A file is a PyTorch memory snapshot, also .xz .gz .zst, or - for standard input.
    """
    from tenure.diagnoses import Severity
    from tenure.reports import explanation_dict, explanation_text

    check_output(options["output"], force=options["force"])
    values, texts, code = [], [], 0
    for file in files:
        explanation = _explain(file, options)
        values.append(explanation_dict(explanation, file))
        title = f"{file}\n\n" if len(files) > 1 else ""
        texts.append(title + explanation_text(explanation))
        if any(f.severity in (Severity.ERROR, Severity.WARNING) for f in explanation.findings):
            code = 1
    emit(as_json_text(values) if options["as_json"] else "\n".join(texts), options["output"])
    return code


def _explain(file: str, options: dict[str, Any]) -> Any:
    from tenure.diagnoses import explain
    from tenure.snapshots import load

    progress(f"reading {file}")
    trace = load(file, device=options["device"], torch_version=options["torch_version"])
    explanation = explain(trace, capacity=options["capacity"], progress=progress)
    progress_done()
    return explanation
