"""What explain says of real recordings: the numbers, the advice, the text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from shared_data import EXAMPLES
from tenure.diagnoses import Severity, explain
from tenure.replays import replay
from tenure.reports import explanation_dict, explanation_text
from tenure.settings import parse_alloc_conf
from tenure.snapshots import load
from tenure.units import GIB, MIB

if TYPE_CHECKING:
    from tenure.diagnoses import Explanation
    from tenure.traces import Trace

LIMIT = int(5.5 * GIB)


@cache
def explained(name: str, capacity: int | None = None) -> Explanation:
    return explain(load(EXAMPLES / f"{name}.pickle.xz"), capacity=capacity)


def codes(explanation: Explanation) -> list[str]:
    return [finding.code for finding in explanation.findings]


def test_reserved_is_taken_apart_into_parts_that_add_up() -> None:
    for name in ("gpt2_varlen", "prefetch_streams", "resnet50", "leak_graph"):
        split = explained(name).split
        parts = (
            split.live,
            split.pending,
            split.whole,
            split.remainders,
            split.other_streams,
            split.private,
        )
        assert sum(part.bytes for part in parts) == split.reserved, name


def test_a_run_with_varying_lengths_is_explained_by_what_its_cache_holds() -> None:
    explanation = explained("gpt2_varlen")
    split = explanation.split
    assert split.reserved == 22_055_747_584
    assert split.live.bytes == 13_381_983_232
    assert (split.whole.bytes, split.whole.blocks) == (6_671_040_512, 23)
    assert (split.remainders.bytes, split.remainders.blocks) == (2_002_723_840, 119)
    assert codes(explanation)[:2] == ["cache.staircase", "fragmentation.remainders"]


def test_advice_is_what_the_replay_and_the_real_run_gave() -> None:
    """The real run under expandable segments reserved 14,323,548,160 bytes."""
    advice = explained("gpt2_varlen").findings[0].advice
    assert [a.conf for a in advice] == ["expandable_segments:True", None]
    assert advice[1].text.startswith("tenure elastic")
    verified = advice[0].verified
    assert verified is not None
    assert verified.peak_reserved_before == 22_055_747_584
    assert verified.peak_reserved_after == 14_323_548_160
    assert verified.smallest_after < verified.smallest_before


def test_no_setting_is_advised_that_makes_the_smallest_card_larger() -> None:
    for name in ("gpt2_varlen", "prefetch_streams", "llama_lora.limit5.5"):
        for finding in explained(name).findings:
            for advice in finding.advice:
                if advice.conf is None:
                    continue
                assert advice.verified is not None
                assert advice.verified.smallest_after <= advice.verified.smallest_before


def test_the_smallest_card_runs_and_two_mebibytes_less_do_not() -> None:
    explanation = explained("prefetch_streams")
    trace = explanation.trace
    for candidate in explanation.candidates:
        least, rules = candidate.smallest_capacity, candidate.rules
        runs = replay(trace, conf=candidate.conf, capacity=least, rules=rules)
        fails = replay(trace, conf=candidate.conf, capacity=least - 2 * MIB, rules=rules)
        assert runs.first_oom is None, candidate.conf
        assert fails.first_oom is not None, candidate.conf
        assert parse_alloc_conf(candidate.conf).conf == candidate.conf


def test_a_real_out_of_memory_is_explained_to_the_byte() -> None:
    explanation = explained("llama_lora.limit5.5", LIMIT)
    finding = explanation.findings[0]
    assert finding.code == "oom"
    assert finding.severity is Severity.ERROR
    assert explanation.replay.first_oom is not None
    assert explanation.replay.first_oom.event == 15_752
    text = "\n".join(finding.evidence)
    assert "limit 5.50 GiB = live 3.69 + cached 0.90 + never reserved 0.90" in text
    assert "in 29 pieces, the largest 761.17 MiB" in text
    assert "the largest request that could have been served: 968.00 MiB" in text
    assert next(a.conf for a in finding.advice if a.conf) == "expandable_segments:True"


def test_the_largest_request_that_fits_is_served_and_a_larger_one_is_not() -> None:
    """968 MiB is said to fit when the recorded request for 988 MiB failed."""
    trace = load(EXAMPLES / "llama_lora.limit5.5.pickle.xz")
    at = 15_752
    assert replay(_asking(trace, at, 968 * MIB), capacity=LIMIT, conf="").first_oom is None
    failed = replay(_asking(trace, at, 970 * MIB), capacity=LIMIT, conf="").first_oom
    assert failed is not None
    assert failed.event == at


def _asking(trace: Trace, event: int, size: int) -> Trace:
    """The trace with another size in its out-of-memory event."""
    events = trace.events
    sizes = events.size.copy()
    sizes[event] = size
    return replace(trace, events=replace(events, size=sizes))


def test_without_a_named_limit_the_record_shows_where_it_was() -> None:
    recorded = explained("llama_lora.limit5.5").replay
    assert recorded.exact
    assert recorded.limit_range is not None
    low, high = recorded.limit_range
    assert low <= LIMIT < high


def test_memory_that_grows_every_step_is_found_with_its_line() -> None:
    finding = explained("leak_graph").findings[0]
    assert finding.code == "growth"
    assert "28.00 MiB every step" in finding.title
    assert "24.00 MiB a step" in finding.evidence[0]
    assert "linear.py:134" in finding.evidence[0]


def test_memory_that_waits_for_another_stream_is_found() -> None:
    explanation = explained("prefetch_streams")
    pending = [f for f in explanation.findings if f.code == "stream.pending"]
    assert len(pending) == 1
    assert "frees waited" in pending[0].evidence[0]
    assert "736 ms" in pending[0].evidence[1]
    assert "of workloads.py:139 prefetch_streams" in pending[0].evidence[2]
    assert {u.stream: u.waited for u in explanation.streams}[0] == 0


def test_a_healthy_run_gets_only_normal_findings() -> None:
    explanation = explained("resnet50")
    assert {f.severity for f in explanation.findings} == {Severity.NORMAL}
    assert explanation_text(explanation).startswith("Nothing wrong.")


def test_live_bytes_by_line_and_by_category_add_up_to_allocated() -> None:
    for name in ("gpt2_varlen", "leak_graph", "resnet50", "prefetch_streams"):
        explanation = explained(name)
        allocated = explanation.replay.peak.allocated
        assert sum(s.bytes for s in explanation.by_site) == allocated
        assert sum(s.bytes for s in explanation.by_category) == allocated


def test_categories_fit_what_the_script_made() -> None:
    """leak_graph: parameters, gradients, two Adam states and its temporaries, 96.05 MiB each."""
    shares = {s.category: s.bytes for s in explained("leak_graph").by_category}
    parameters = shares["parameters"]
    assert parameters == 100_712_448
    assert shares["gradients"] == parameters
    assert shares["optimizer state"] == 2 * parameters


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("gpt2_varlen", None),
        ("leak_graph", None),
        ("prefetch_streams", None),
        ("resnet50", None),
        ("llama_lora.limit5.5", LIMIT),
    ],
)
def test_the_text_is_as_agreed_and_fits_the_screen(name: str, capacity: int | None) -> None:
    text = explanation_text(explained(name, capacity))
    assert all(len(line) <= 80 for line in text.splitlines())
    agreed = GOLDEN_TEXT / f"explain_{name}.txt"
    assert text == agreed.read_text(encoding="utf-8"), (
        "the text changed; if it should, run python tests/update_text.py"
    )


GOLDEN_TEXT = EXAMPLES.parent / "tests" / "golden" / "text"


def test_the_plain_form_has_the_fields_of_the_contract() -> None:
    plain = explanation_dict(explained("gpt2_varlen"), "f")
    assert set(plain) >= {"file", "complete", "missing", "peak", "findings"}
    assert set(plain["peak"]) >= {
        "requested",
        "allocated",
        "active",
        "reserved",
        "at_event",
        "by_site",
        "by_category",
    }
    for finding in plain["findings"]:
        assert set(finding) == {
            "code",
            "severity",
            "confidence",
            "bytes",
            "title",
            "evidence",
            "advice",
            "more",
        }
        for advice in finding["advice"]:
            assert set(advice) == {"text", "conf", "verified"}
