"""The answer of `tenure tune`, as text and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure.cards import CARDS, smallest_fitting
from tenure.replays import best as best_of
from tenure.reports.text import gib, rules_lines, visible, wrapped
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses import Tuning
    from tenure.replays import Candidate


def tuning_dict(tuning: Tuning, file: str) -> dict[str, Any]:
    """All sizes in bytes, times in seconds; fields are in docs/json.md."""
    best = tuning.best
    return {
        "file": file,
        "device": tuning.trace.device,
        "capacity": tuning.capacity,
        "live_peak": tuning.live_peak,
        "candidates": [_candidate(c) for c in tuning.candidates],
        "best": _candidate(best) if best else None,
        "recorded": _candidate(tuning.recorded),
        "plan": {"size": tuning.plan.size, "checked": tuning.plan.checked},
        "cards": [
            {
                "name": card.name,
                "usable": card.usable,
                "fits_recorded": tuning.recorded.smallest_capacity <= card.usable,
                "fits_best": best is not None and best.smallest_capacity <= card.usable,
            }
            for card in CARDS
        ],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "rules": candidate.rules,
        "conf": candidate.conf,
        "peak_reserved": candidate.peak_reserved,
        "peak_reserved_spread": list(candidate.spread),
        "smallest_capacity": candidate.smallest_capacity,
        "device_allocs": candidate.device_allocs,
        "device_frees": candidate.device_frees,
        "chunk_moves": candidate.chunk_moves,
        "stall_seconds": candidate.stall_seconds,
        "retries": candidate.retries,
        "fits": candidate.fits,
    }


def tuning_text(tuning: Tuning) -> str:
    """The answer first, then the table, then what the words mean."""
    lines = [*_answer(tuning), "", *_table(tuning), ""]
    lines += wrapped(
        "reserved: most bytes PyTorch takes from the driver. smallest card: the least limit under "
        "which the whole run is served, through PyTorch's own way out (return the cache, try "
        "again). calls: to the driver. stall: estimated time in those beyond the first growth, "
        "without the waits for the device that each return or retry brings."
    )
    return "\n".join(lines) + "\n"


def _answer(tuning: Tuning) -> list[str]:
    best, recorded = tuning.best, tuning.recorded
    if recorded.rules == "elastic":
        return _elastic_answer(tuning)
    if best is None:
        room = format_bytes(tuning.capacity or 0)
        least = min(tuning.candidates, key=lambda c: c.smallest_capacity)
        return wrapped(
            f"No setting of PyTorch makes this run fit in {room}: the best of them needs "
            f"{format_bytes(least.smallest_capacity)}, and its tensors alone hold "
            f"{format_bytes(tuning.live_peak)}."
        )
    if best.conf == recorded.conf or best.smallest_capacity >= 0.995 * recorded.smallest_capacity:
        lines = wrapped(
            "Nothing to gain: no setting lowers the smallest card for this run, "
            f"{format_bytes(recorded.smallest_capacity)}, by half a percent."
        )
    else:
        lines = wrapped(f"Set PYTORCH_CUDA_ALLOC_CONF={best.conf}" if best.conf else "Set nothing")
        lines += wrapped(
            f"Smallest card {format_bytes(best.smallest_capacity)} instead of "
            f"{format_bytes(recorded.smallest_capacity)}, reserved "
            f"{format_bytes(best.peak_reserved)} instead of "
            f"{format_bytes(recorded.peak_reserved)}; tensors hold "
            f"{format_bytes(tuning.live_peak)}."
        )
    return [*lines, *_card(best)]


def _elastic_answer(tuning: Tuning) -> list[str]:
    """No setting can be made: how the recorded rules do, and PyTorch's best beside them."""
    recorded = tuning.recorded
    lines = rules_lines(tuning.trace)[:-1]
    text = (
        f"Smallest card {format_bytes(recorded.smallest_capacity)}, reserved "
        f"{format_bytes(recorded.peak_reserved)}; tensors hold {format_bytes(tuning.live_peak)}."
    )
    if not recorded.fits:
        text = f"It does not fit in {format_bytes(tuning.capacity or 0)}. {text}"
    without = best_of(tuning.candidates, "torch")
    if without is not None:
        text += (
            f" Without tenure, PyTorch's best setting ({without.conf or 'default'}) needs a card "
            f"of {format_bytes(without.smallest_capacity)}."
        )
    return [*lines, *wrapped(text), *_card(recorded)]


def _card(candidate: Candidate) -> list[str]:
    card = smallest_fitting(candidate.smallest_capacity)
    if card is None:
        return []
    return wrapped(
        f"Fits on: {card.title} and up ({format_bytes(card.usable)} usable beside the CUDA "
        "context)."
    )


def _table(tuning: Tuning) -> list[str]:
    fits = "  fits" if tuning.capacity is not None else ""
    head = f"  {'setting (sizes in GiB)':<38}"
    lines = [f"{head}reserved  smallest   calls  stall s{fits}"]
    order = sorted(tuning.candidates, key=lambda c: (c.smallest_capacity, c.peak_reserved))
    for candidate in order:
        same = (candidate.rules, candidate.conf) == (tuning.recorded.rules, tuning.recorded.conf)
        mark = "*" if same else " "
        name = candidate.conf or ("default" if candidate.rules == "torch" else "tenure elastic")
        calls = candidate.device_allocs + candidate.device_frees + candidate.chunk_moves
        fit = "" if tuning.capacity is None else ("   yes" if candidate.fits else "    no")
        shown = tuning.recorded if same and tuning.recorded.rules == "elastic" else candidate
        lines += _row(f"{mark} {visible(name)}", shown, calls, fit)
    plan, bound = gib(tuning.plan.size), gib(tuning.live_peak)
    lines.append(f"  {'best placement found (offline plan)':<36}{plan:>10}{plan:>10}")
    lines.append(f"  {'live bytes (the bound)':<36}{bound:>10}{bound:>10}")
    lines.append("  * as recorded")
    return lines


def _row(name: str, candidate: Candidate, calls: int, fit: str) -> list[str]:
    numbers = (
        f"{gib(candidate.peak_reserved):>10}{gib(candidate.smallest_capacity):>10}"
        f"{calls:>8,}{candidate.stall_seconds:>9.3f}{fit}"
    )
    if len(name) <= 38:
        return [f"{name:<38}{numbers}"]
    return [name, f"{'':<38}{numbers}"]
