"""Settings as advice, only those that the replay confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Verified
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.replays import Candidate

WORTHWHILE = 0.98  # of the value before; less gain is not worth a setting
HARMLESS = 1.05  # of the peak, for a setting that makes the card smaller


def settings_advice(evidence: Evidence) -> tuple[Advice, ...]:
    """Settings that lower the peak reserved or the smallest card, best first."""
    before = evidence.as_recorded
    same = evidence.candidates[before.conf]
    better = [
        candidate
        for candidate in evidence.candidates.values()
        if candidate is not same and candidate.fits and _helps(before, candidate)
    ]
    # Settings first: they need no other allocator in the process.
    better.sort(key=lambda c: (c.rules != "torch", c.smallest_capacity, c.peak_reserved))
    return tuple(_advice(before, candidate) for candidate in better)


def _helps(before: Candidate, after: Candidate) -> bool:
    if not before.fits and after.fits:
        return True
    lower_peak = after.peak_reserved < WORTHWHILE * before.peak_reserved
    smaller_card = after.smallest_capacity < WORTHWHILE * before.smallest_capacity
    no_worse = (
        after.peak_reserved <= HARMLESS * before.peak_reserved
        and after.smallest_capacity <= before.smallest_capacity
    )
    return no_worse and (lower_peak or smaller_card)


def _advice(before: Candidate, after: Candidate) -> Advice:
    setting = after.conf or "PyTorch's default settings"
    if after.rules == "elastic":
        setting = "tenure elastic (tenure.install())"
    text = (
        f"{setting}: {format_bytes(after.peak_reserved)} reserved instead of "
        f"{format_bytes(before.peak_reserved)}; smallest card "
        f"{format_bytes(after.smallest_capacity)} instead of "
        f"{format_bytes(before.smallest_capacity)}"
    )
    verified = Verified(
        before.peak_reserved,
        after.peak_reserved,
        before.smallest_capacity,
        after.smallest_capacity,
    )
    return Advice(text, after.conf if after.rules == "torch" else None, verified)
