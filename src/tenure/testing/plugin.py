"""The pytest plugin: holds tests marked `gpu_memory` to their budgets.

It is imported whenever pytest runs, so it imports nothing but pytest until a test has the marker.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure.testing.budgets import Budget
    from tenure.testing.measuring import Measure

# Set in a pytest that runs one test on a virtual GPU: the card, and the file for its reports.
CARD, ANSWER = "TENURE_TEST_CARD", "TENURE_TEST_ANSWER"
_MARKER = (
    "gpu_memory(peak=None, reserved=None, growth=None, gpu='h100'): most bytes allocated or "
    "reserved at the peak ('2 GiB'), and most growth a step; measured on the GPU, on a virtual "
    "one where there is none, and with gpu='cpu' on tensors of the CPU"
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """In a pytest for one test: puts the card there before any conftest imports torch."""
    if os.environ.get(CARD):
        from tenure.testing.inner import Inner

        early_config.pluginmanager.register(Inner(os.environ[CARD], os.environ[ANSWER]))


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Runs a marked test in a pytest of its own, where it needs a virtual GPU."""
    if item.get_closest_marker("gpu_memory") is None or os.environ.get(CARD):
        return None
    from tenure.testing.outer import needs_virtual_gpu, run_on_virtual_gpu

    budget = _budget(item, wrong_is_none=True)
    if budget is None or not needs_virtual_gpu(budget):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run_on_virtual_gpu(item, budget):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Begins to measure before the test's fixtures are made."""
    budget = _budget(item)
    if budget is not None:
        from tenure.testing.measuring import begin

        item.stash[_MEASURE] = begin(budget)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Holds a test that has passed to its budget."""
    result = yield
    measure = item.stash.get(_MEASURE, None)
    if measure is not None:
        broken = measure.broken()
        if broken:
            pytest.fail(broken, pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Ends what was begun, however the test ended."""
    measure = item.stash.get(_MEASURE, None)
    if measure is not None:
        measure.end()
        del item.stash[_MEASURE]


_MEASURE: pytest.StashKey[Measure] = pytest.StashKey()


def _budget(item: pytest.Item, *, wrong_is_none: bool = False) -> Budget | None:
    """What a test's marker says; fails the test where that makes no sense."""
    marker = item.get_closest_marker("gpu_memory")
    if marker is None:
        return None
    from tenure.errors import UsageError
    from tenure.testing.budgets import read_budget

    try:
        return read_budget(marker.args, marker.kwargs)
    except UsageError as error:
        wrong = str(error)
    if wrong_is_none:
        return None
    pytest.fail(f"gpu_memory: {wrong}", pytrace=False)
