"""Runs marked tests in a pytest of their own, with a virtual GPU, and reports what that says.

A virtual GPU has to be there before torch is imported, which a pytest session may long have done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenure.testing import plugin
from tenure.testing.budgets import CPU, Budget

# Options that belong to the outer run alone; those of the second row take a value.
_OUTER = ("--lf", "--ff", "--last-failed", "--failed-first", "--nf", "--sw", "--pdb", "--trace")
_OUTER_WITH_VALUE = (
    *("-n", "--numprocesses", "--dist", "--tx", "--junitxml", "--junit-xml", "--html", "--cov"),
    *("--cov-report", "-k", "-m", "--deselect", "--ignore", "--durations", "--basetemp", "-c"),
    *("--rootdir", "--report-log"),
)
_LAST_LINES = 20  # of what a process said that gave no report


def needs_virtual_gpu(budget: Budget) -> bool:
    """Whether a test is to run on a virtual GPU: it is not about the CPU, and there is no GPU."""
    return budget.gpu != CPU and not _has_gpu()


def _has_gpu() -> bool:
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def run_on_virtual_gpu(item: pytest.Item, budget: Budget) -> list[pytest.TestReport]:
    """The reports of one test.

    The marked tests of a file that ask for the same card run together, so that torch is imported
    once for all of them; each in a process of its own.
    """
    done = item.config.stash.setdefault(_DONE, {})
    if item.nodeid not in done:
        values, ended = _run(_together(item, budget), budget.gpu)
        done.update({node: [_report(item.config, v) for v in vs] for node, vs in values.items()})
        if not done.get(item.nodeid):
            done[item.nodeid] = [_failure(item, ended)]
    return done.pop(item.nodeid)


_DONE: pytest.StashKey[dict[str, list[pytest.TestReport]]] = pytest.StashKey()


def _together(item: pytest.Item, budget: Budget) -> list[pytest.Item]:
    """This test, and those of the session that can be run with it."""
    if hasattr(item.config, "workerinput"):  # pytest-xdist: every worker knows all tests
        return [item]
    later = item.session.items[item.session.items.index(item) :]
    return [other for other in later if other.path == item.path and _gpu_of(other) == budget.gpu]


def _gpu_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("gpu_memory")
    return "" if marker is None else str(marker.kwargs.get("gpu", Budget.gpu))


def _run(
    items: list[pytest.Item], gpu: str
) -> tuple[dict[str, list[dict[str, Any]]], subprocess.CompletedProcess[str]]:
    """Each test's reports as plain values, and how their process ended."""
    config = items[0].config
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        answer = Path(folder) / "reports"
        name = config.pluginmanager.get_name(plugin) or plugin.__name__
        command = [
            *(sys.executable, "-m", "pytest", "-p", name, "-p", "no:cacheprovider"),
            *(f"--rootdir={config.rootpath}", *_inifile(config)),
            *inner_arguments(config.invocation_params.args, config.args),
            *(f"{item.path}::{item.nodeid.partition('::')[2]}" for item in items),
        ]
        environment = {plugin.CARD: gpu, plugin.ANSWER: str(answer)}
        ended = subprocess.run(  # noqa: S603  this interpreter, with the tests' own pytest
            command,
            cwd=config.invocation_params.dir,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        return (json.loads(answer.read_text()) if answer.exists() else {}), ended


def _report(config: pytest.Config, value: dict[str, Any]) -> pytest.TestReport:
    """A report as it was, with the pairs and triples that JSON knows as lists."""
    report: Any = config.hook.pytest_report_from_serializable(config=config, data=value)
    report.location = tuple(report.location)
    report.sections = [tuple(section) for section in report.sections]
    if isinstance(report.longrepr, list):  # of a skipped test
        report.longrepr = tuple(report.longrepr)
    found: pytest.TestReport = report
    return found


def _inifile(config: pytest.Config) -> list[str]:
    return ["-c", str(config.inipath)] if config.inipath else []


def inner_arguments(given: Sequence[str], tests: Sequence[str]) -> list[str]:
    """The outer run's options that change how a test runs.

    Args:
        given: The outer run's whole command line.
        tests: Those of it that name tests.
    """
    kept: list[str] = []
    skip = False
    for argument in map(str, given):
        name = argument.partition("=")[0]
        if skip or argument in tests or name in _OUTER:
            skip = False
        elif name in _OUTER_WITH_VALUE:
            skip = "=" not in argument
        elif not argument.startswith(("-n", "-k", "-m")) or argument.startswith("--"):
            kept.append(argument)
    return kept


def _failure(item: pytest.Item, ended: subprocess.CompletedProcess[str]) -> pytest.TestReport:
    """Of a test whose process gave no report."""
    said = (ended.stdout + ended.stderr).strip().splitlines()[-_LAST_LINES:]
    text = f"gpu_memory: the pytest with a virtual GPU ended ({ended.returncode}) without a report"
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr="\n".join([text, *said]),
        when="setup",
    )
