"""Two snapshots compared: what grew, by line and category; settings; budgets that fail a build."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

import tenure
from scene import Scene, Training, layer, line, moved_to_device
from shared_data import EXAMPLES, GOLDEN
from tenure.diagnoses import Comparison, compare, read_budget
from tenure.errors import UsageError
from tenure.reports import comparison_dict, comparison_text
from tenure.settings import parse_alloc_conf
from tenure.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.traces import Trace


def run(keep: float = 0, *, where: int = 40, conf: str = "", stacks: bool = True) -> Trace:
    """A training run that may keep some MiB at a line."""
    scene = Scene(parse_alloc_conf(conf, torch_version=(2, 11)), stacks=stacks)
    training = Training(scene, mib=16)
    if keep:
        scene.make(keep, line(where))
    for _ in range(6):
        training.step()
    return scene.recording()


@cache
def compared(before: float, after: float) -> Comparison:
    return compare(run(before), run(after), findings=False)


def test_a_run_compared_with_itself_is_the_same() -> None:
    comparison = compared(0, 0)
    assert not any(c.grown for c in (*comparison.by_site, *comparison.by_category))
    assert not comparison.settings
    assert comparison_text(comparison, "a", "b").startswith("As much is live ")


def test_what_a_change_added_is_named_with_its_line() -> None:
    comparison = compare(run(), run(100), at="peak", findings=False)
    largest = comparison.by_site[0]
    assert (largest.label, largest.before, largest.after) == ("train.py:40 main", 0, 100 * MIB)
    grown = comparison.after.peak.allocated - comparison.before.peak.allocated
    assert grown == 100 * MIB
    assert sum(c.grown for c in comparison.by_site) == grown
    assert sum(c.grown for c in comparison.by_category) == grown
    text = comparison_text(comparison, "a.pickle", "b.pickle")
    assert "+100.00 MiB live at the peak" in text.splitlines()[0]
    assert "train.py:40 main" in text


def test_a_line_that_only_moved_is_the_same_line() -> None:
    before, after = run(100, where=40), run(120, where=44)
    changed = [c for c in compare(before, after, at="peak", findings=False).by_site if c.grown]
    assert [(c.label, c.before, c.after) for c in changed] == [
        ("train.py:44 main", 100 * MIB, 120 * MIB)
    ]


def test_two_moments_of_one_run_are_known_as_such() -> None:
    scene = Scene()
    scene.make(64, moved_to_device(2))
    early = scene.recording()
    kept = [scene.make(8, layer("linear", 6)) for _ in range(5)]
    late = scene.recording()
    comparison = compare(early, late, findings=False)
    assert comparison.same_run
    assert comparison.at == "end"
    assert comparison.after.end.allocated - comparison.before.end.allocated == len(kept) * 8 * MIB
    assert "Both are of one run" in comparison_text(comparison, "a", "b")


def test_settings_that_differ_are_named() -> None:
    comparison = compare(run(), run(conf="expandable_segments:True"), findings=False)
    assert [(s.name, s.before, s.after) for s in comparison.settings] == [
        ("expandable_segments", "False", "True")
    ]


def test_lines_are_not_compared_where_one_file_has_none() -> None:
    comparison = compare(run(), run(stacks=False), findings=False)
    assert not comparison.by_site
    assert "only one of the files has stacks" in comparison_text(comparison, "a", "b")


def test_findings_that_came_and_went_are_named() -> None:
    healthy, leaking = Scene(), Scene()
    for scene in (healthy, leaking):
        scene.make(40, moved_to_device(2))
        for _ in range(10):
            scene.drop(scene.make(16, layer("linear", 6)), where=line(7))
            if scene is leaking:
                scene.make(8, line(9))
    comparison = compare(healthy.recording(), leaking.recording())
    assert "growth" in comparison.new_findings
    assert compare(leaking.recording(), healthy.recording()).gone_findings == (
        comparison.new_findings
    )


@pytest.mark.parametrize(
    ("budget", "broken"),
    [
        ("live>+5%", True),
        ("live>+500%", False),
        ("peak>+99MiB", True),
        ("peak>+100MiB", False),
        ("peak>=+100MiB", True),
        ("reserved>1GiB", False),
        ("reserved > 1MiB", True),
        ("active>+1%", True),
        ("requested>+1%", True),
        ("end.live>+50MiB", True),
        ("end.reserved>+1GiB", False),
        ("tensors>+99MiB", True),
        ("category:activations>+0%", False),
        ("category:optimizer_state>+0%", False),
        ("site:train.py:40>50MiB", True),
        ("site:linear.py>+0B", False),
    ],
)
def test_budgets(budget: str, broken: bool) -> None:
    comparison = compare(run(), run(100), at="peak", budgets=[read_budget(budget)], findings=False)
    assert comparison.broken is broken
    (verdict,) = comparison.verdicts
    word = "BROKEN" if broken else "kept"
    assert f"{word}." in comparison_text(comparison, "a", "b")
    assert verdict.budget.text == budget


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("", "is no budget"),
        ("live", "is no budget"),
        ("live<5GiB", "is no budget"),
        ("live>5%", "needs a sign"),
        ("live>+5zz", "unknown unit"),
        ("live>much", "is not a size"),
        ("memory>5GiB", "is not one of live, peak"),
        ("site:>5GiB", "is not one of"),
        ("category>5GiB", "is not one of"),
    ],
)
def test_a_budget_that_cannot_be_read_says_why(budget: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_budget(budget)


def test_a_budget_about_nothing_says_what_there_is() -> None:
    with pytest.raises(UsageError, match="there is"):
        compare(run(), run(), budgets=[read_budget("category:gold>1GiB")], findings=False)
    with pytest.raises(UsageError, match="no line with"):
        compare(run(), run(), budgets=[read_budget("site:nowhere.py>1GiB")], findings=False)


def test_the_plain_form_holds_the_same_facts() -> None:
    comparison = compare(
        run(), run(100), at="peak", budgets=[read_budget("live>+5%")], findings=False
    )
    plain = json.loads(json.dumps(comparison_dict(comparison, "a", "b")))
    assert plain["peak"]["after"]["allocated"] == comparison.after.peak.allocated
    assert plain["by_site"][0]["site"] == "train.py:40 main"
    assert plain["budgets"] == [
        {
            "budget": "live>+5%",
            "before": comparison.before.peak.allocated,
            "after": comparison.after.peak.allocated,
            "limit": int(comparison.before.peak.allocated * 1.05),
            "broken": True,
        }
    ]


# --- real files, through the command line and the public verb ------------------------------------

BEFORE, AFTER = (EXAMPLES / f"{name}.pickle.xz" for name in ("resnet50", "gpt2_varlen"))


def command(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", "diff", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_real_runs_in_the_agreed_words() -> None:
    comparison = compare(tenure.load(BEFORE), tenure.load(AFTER))
    text = comparison_text(comparison, "resnet50.pickle.xz", "gpt2_varlen.pickle.xz")
    assert all(len(row) <= 80 for row in text.splitlines())
    agreed = GOLDEN / "text" / "diff_resnet50_gpt2_varlen.txt"
    assert text == agreed.read_text(encoding="utf-8"), (
        "the text changed; if it should, run python tests/update_text.py"
    )


def test_the_public_verb_takes_files_and_budgets() -> None:
    comparison = tenure.diff(BEFORE, AFTER, fail_if=["live>+5%", "live>100GiB"])
    assert [v.broken for v in comparison.verdicts] == [True, False]
    assert comparison.after.peak.allocated == 13_381_983_232


def test_the_command_fails_a_build_with_1_and_a_bad_budget_with_2() -> None:
    quick = "--no-findings"
    assert command(BEFORE, BEFORE, quick, "--fail-if", "live>+0%").returncode == 0
    broken = command(BEFORE, AFTER, quick, "--fail-if", "live>+5%", "--fail-if", "reserved>1TiB")
    assert broken.returncode == 1
    assert "BROKEN" in broken.stdout
    bad = command(BEFORE, AFTER, quick, "--fail-if", "live>5%")
    assert bad.returncode == 2
    assert bad.stderr.startswith("tenure: ")
    assert len(bad.stderr.splitlines()) == 1
    assert command(BEFORE, "no-such-file").returncode == 3


def test_the_command_writes_json(tmp_path: Path) -> None:
    target = tmp_path / "diff.json"
    done = command(BEFORE, AFTER, "--no-findings", "--json", "--at", "end", "-o", target)
    assert done.returncode == 0
    plain = json.loads(target.read_text(encoding="utf-8"))
    assert plain["at"] == "end"
    assert plain["peak"]["after"]["reserved"] > 20 * GIB
    again = command(BEFORE, AFTER, "--no-findings", "-o", target)
    assert again.returncode == 2
