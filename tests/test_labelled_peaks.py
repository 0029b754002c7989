"""Every peak that explain labels is the one that PyTorch counted; its parts add up to it.

And no healthy run of the recorded ones is called ill.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from scene import Scene, line
from shared_data import ABSENT, GOLDEN, name_of, traces
from tenure.diagnoses import explain
from tenure.reports import explanation_dict
from tenure.snapshots import load
from tenure.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

LABELS = ("requested", "allocated", "active", "reserved")
SMALL = sorted(GOLDEN.glob("*.pickle.xz"))
SHARED = traces()
HEALTHY = ("resnet50", "vit", "gpt2", "gpt2_ddp", "gpt2_fsdp", "gpt2_fsdp_offload")


@cache
def told_of(path: Path) -> dict[str, Any]:
    return explanation_dict(explain(load(path)), name_of(path))


def require_labels(path: Path) -> None:
    text = path.with_name(f"{name_of(path)}.json").read_text(encoding="utf-8")
    recorded = json.loads(text)["stats"]
    told = told_of(path)
    peak = told["peak"]
    assert {label: peak[label] for label in LABELS} == {
        label: recorded[f"{label}_bytes.all.peak"] for label in LABELS
    }
    for parts in ("by_site", "by_category"):
        assert sum(share["bytes"] for share in peak[parts]) == peak["allocated"], parts
    reserved = dict(told["reserved"])
    total = reserved.pop("total")
    reserved.pop("at_event")
    assert sum(part["bytes"] for part in reserved.values()) == total
    pools = told["reserved_by_pool"]
    assert sum(share["reserved"] for share in pools) == total
    for share in pools:
        meanings = ("live", "pending", "returnable", "pinned")
        assert sum(share[meaning] for meaning in meanings) == share["reserved"]
    if not recorded["num_ooms"]:
        assert total == peak["reserved"]
    one_stream = len(told["streams"]) == 1
    if one_stream:
        assert told["streams"][0]["live_peak"] == peak["allocated"]
        assert told["streams"][0]["reserved_peak"] == peak["reserved"]


@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_the_labelled_peaks_of_small_recordings_are_what_pytorch_counted(path: Path) -> None:
    require_labels(path)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason=ABSENT)
@pytest.mark.parametrize("path", SHARED, ids=name_of)
def test_the_labelled_peaks_of_every_recording_are_what_pytorch_counted(path: Path) -> None:
    require_labels(path)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason=ABSENT)
@pytest.mark.parametrize(
    "path", [path for path in SHARED if name_of(path).split(".")[0] in HEALTHY], ids=name_of
)
def test_a_healthy_run_is_not_called_ill(path: Path) -> None:
    codes = {finding["code"].split(".")[0] for finding in told_of(path)["findings"]}
    assert not codes & {"growth", "holder", "stream", "oom"}


def test_bytes_that_were_not_split_off_count_for_their_stream() -> None:
    """The large pool leaves up to 1 MiB with a block: PyTorch counts it, and so do we."""
    scene = Scene()
    scene.make(15.5, line(3), stream=0x51)
    scene.make(15.5, line(4))
    explanation = scene.explain()
    assert explanation.replay.peak.requested == 31 * MIB
    assert explanation.replay.peak.allocated == 32 * MIB
    assert [usage.live_peak for usage in explanation.streams] == [16 * MIB, 16 * MIB]
