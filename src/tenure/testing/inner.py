"""The pytest that runs tests on a virtual GPU."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

from tenure.errors import TenureError
from tenure.virtual import virtual_gpu
from tenure.virtual.ending import without_our_frames


class Inner:
    """A plugin that keeps a virtual GPU for the whole session, and its reports for the outer run.

    Args:
        card: Its name or size.
        answer: The file for the reports.
    """

    def __init__(self, card: str, answer: str) -> None:
        self._answer = Path(answer)
        self._reports: dict[str, list[dict[str, Any]]] = {}
        self._stage = virtual_gpu(card)
        try:
            self.run = self._stage.__enter__()
        except TenureError as error:
            raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Leaves the frames of an error that a real card would show."""
        try:
            return (yield)
        except BaseException as error:
            without_our_frames(error)
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds what the figures rest on."""
        report = yield
        if call.when == "call" and self.run.memory.actions:
            report.sections.append(("virtual GPU", self.run.verdict().basis()))
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Runs a test in a fork, on a card that no other test has used, and keeps its reports."""
        answer = self._answer.with_name(f"of-{len(self._reports)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            self._run_and_leave(item, answer)
        os.waitpid(child, 0)
        self._reports[item.nodeid] = json.loads(answer.read_text()) if answer.exists() else []
        return True

    @staticmethod
    def _run_and_leave(item: pytest.Item, answer: Path) -> NoReturn:
        try:
            hook = item.config.hook
            values = [
                hook.pytest_report_to_serializable(config=item.config, report=report)
                for report in runtestprotocol(item, log=False, nextitem=None)
            ]
            answer.write_text(json.dumps(values))
        finally:
            _leave()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Hands the reports over, and ends the process."""
        self._answer.write_text(json.dumps(self._reports))
        _leave()


def _leave() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # The backward pass's threads abort a process that ends in the usual way without a device.
    os._exit(0)
