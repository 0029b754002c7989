"""Which steps of a run are recorded: what repeats is not, what is new or rises is."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from tenure.live.runs.concluding import conclude
from tenure.live.runs.counting import Counters
from tenure.live.runs.overdue import Overdue
from tenure.live.runs.record import Record
from tenure.live.runs.repetition import AGAIN, FIRST, KINDS, PATIENCE, Repetition
from tenure.live.runs.windows import Window, window_of

MIB = 1 << 20


class Script:
    """Counters of one device, step by step."""

    def __init__(self, repetition: Repetition | None = None) -> None:
        self.repetition = repetition or Repetition()
        self.number = self.allocations = self.asked = self.frees = self.failures = 0
        self.allocated, self.peak, self.reserved = 100 * MIB, 300 * MIB, 400 * MIB

    def step(self, batch: int = 64, *, keeps: int = 0, peak: int = 0, reserved: int = 0) -> bool:
        """One step with a batch of that size; whether the next one is recorded."""
        self.number += 1
        self.allocations += 1000
        self.asked += batch * MIB
        self.frees += 1000 - (1 if keeps else 0)
        self.allocated += keeps
        self.peak = max(self.peak, self.allocated, peak)
        self.reserved = max(self.reserved, reserved)
        now = Counters(
            *(0, self.allocated, self.allocated, self.allocated, self.reserved),
            *(self.peak, self.peak, self.peak, self.reserved),
            *(self.allocations, self.asked, self.frees, self.failures),
        )
        return self.repetition.ended(self.number, [now])

    def steps(self, *batches: int) -> str:
        """What follows each of them: R recorded, . not."""
        return "".join("R" if self.step(batch) else "." for batch in batches)


def test_steps_that_repeat_are_recorded_at_first_only() -> None:
    assert Script().steps(*[64] * 12) == "R" * (FIRST - 1) + "." * 9


def test_a_first_step_of_another_kind_does_not_matter() -> None:
    assert Script().steps(99, *[64] * 11) == "R" * (FIRST - 1) + "." * 9


def test_one_other_step_that_needs_no_more_is_not_worth_recording() -> None:
    script = Script()
    assert script.steps(*[64] * 6, 37, *[64] * 5) == "RRR" + "." * 9
    assert script.repetition.told(12) == (
        "Recorded: steps 1 to 4. 7 others asked for exactly what a recorded one did, by the "
        "allocator's counters, and were not recorded again; 1 did not, but used no more than one "
        "before them."
    )


def test_steps_that_begin_to_differ_are_recorded_from_the_second_on() -> None:
    script = Script()
    script.steps(*[64] * 6)
    assert script.steps(*range(1, 20)) == "." + "R" * 18


def test_steps_that_never_repeat_are_all_recorded() -> None:
    script = Script()
    assert script.steps(*range(1, 50)) == "R" * 49
    assert script.repetition.told(49) == ""


def test_kinds_that_alternate_are_known_once_each_was_recorded() -> None:
    assert Script().steps(*[64, 32, 16] * 6) == "RRR" + "." * 15


def test_a_kind_that_alternates_only_later_is_learned() -> None:
    script = Script()
    script.steps(*[64] * 8)
    assert script.steps(*[64, 20] * 8).endswith("." * 10)


def test_live_bytes_that_rise_keep_recording_on() -> None:
    script = Script()
    assert all(script.step(keeps=MIB) for _ in range(30))


def test_a_leak_that_begins_late_is_recorded_from_its_second_step_on() -> None:
    script = Script()
    script.steps(*[64] * 1000)
    assert [script.step(keeps=512) for _ in range(20)] == [True] * 20


def test_a_leak_of_every_tenth_step_is_recorded_ever_longer() -> None:
    script = Script()
    shown = "".join(
        "R" if script.step(keeps=MIB if number % 10 == 9 else 0) else "." for number in range(200)
    )
    assert [shown[i : i + 20].count("R") for i in (0, 20, 40, 100, 180)] == [6, 12, 16, 20, 20]
    assert script.repetition.grown == 20


def test_an_evaluation_that_needs_most_is_waited_for_and_recorded_when_it_comes_again() -> None:
    script = Script()
    shown = ""
    for number in range(200):
        evaluates = number % 20 == 19
        goes_on = script.step(200 if evaluates else 64, peak=500 * MIB if evaluates else 0)
        shown += "R" if goes_on else "."
    assert shown[19:].startswith("R" * 21 + ".")
    assert "R" not in shown[42:]
    assert script.repetition.told(200).startswith("Recorded: steps 1 to 4 and 21 to 41. 174 others")


def test_what_needed_most_once_is_not_waited_for_without_end() -> None:
    script = Script()
    script.steps(*[64] * 20)
    script.step(200, peak=500 * MIB)
    assert script.steps(*[64] * 200) == "R" * (PATIENCE - 1) + "." * (201 - PATIENCE)


@pytest.mark.parametrize("what", [{"peak": 301 * MIB}, {"reserved": 500 * MIB}])
def test_what_is_higher_than_ever_has_recording_begin_again(what: dict[str, int]) -> None:
    script = Script()
    script.steps(*[64] * 10)
    assert script.step(**what)
    assert script.steps(*[64] * 6) == "R" * (AGAIN - 1) + "." * (7 - AGAIN)
    assert script.repetition.told(17) == (
        "Recorded: steps 1 to 4 and 12 to 13. 10 others asked for exactly what a recorded one did, "
        "by the allocator's counters, and were not recorded again; 1 used more than any before: "
        "what came next was recorded."
    )


def test_requests_that_failed_have_recording_begin_again() -> None:
    script = Script()
    script.steps(*[64] * 10)
    script.failures += 1
    assert script.step()


def test_what_is_rare_and_never_caught_is_waited_for_ever_more_seldom() -> None:
    script = Script()
    shown = "".join(script.steps(*[64] * 5, 37) for _ in range(300))
    assert shown.count("R") < 0.05 * len(shown)
    assert "R" in shown[6:20]


def test_recording_does_not_rest_where_it_may_not() -> None:
    script = Script(Repetition(lambda: False))
    assert script.steps(*[64] * 20) == "R" * 20


def test_news_are_told_from_what_was_seen_before() -> None:
    script, told = Script(), []
    for batches in ([64] * 6, [37, 37, 64, 64], [*[64] * 4, 37, 37, 37, 64]):
        script.steps(*batches)
        told.append(script.repetition.news)
    assert told == [True, False, True]


def test_what_goes_on_without_steps_is_recorded_until_steps_repeat_again() -> None:
    script = Script()
    script.steps(*[64] * 6)
    script.repetition.overdue()
    assert script.repetition.recording
    assert script.steps(500, 64, 64, 64) == "RR.."
    script.steps(500)
    assert script.repetition.different == 2  # a step that was recorded in part is not known by it


def test_kinds_without_end_are_not_kept_without_end() -> None:
    script = Script()
    for batch in range(2 * KINDS):
        script.step(batch)
    assert len(script.repetition._recorded) <= KINDS
    assert len(script.repetition._seen) <= KINDS


# --- windows ------------------------------------------------------------------------------------


def snapshot(*sizes: int) -> dict[str, Any]:
    """Each is allocated, then freed, but for the last; one block lives all along."""
    trace: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        trace.append({"action": "alloc", "size": size, "time_us": 10**6 * (number + 1)})
        if number < len(sizes) - 1:
            trace += [{"action": what, "size": size, "time_us": 10**6 * (number + 1)}
                      for what in ("free_requested", "free_completed")]  # fmt: skip
    blocks = [
        {"state": "active_allocated", "size": 1024, "requested_size": 1000},
        {"state": "active_pending_free", "size": 512, "requested_size": sizes[-1]},
        {"state": "inactive", "size": 9999, "requested_size": 9999},
    ]
    segments = [{"device": 0, "total_size": 1 << 20, "blocks": blocks}]
    return {"device_traces": [trace], "segments": segments}


def test_a_windows_peak_is_reckoned_back_from_its_end() -> None:
    window = window_of(snapshot(10, 5000, 7), 0.5, 9.0, 100, out_of_memory=False)
    assert (window.peak, window.reserved) == (6000, 1 << 20)
    assert pickle.loads(window.snapshot) == snapshot(10, 5000, 7)
    assert window.covers(0.5)
    assert not window.covers(0.4)
    assert not window.covers(9.1)


def test_a_history_that_is_full_begins_with_its_first_event() -> None:
    assert window_of(snapshot(10, 20, 7), 0.5, 9.0, 7, out_of_memory=False).begun == 1.0


def test_the_better_evidence_is_of_an_out_of_memory_then_of_more_memory() -> None:
    low = Window(b"", 0, 1, 10, 10)
    assert low.says_more_than(None)
    assert not low.says_more_than(low)
    assert Window(b"", 1, 2, 11, 5).says_more_than(low)
    assert Window(b"", 1, 2, 10, 11).says_more_than(low)
    failed = Window(b"", 1, 2, 1, 1, out_of_memory=True)
    assert failed.says_more_than(low)
    assert not low.says_more_than(failed)


# --- what is overdue ----------------------------------------------------------------------------


def test_what_is_overdue_is_told_once_and_not_while_steps_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.live.runs.overdue.LEAST", 0.05)
    told = threading.Semaphore(0)
    overdue = Overdue(told.release)
    for _ in range(10):
        overdue.within(30)
    assert not told.acquire(timeout=0.2)
    overdue.within(0)
    assert told.acquire(timeout=10)
    assert not told.acquire(timeout=0.3)
    overdue.stop()


def test_nothing_is_told_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.live.runs.overdue.LEAST", 0.05)
    told: list[int] = []
    overdue = Overdue(lambda: told.append(1))
    overdue.stop()
    overdue.within(0)
    assert overdue._thread is not None
    overdue._thread.join(timeout=10)
    assert told == []


# --- what the report says -----------------------------------------------------------------------


def counters(peak: int) -> Counters:
    """Of a device that had so many bytes requested at most."""
    return Counters(0, 0, 0, 0, 0, peak, peak, peak, peak, 1)


@pytest.mark.parametrize(
    ("window", "ooms", "words"),
    [
        (Window(b"", 1.0, 2.0, 100 * MIB, 0), [], ""),
        (Window(b"", 1.0, 2.0, 70 * MIB, 0), [], "30.00 MiB more than at the highest recorded"),
        (Window(b"", 5.0, 5.1, 1, 0, out_of_memory=True), [5.0], "memory ran out while recording"),
        (Window(b"", 1.0, 5.1, 100 * MIB, 0, out_of_memory=True), [5.0], ""),
    ],
)
def test_what_the_recorded_part_lacks_is_said(
    window: Window, ooms: list[float], words: str
) -> None:
    record = Record()
    record.gpu.window, record.gpu.ooms, record.gpu.recorded = window, ooms, "Recorded: some."
    record.gpu.peaks[0] = counters(100 * MIB)
    told = conclude(record).missing
    assert bool(told) == bool(words)
    assert all(words in text for text in told)
