"""What every diagnosis looks at, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.split import Split, split_reserved
from tenure.lifetimes import ORDER, Sites, categorise, find_growth, find_steps
from tenure.replays import (
    Candidate,
    Layout,
    Replay,
    Trial,
    recorded_replay,
    replay,
    state_at,
    try_settings,
)
from tenure.streams import StreamUsage, stream_usage
from tenure.traces import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes import Growth, Steps
    from tenure.traces import Trace

Progress = Callable[[str], None]
DEFAULT = ""
ELASTIC = "tenure elastic"
GIVEN_BACK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
EXPANDABLE = "expandable_segments:True"
TRIED = (EXPANDABLE, "max_split_size_mb:128", "roundup_power2_divisions:4")


@dataclass(frozen=True)
class Share:
    """Live bytes of one line or one category at the peak."""

    label: str
    category: str
    bytes: int
    blocks: int


class Evidence:
    """One trace with all that is derived from it; each part is computed when first asked for."""

    def __init__(
        self, trace: Trace, capacity: int | None = None, progress: Progress = lambda _: None
    ) -> None:
        """Gathers nothing yet.

        Args:
            trace: What to explain.
            capacity: Limit on reserved bytes that the user asks about.
            progress: Called with a word before anything that may take a second.
        """
        self.trace = trace
        self.capacity = capacity
        self._progress = progress

    @cached_property
    def recorded(self) -> Replay:
        """The trace as recorded."""
        self._progress("replaying the recording")
        return recorded_replay(self.trace, timeline=True)

    @cached_property
    def replay(self) -> Replay:
        """The trace under the capacity asked about; the recorded one without."""
        if self.capacity is None:
            return self.recorded
        return replay(self.trace, capacity=self.capacity, timeline=True)

    @cached_property
    def at_reserved_peak(self) -> Layout:
        """What was where when most was reserved."""
        return state_at(self.trace, self.recorded.peak_event.reserved + 1)

    @cached_property
    def at_live_peak(self) -> Layout:
        """What was where when most was allocated."""
        return state_at(self.trace, self.recorded.peak_event.allocated + 1)

    @cached_property
    def split(self) -> Split:
        """Reserved bytes taken apart at their peak."""
        return split_reserved(self.at_reserved_peak)

    @cached_property
    def sites(self) -> Sites:
        """Who made each allocation."""
        return Sites(self.trace)

    @cached_property
    def steps(self) -> Steps | None:
        """Optimizer steps, if the recording names them."""
        return find_steps(self.trace)

    @cached_property
    def category(self) -> NDArray[np.int64]:
        """Category of each allocation, an index into `lifetimes.ORDER`."""
        return categorise(self.trace, self.steps)

    @cached_property
    def growth(self) -> Growth | None:
        """Live memory that rises to the end, if it does."""
        timeline = self.recorded.timeline
        if timeline is None:
            return None
        return find_growth(self.trace, timeline.allocated, self.sites, self.category, self.steps)

    @cached_property
    def streams(self) -> tuple[StreamUsage, ...]:
        """Bytes per stream."""
        return stream_usage(self.trace)

    @cached_property
    def candidates(self) -> dict[str, Candidate]:
        """The trace under other settings, by configuration string, and under our own rules."""
        self._progress("replaying under other settings")
        recorded = self.trace.settings.conf
        confs = dict.fromkeys((recorded, DEFAULT, *TRIED))
        trials = [*(Trial("torch", conf) for conf in confs), Trial("elastic", "")]
        tried = try_settings(
            self.trace, trials, calls=list(self.recorded.calls), capacity=self.capacity
        )
        return {c.conf if c.rules == "torch" else ELASTIC: c for c in tried}

    @cached_property
    def as_recorded(self) -> Candidate:
        """The recorded settings as one of the candidates, with the recorded peak."""
        tried = self.candidates[self.trace.settings.conf]
        if self.capacity is not None:
            return tried
        return replace(tried, peak_reserved=self.recorded.peak.reserved)

    def by_site(self, layout: Layout) -> tuple[Share, ...]:
        """Live bytes by category and line, most first."""
        rows = _live_rows(layout)
        number = layout.allocation[rows]
        key = self.category[number] * len(self.sites.table) + self.sites.of_allocation[number]
        shares = []
        for value, size, blocks in _grouped(key, layout.size[rows]):
            category, site = divmod(value, len(self.sites.table))
            shares.append(Share(self.sites.table[site].label, ORDER[category].value, size, blocks))
        return tuple(sorted(shares, key=lambda s: -s.bytes))

    def by_category(self, layout: Layout) -> tuple[Share, ...]:
        """Live bytes by category, most first."""
        rows = _live_rows(layout)
        shares = [
            Share("", ORDER[value].value, size, blocks)
            for value, size, blocks in _grouped(
                self.category[layout.allocation[rows]], layout.size[rows]
            )
        ]
        return tuple(sorted(shares, key=lambda s: -s.bytes))

    def label(self, allocation: int) -> str:
        """The line that made an allocation."""
        return self.label_of_site(int(self.sites.of_allocation[allocation]))

    def label_of_site(self, site: int) -> str:
        """The line of an entry in the table of sites."""
        return self.sites.table[site].label

    def before_failure(self) -> Layout | None:
        """What was where just before the first request that was not served."""
        failed = self.replay.first_oom
        if failed is None:
            return None
        event = failed.event
        if self.replay.compared:  # what it gave back on the way is recorded before the event
            while event > 0 and self.trace.events.action[event - 1] in GIVEN_BACK:
                event -= 1
        return state_at(
            self.trace,
            event,
            settings=self.replay.settings,
            calls=None if self.replay.compared else list(self.recorded.calls),
        )


def limit_of(evidence: Evidence) -> int | None:
    """The limit in bytes that the run met: the one asked about, or what the record shows."""
    if evidence.capacity is not None:
        return evidence.capacity
    shown = evidence.recorded.limit_range
    return shown[0] if shown else None


def _live_rows(layout: Layout) -> NDArray[np.int64]:
    return np.flatnonzero((layout.state == BlockState.LIVE) & (layout.allocation >= 0))


def _grouped(key: NDArray[np.int64], size: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    values, index, count = np.unique(key, return_inverse=True, return_counts=True)
    sums = np.bincount(index, weights=size, minlength=len(values)).astype(np.int64)
    return list(zip(values.tolist(), sums.tolist(), count.tolist(), strict=True))
