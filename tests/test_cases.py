"""The collected cases of users' problems: each snapshot comes to the diagnosis it was made for.

The expected codes are the collection's own; the bytes are those of each case's header.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest

from shared_data import ABSENT, SHARED
from tenure.diagnoses import Severity, explain
from tenure.reports import explanation_text
from tenure.snapshots import load
from tenure.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.diagnoses import Explanation

CASES = SHARED / "cases"
FILES = sorted((CASES / "snapshots").glob("*.xz"))
# Bytes of the first finding, as the case's header says them.
BYTES = {
    "a01_split_remainder": 416 * MIB,
    "a06_cublas_workspace": 128 * MIB,
    "a12_will_it_fit": 256 * MIB,
    "l01_loss_sum_without_no_grad": 80 * MIB,
    "l07_traceback_keeps_tensors": 64 * MIB,
    "l09_slice_keeps_storage": 160 * MIB,
    "l10_eval_logits_on_device": 256 * MIB,
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FILES, reason=ABSENT)]


@cache
def explained(path: Path) -> Explanation:
    return explain(load(path))


def case_of(path: Path) -> str:
    return path.name.split(".")[0]


@cache
def expected() -> dict[str, set[str]]:
    """Codes that fit each case whose snapshot can show it; growth is one word for every holder."""
    found = {}
    for case, entry in json.loads((CASES / "expected.json").read_text()).items():
        codes = set(entry["codes"]) | ({"growth"} if case.startswith("l") else set())
        if entry["from_snapshot"]:
            found[case] = codes
    return found


SHOWN = [p for p in FILES if case_of(p) in (expected() if FILES else ()) and ".0." not in p.name]


@pytest.mark.parametrize("path", SHOWN, ids=case_of)
def test_a_case_comes_first_to_its_diagnosis(path: Path) -> None:
    """Normal findings come after the others, notes on the recording last."""
    findings = explained(path).findings
    codes = [f.code for f in findings]
    fitting = [code for code in codes if code in expected()[case_of(path)]]
    assert fitting, codes
    above = findings[: codes.index(fitting[0])]
    assert not [f for f in above if f.severity is not Severity.NORMAL]


@pytest.mark.parametrize("case", sorted(BYTES))
def test_the_bytes_are_those_of_the_header(case: str) -> None:
    path = next(p for p in FILES if case_of(p) == case)
    fitting = expected().get(case, {"growth"})
    finding = next(f for f in explained(path).findings if f.code in fitting)
    assert finding.bytes == BYTES[case]


def test_the_out_of_memory_of_the_comb_is_told_with_its_holes() -> None:
    path = next(p for p in FILES if p.name == "a03_checkerboard_oom.pickle.xz")
    oom, holes = explained(path).findings[:2]
    assert (oom.code, oom.bytes) == ("oom", 128 * MIB)
    assert (holes.code, holes.bytes) == ("fragmentation.holes", 512 * MIB)
    assert {a.conf for a in oom.advice} >= {"expandable_segments:True", "max_split_size_mb:128"}
    use = explained(path).device
    assert use is not None
    assert use.outside is not None
    assert use.reserved + use.free + use.outside == use.total


def test_the_parts_of_a_training_step_are_those_of_the_header() -> None:
    path = next(p for p in FILES if case_of(p) == "a12_will_it_fit")
    shares = {s.category: s.bytes for s in explained(path).by_category}
    assert shares["parameters"] == 128 * MIB
    assert shares["optimizer state"] == 256 * MIB
    assert shares["inputs"] == 64 * MIB + 512
    assert shares["activations"] == 512 * MIB


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.removesuffix(".pickle.xz"))
def test_every_case_is_replayed_exactly_and_fits_the_screen(path: Path) -> None:
    explanation = explained(path)
    assert explanation.replay.exact
    assert all(len(line) <= 80 for line in explanation_text(explanation).splitlines())
