"""Each finding about failed requests and the cache: where it is due, and where it is not."""

from __future__ import annotations

import pytest

from scene import Scene, Training, layer, line, moved_to_device
from tenure.diagnoses import Confidence, Severity
from tenure.settings import AllocatorSettings, parse_alloc_conf
from tenure.units import MIB


def comb(tooth: int, teeth: int, *, limit: int, conf: str = "") -> Scene:
    """One large segment, cut into teeth, every second of them freed; then a request that fails."""
    settings = parse_alloc_conf(conf, torch_version=(2, 11))
    scene = Scene(settings, capacity=limit * MIB)
    scene.drop(scene.make(tooth * teeth, line(3)), where=line(3))
    kept = [scene.make(tooth, line(4, "comb")) for _ in range(teeth)]
    scene.drop(*kept[::2], where=line(5))
    assert not scene.ask(2 * tooth, line(6))
    return scene


def test_an_out_of_memory_by_holes_names_them_and_what_helps() -> None:
    explanation = comb(64, 16, limit=1088).explain()
    oom, holes = explanation.findings[:2]
    assert (oom.code, oom.severity) == ("oom", Severity.ERROR)
    assert "not for lack of memory" in oom.title
    assert oom.bytes == 128 * MIB
    assert (holes.code, holes.bytes) == ("fragmentation.holes", 512 * MIB)
    text = "\n".join(oom.evidence)
    assert "asked for by train.py:6 main" in text
    assert "the largest request that could have been served: 64.00 MiB" in text
    assert next(a.conf for a in oom.advice) == "expandable_segments:True"
    assert explanation.split.remainders.bytes == 512 * MIB  # at the failure, not at the peak


def test_holes_smaller_than_a_chunk_are_said_not_to_be_helped_by_expandable_segments() -> None:
    oom = comb(12, 85, limit=1036).explain().findings[0]
    assert oom.code == "oom"
    assert "expandable_segments:True" not in [a.conf for a in oom.advice]
    assert any("smaller than the 20.00 MiB" in text for text in oom.evidence)


def test_what_the_message_suggests_though_it_is_on_is_said() -> None:
    scene = comb(12, 85, limit=1036, conf="expandable_segments:True")
    oom = scene.explain().findings[0]
    text = "\n".join(oom.evidence)
    assert "holes are at most" in text or "was on already" in text


def test_a_request_larger_than_what_is_left_is_for_lack_of_memory() -> None:
    scene = Scene(capacity=256 * MIB)
    for _ in range(6):
        scene.make(40, line(3))
    assert not scene.ask(64, line(4))
    oom = scene.explain().findings[0]
    assert oom.code == "oom"
    assert "for lack of memory" in oom.title
    assert "and not" not in oom.title


def test_a_capacity_asked_about_that_is_enough_is_no_failure() -> None:
    scene = Scene()
    scene.make(100, line(3))
    assert scene.finding("oom", capacity=128 * MIB) is None
    assert scene.finding("oom", capacity=64 * MIB) is not None


def test_two_alternating_sizes_leave_remainders() -> None:
    """The case of eight layers converted through two scratch buffers: 26 MiB beside each weight."""
    scene = Scene()
    for _ in range(8):
        scratch = [scene.make(54, line(3)) for _ in range(2)]
        scene.drop(*scratch, where=line(4))
        for _ in range(2):
            scene.make(28, line(5))
    finding = scene.explain().findings[0]
    assert finding.code == "fragmentation.remainders"
    assert finding.severity is Severity.WARNING
    assert finding.bytes == 416 * MIB
    assert "at the end" in finding.title
    assert {a.conf for a in finding.advice} >= {"expandable_segments:True", "max_split_size_mb:28"}
    for advice in finding.advice:
        if advice.conf:
            assert advice.verified is not None
            assert advice.verified.peak_reserved_after < advice.verified.peak_reserved_before


def test_a_segment_begun_by_a_small_tensor_is_no_finding() -> None:
    scene = Scene()
    scene.make(3, line(3))
    scene.make(64, line(4))
    codes = {f.code for f in scene.explain().findings}
    assert not any(code.startswith(("fragmentation", "cache")) for code in codes)


def test_each_larger_request_outgrows_the_cache() -> None:
    scene = Scene()
    for i in range(1, 16):
        scene.drop(scene.make(8 * i, line(3)), where=line(3))
    finding = scene.explain().findings[0]
    assert finding.code == "cache.staircase"
    assert "train.py:3" in "\n".join(finding.evidence)
    assert finding.advice[0].conf == "expandable_segments:True"


def test_requests_of_one_size_make_no_staircase() -> None:
    scene = Scene()
    for _ in range(15):
        scene.drop(scene.make(64, line(3)), where=line(3))
    assert scene.finding("cache.staircase") is None


def test_a_staircase_of_one_growing_tensor_is_told_after_its_cause() -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    kept = None
    for i in range(20):
        part = scene.make(16, line(5))
        whole = scene.make(16 * (i + 1), line(6))
        scene.drop(*([kept] if kept else []), part, where=line(6))
        kept = whole
    codes = [f.code for f in scene.explain().findings]
    assert codes.index("holder.list") < codes.index("cache.staircase")


def cleaned(times: int) -> Scene:
    scene = Scene()
    for i in range(times + 4):
        acts = [scene.make(32, line(5)) for _ in range(4)]
        scene.drop(*acts, where=line(6))
        if i < times:
            scene.clean(line(7))
    return scene


def test_empty_cache_in_the_loop_is_churn_and_the_replay_says_what_it_is_good_for() -> None:
    finding = cleaned(10).finding("cache.churn")
    assert finding is not None
    assert finding.bytes == 10 * 128 * MIB
    assert "train.py:7" in "\n".join(finding.evidence)
    verified = finding.advice[0].verified
    assert verified is not None
    assert verified.peak_reserved_after == verified.peak_reserved_before == 128 * MIB


def test_empty_cache_at_a_change_of_phase_is_none() -> None:
    assert cleaned(1).finding("cache.churn") is None
    assert cleaned(0).finding("cache.churn") is None


def test_a_retry_is_found_with_what_it_returned() -> None:
    scene = Scene(capacity=200 * MIB)
    scene.drop(scene.make(120, line(3)), where=line(3))
    scene.make(150, line(4))
    finding = scene.finding("cache.retries")
    assert finding is not None
    assert finding.bytes == 120 * MIB
    assert "memory was short once" in finding.title
    calm = Scene(capacity=400 * MIB)
    calm.drop(calm.make(120, line(3)), where=line(3))
    calm.make(150, line(4))
    assert calm.finding("cache.retries") is None


def phases(*, again: bool) -> Scene:
    scene = Scene()
    big = [scene.make(128, line(3)) for _ in range(4)]
    scene.drop(*big, where=line(4))
    for _ in range(60):
        scene.drop(scene.make(16, layer("linear", 6)), where=line(7))
    if again:
        scene.drop(*[scene.make(128, line(3)) for _ in range(4)], where=line(4))
    return scene


def test_what_an_early_phase_left_in_the_cache_is_idle_and_normal() -> None:
    finding = phases(again=False).finding("cache.idle")
    assert finding is not None
    assert finding.severity is Severity.NORMAL
    assert finding.bytes >= 3 * 128 * MIB
    assert phases(again=True).finding("cache.idle") is None


def test_the_peak_of_an_evaluation_is_outside_the_steps() -> None:
    scene = Scene()
    training = Training(scene)
    for i in range(12):
        training.step(batch=8)
        if i % 6 == 5:
            acts = [scene.make(60, layer("linear", 50)) for _ in range(6)]
            scene.drop(*acts, where=line(51))
    finding = scene.finding("outside.step")
    assert finding is not None
    assert finding.confidence is Confidence.INFERRED
    assert "torch.no_grad()" in finding.advice[0].text
    assert "train.py:50" in finding.evidence[0]


def test_a_long_sequence_is_inside_its_step() -> None:
    scene = Scene()
    training = Training(scene)
    for i in range(12):
        training.step(batch=80 if i == 7 else 8)
    assert scene.finding("outside.step") is None


@pytest.mark.parametrize("keep", [True, False])
def test_a_name_that_keeps_the_old_value_while_the_new_one_is_made(keep: bool) -> None:
    scene = Scene()
    scene.make(20, moved_to_device(2))
    old = None
    for _ in range(8):
        if old is not None and not keep:
            scene.drop(old, where=line(4))
            old = None
        new = scene.make(256, line(5))
        if old is not None:
            scene.drop(old, where=line(5))
        scene.drop(scene.make(1, line(6)), where=line(6))
        old = new
    finding = scene.finding("holder.overlap")
    assert (finding is not None) is keep
    if finding is not None:
        assert finding.bytes == 256 * MIB


def test_layers_that_feed_each_other_are_no_overlap() -> None:
    scene = Scene()
    for _ in range(6):
        x = scene.make(8, line(5))
        for _ in range(4):
            y = scene.make(64, layer("linear", 6))
            scene.drop(x, where=layer("linear", 6))
            x = y
        scene.drop(x, where=line(7))
    assert scene.finding("holder.overlap") is None


def test_a_healthy_run_gets_normal_findings_only() -> None:
    scene = Scene()
    training = Training(scene, mib=16)
    for _ in range(10):
        training.step()
    findings = scene.explain().findings
    assert {f.severity for f in findings} <= {Severity.NORMAL, Severity.INFO}
    assert "normal.optimizer_state" in {f.code for f in findings}
    assert not any(f.code.startswith(("growth", "holder", "stream", "oom")) for f in findings)


def test_every_finding_is_in_order_and_says_how_sure_it_is() -> None:
    findings = comb(64, 16, limit=1088).explain().findings
    rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2, Severity.NORMAL: 3}
    ranks = [rank[f.severity] for f in findings if not f.code.startswith("trace.")]
    assert ranks == sorted(ranks)
    assert all(f.confidence in Confidence for f in findings)


def test_settings_that_were_asked_for_but_do_not_hold_are_told() -> None:
    asked = parse_alloc_conf("expandable_segments:True", torch_version=(2, 11))
    scene = Scene(AllocatorSettings(conf=asked.conf))
    scene.make(40, line(3))
    assert scene.finding("setting.not_in_force") is not None
    plain = Scene()
    plain.make(40, line(3))
    assert plain.finding("setting.not_in_force") is None
