"""tenure demo."""

from __future__ import annotations

from importlib.resources import as_file, files

import click

from tenure.cli.options import emit


@click.command("demo")
def command() -> int:
    """Explain a recorded out-of-memory that comes with tenure; needs no GPU and no file.

    The recording: a LoRA fine-tuning of a Llama model with texts of varying length, on one H200
    limited to 5.5 GiB, torch 2.11.
    """
    from tenure.diagnoses import explain
    from tenure.reports import explanation_text
    from tenure.snapshots import load

    with as_file(files("tenure.cli") / "demo.pickle.xz") as path:
        explanation = explain(load(path), capacity=int(5.5 * 2**30))
    emit(explanation_text(explanation), None)
    return 0
