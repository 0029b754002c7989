"""A trace through the engine: compare with the record, what-if, smallest capacity."""

from tenure.replays.candidates import Candidate, Trial, try_settings
from tenure.replays.capacity import smallest_capacity
from tenure.replays.replaying import asked_settings, recorded_replay, replay, state_at, what_if
from tenure.replays.result import (
    ByteCounts,
    Divergence,
    Layout,
    OutOfMemory,
    Replay,
    Timeline,
)
from tenure.replays.tuning import as_recorded, best, live_peak, tune

__all__ = [
    "ByteCounts",
    "Candidate",
    "Divergence",
    "Layout",
    "OutOfMemory",
    "Replay",
    "Timeline",
    "Trial",
    "as_recorded",
    "asked_settings",
    "best",
    "live_peak",
    "recorded_replay",
    "replay",
    "smallest_capacity",
    "state_at",
    "try_settings",
    "tune",
    "what_if",
]
