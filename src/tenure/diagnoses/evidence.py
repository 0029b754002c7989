"""What every diagnosis looks at, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses.device import DeviceUse, device_use
from tenure.diagnoses.split import Split, find_holes, split_reserved
from tenure.lifetimes import (
    NO_FRAMES,
    ORDER,
    Category,
    Sites,
    categorise,
    exact_block_sizes,
    find_growth,
    find_overlap,
    find_rounds,
    find_steps,
    flat_since,
    forward_sites,
    site_of,
)
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
from tenure.replays.tuning import split_sizes
from tenure.streams import StreamUsage, stream_usage
from tenure.traces import Action, BlockState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.lifetimes import Growth, Overlap, Rounds, Steps
    from tenure.traces import Trace

Progress = Callable[[str], None]
DEFAULT = ""
ELASTIC = "tenure elastic"
GIVEN_BACK = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
EXPANDABLE = "expandable_segments:True"
LEAST_UNUSED = 0.15  # of peak reserved, above peak live; below, caching costs what it costs
LEAST_SHARE = 0.05  # of reserved, pinned
LEAST_PINNED = 64 << 20  # bytes; a few segments of 20 MiB, begun by small tensors, are nothing
FEW_EVENTS = 300_000  # up to which all settings are tried, each to the last 2 MiB
SAME = 0.95  # of the peak reserved, for as much still being reserved
BUSY = 0.85  # of the live peak, for a moment to be as busy
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
        return state_at(self.recorded.trace, self.recorded.peak_event.reserved + 1)

    @cached_property
    def at_live_peak(self) -> Layout:
        """What was where when most was allocated."""
        return state_at(self.recorded.trace, self.recorded.peak_event.allocated + 1)

    @cached_property
    def split(self) -> Split:
        """Reserved bytes taken apart at their peak."""
        return split_reserved(self.at_reserved_peak)

    @cached_property
    def telling(self) -> tuple[Split, int]:
        """The split that tells most, and its event: before the failure, else at the peak."""
        layout, failed = self.before_failure, self.replay.first_oom
        if layout is None or failed is None:
            return self.split, self.recorded.peak_event.reserved
        return split_reserved(layout, failed.stream), failed.event

    @cached_property
    def device(self) -> DeviceUse | None:
        """What was on the device at a recorded out-of-memory."""
        return device_use(self.replay, self.telling[0].reserved)

    @cached_property
    def sites(self) -> Sites:
        """Who made each allocation."""
        return Sites(self.trace)

    @cached_property
    def steps(self) -> Steps | None:
        """Optimizer steps, if the recording names them."""
        return find_steps(self.trace)

    @cached_property
    def rounds(self) -> Rounds | None:
        """Repetitions: the optimizer's steps, else what a loop does again and again."""
        return find_rounds(self.trace, self.steps)

    @cached_property
    def category(self) -> NDArray[np.int64]:
        """Category of each allocation, an index into `lifetimes.ORDER`."""
        return categorise(self.trace, self.steps, self.rounds)

    @cached_property
    def forward(self) -> NDArray[np.int64]:
        """For each allocation of backward the site of its forward line; -1 for none."""
        return forward_sites(self.trace, self.sites)

    @cached_property
    def allocated(self) -> NDArray[np.int64]:
        """Live bytes after each event."""
        timeline = self.recorded.timeline
        return timeline.allocated if timeline else np.zeros(0, np.int64)

    @cached_property
    def growths(self) -> tuple[Growth, ...]:
        """Where live memory rises from round to round, most bytes first."""
        lasting = self.category == ORDER.index(Category.WORKSPACE)
        return find_growth(self.trace, self.allocated, self.sites, self.rounds, lasting)

    @cached_property
    def flat_since(self) -> int | None:
        """The round from which on live memory is level, as people count."""
        if self.rounds is None:
            return None
        return flat_since(self.allocated, self.sites, self.rounds, self.trace)

    @cached_property
    def overlap(self) -> Overlap | None:
        """What the round before the peak left alive at the peak."""
        return find_overlap(self.trace, self.rounds, self.recorded.peak_event.allocated)

    @cached_property
    def streams(self) -> tuple[StreamUsage, ...]:
        """Bytes per stream."""
        sizes = exact_block_sizes(self.recorded.trace, self.allocated)
        return stream_usage(self.recorded.trace, sizes)

    @property
    def elastic(self) -> bool:
        """Whether the run was under tenure's own rules: settings of PyTorch had no effect."""
        return self.trace.settings.rules == "elastic"

    @property
    def setting(self) -> str:
        """The recorded settings as `candidates` names them."""
        return ELASTIC if self.elastic else self.trace.settings.conf

    @cached_property
    def candidates(self) -> dict[str, Candidate]:
        """The trace under other settings, by configuration string, and under our own rules."""
        self._progress("replaying under other settings")
        recorded = () if self.elastic else (self.setting,)
        confs = dict.fromkeys((*recorded, DEFAULT, *TRIED))
        if self.pins_matter and len(self.trace.events) <= FEW_EVENTS:
            sizes = split_sizes(self.trace)[:1]  # what recurs and must not be split
            confs |= dict.fromkeys(f"max_split_size_mb:{size}" for size in sizes)
        trials = [*(Trial("torch", conf) for conf in confs), Trial("elastic", "")]
        tried = try_settings(
            self.trace,
            trials,
            calls=list(self.recorded.calls),
            capacity=self.capacity,
            roughly=len(self.trace.events) > FEW_EVENTS,
        )
        return {c.conf if c.rules == "torch" else ELASTIC: c for c in tried}

    @cached_property
    def as_recorded(self) -> Candidate:
        """The recorded settings as one of the candidates, with the recorded peak."""
        tried = self.candidates[self.setting]
        if self.capacity is not None:
            return tried
        peak = self.recorded.peak.reserved
        if self.elastic and self.recorded.recorded_reserved is not None:
            peak = self.recorded.recorded_reserved
        return replace(tried, peak_reserved=peak)

    def by_site(self, layout: Layout) -> tuple[Share, ...]:
        """Live bytes by category and line, most first."""
        rows = _live_rows(layout)
        number = layout.allocation[rows]
        count = len(self.sites.table)
        # Lines of the forward pass, for what backward made, are numbered behind the lines.
        forward = self.forward[number]
        place = np.where(forward >= 0, count + forward, self.sites.of_allocation[number])
        shares = []
        for value, size, blocks in _grouped(
            self.category[number] * 2 * count + place, layout.size[rows]
        ):
            category, site = divmod(value, 2 * count)
            label = self.label_of_site(site % count)
            if site >= count:
                label = f"backward of {label}"
            shares.append(Share(label, ORDER[category].value, size, blocks))
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
        """The line that made an allocation, or whose backward did."""
        site = int(self.sites.of_allocation[allocation])
        if self.forward[allocation] >= 0:
            return f"backward of {self.label_of_site(int(self.forward[allocation]))}"
        return self.label_of_site(site)

    def line_of_event(self, event: int) -> str:
        """The line at which an event happened; empty where the record has none."""
        label = site_of(self.trace.stacks.frames(int(self.trace.events.stack[event]))).label
        return "" if label == NO_FRAMES else label

    def label_of_site(self, site: int) -> str:
        """The line of an entry in the table of sites."""
        return self.sites.table[site].label

    @cached_property
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
            self.recorded.trace,
            event,
            settings=self.replay.settings,
            calls=None if self.replay.compared else list(self.recorded.calls),
        )

    @cached_property
    def pins_matter(self) -> bool:
        """Whether live blocks pin enough cached memory to be worth a word."""
        if not len(self.trace.events) or not self.recorded.peak.reserved:
            return False
        layout, _ = self.most_pinned
        reserved = int(layout.size.sum())
        if find_holes(layout, self.split.stream).total < max(LEAST_PINNED, LEAST_SHARE * reserved):
            return False
        unused = reserved - self.recorded.peak.allocated
        return unused >= LEAST_UNUSED * reserved or self.replay.first_oom is not None

    @cached_property
    def most_pinned(self) -> tuple[Layout, int]:
        """The moment that shows what live blocks pin, and its event.

        Just before the failure if there was one. Else when most was reserved; or, where as much
        was still reserved and nearly as much live, after the last event, if more is pinned then.
        """
        layout = self.before_failure
        failed = self.replay.first_oom
        if layout is not None and failed is not None:
            return layout, failed.event
        first, last = self.at_reserved_peak, self.recorded.blocks
        events = len(self.trace.events)
        reserved, live = int(last.size.sum()), self.recorded.end.allocated
        alike = (
            reserved >= SAME * self.recorded.peak.reserved
            and live >= BUSY * self.recorded.peak.allocated
        )
        if alike and split_reserved(last).remainders.bytes > self.split.remainders.bytes:
            return last, events
        return first, self.recorded.peak_event.reserved


def limit_of(evidence: Evidence) -> int | None:
    """The limit in bytes that the run met: asked about, recorded, or what the record shows."""
    if evidence.capacity is not None:
        return evidence.capacity
    if evidence.trace.settings.limit >= 0:
        return evidence.trace.settings.limit
    shown = evidence.recorded.limit_range
    return shown[0] if shown else None


def _live_rows(layout: Layout) -> NDArray[np.int64]:
    return np.flatnonzero((layout.state == BlockState.LIVE) & (layout.allocation >= 0))


def _grouped(key: NDArray[np.int64], size: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    values, index, count = np.unique(key, return_inverse=True, return_counts=True)
    sums = np.bincount(index, weights=size, minlength=len(values)).astype(np.int64)
    return list(zip(values.tolist(), sums.tolist(), count.tolist(), strict=True))
