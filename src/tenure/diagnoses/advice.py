"""Settings as advice, only those that the replay confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.diagnoses.finding import Advice, Verified
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.diagnoses.evidence import Evidence
    from tenure.replays import Candidate

WORTHWHILE = 0.98  # of the value before; less gain is not worth a setting
NEARLY = 1.03  # times the best, within which the plainest setting is told first
HARMLESS = 1.05  # of the peak, for a setting that makes the card smaller


def settings_advice(evidence: Evidence) -> tuple[Advice, ...]:
    """Settings that lower the peak reserved or the smallest card, best first.

    None for a run under elastic rules, which heed no settings.
    """
    if evidence.elastic:
        return ()
    before = evidence.as_recorded
    same = evidence.candidates[evidence.setting]
    limit = _limit_met(evidence)
    better = [
        candidate
        for candidate in evidence.candidates.values()
        if candidate is not same and candidate.fits and _helps(before, candidate, limit)
    ]
    least = min((c.smallest_capacity for c in better), default=0)

    def order(candidate: Candidate) -> tuple[bool, bool, bool, int, int]:
        """Settings first, as they need no other allocator; of about equal ones the plainest."""
        return (
            candidate.rules != "torch",
            candidate.smallest_capacity > NEARLY * least,
            "expandable" not in candidate.conf,
            candidate.smallest_capacity,
            candidate.peak_reserved,
        )

    better.sort(key=order)
    return tuple(_advice(before, candidate, limit) for candidate in better)


def _limit_met(evidence: Evidence) -> int | None:
    """A limit under which the recorded run failed; None if it did not, or one was asked about."""
    if evidence.capacity is not None or evidence.replay.first_oom is None:
        return None
    shown = evidence.recorded.limit_range
    return shown[0] if shown else None


def worth_a_setting(advice: tuple[Advice, ...]) -> bool:
    """Whether a setting of PyTorch's own would help: then something is wrong as things are."""
    return any(a.conf is not None for a in advice)


def _helps(before: Candidate, after: Candidate, limit: int | None) -> bool:
    if limit is not None:
        return after.smallest_capacity <= limit
    if not before.fits and after.fits:
        return True
    lower_peak = after.peak_reserved < WORTHWHILE * before.peak_reserved
    smaller_card = after.smallest_capacity < WORTHWHILE * before.smallest_capacity
    no_worse = (
        after.peak_reserved <= HARMLESS * before.peak_reserved
        and after.smallest_capacity <= before.smallest_capacity
    )
    return no_worse and (lower_peak or smaller_card)


def _advice(before: Candidate, after: Candidate, limit: int | None) -> Advice:
    setting = after.conf or "PyTorch's default settings"
    if after.rules == "elastic":
        setting = "tenure elastic (tenure.install())"
    reserved = (
        f"{format_bytes(after.peak_reserved)} reserved instead of "
        f"{format_bytes(before.peak_reserved)}"
    )
    if limit is not None:
        reserved = f"runs within the limit of {format_bytes(limit)}"
    text = (
        f"{setting}: {reserved}; smallest card {format_bytes(after.smallest_capacity)} instead of "
        f"{format_bytes(before.smallest_capacity)}"
    )
    verified = Verified(
        before.peak_reserved,
        after.peak_reserved,
        before.smallest_capacity,
        after.smallest_capacity,
    )
    return Advice(text, after.conf if after.rules == "torch" else None, verified)
