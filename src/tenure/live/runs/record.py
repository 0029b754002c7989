"""What a watched run leaves behind: births, looks, steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.live.runs.gpu import GpuRecord

if TYPE_CHECKING:
    from tenure.lifetimes.holders import Holders
    from tenure.live.runs.frames import FrameCode, Site
    from tenure.live.runs.stepping import StepMark


@dataclass(slots=True)
class Birth:
    """A storage that the script made.

    Attributes:
        serial: Number of its birth.
        bytes: Its size.
        device: Such as "cuda:0".
        lines: The user's frames when it was made, inner first.
        passes: Backward passes begun before.
        fate: Empty while it lives; "backward" if a backward pass let it go, else "dropped".
        fate_passes: Backward passes begun when it went.
    """

    serial: int
    bytes: int
    device: str
    lines: tuple[Site, ...]
    passes: int
    fate: str = ""
    fate_passes: int = 0
    reference: Any = None


@dataclass(frozen=True)
class Look:
    """Holders at one moment.

    Attributes:
        why: What led to it: "peak", "collect", "often", "step", "rising", "failed", "end".
        operation: Operations that had run.
        passes: Backward passes begun.
        live: Live bytes as counted.
        holders: What held them.
        births: Storage -> its birth, for those seen being made.
        lines: The user's running frames, inner first, and the code running in each.
        collecting: Whether the garbage collector was enabled.
        time: Unix time at its middle.
        steps: Optimizer steps made.
    """

    why: str
    operation: int
    passes: int
    live: int
    holders: Holders
    births: dict[int, Birth]
    lines: tuple[Site, ...]
    running: tuple[FrameCode, ...]
    collecting: bool
    time: float = 0.0
    steps: int = 0


@dataclass
class Record:
    """All that a watched run left.

    Attributes:
        looks: Holders, moment by moment.
        peak: Most bytes live at once, by counting.
        end: Bytes live at the end.
        operations: Operations that ran.
        passes: Backward passes begun.
        collected: Bytes that the garbage collector freed, collection by collection.
        full_collections: Seconds of each full collection.
        seconds: Spent looking.
        missing: What was not looked at, in sentences.
        steps: The optimizer's steps.
        pinned: Pinned host memory that was asked for: where, how many bytes.
        pinned_alive: Bytes of it that tensors still use at the end.
        gpu: What was seen of the GPUs.
    """

    looks: list[Look] = field(default_factory=list)
    peak: int = 0
    peak_operation: int = 0
    end: int = 0
    operations: int = 0
    passes: int = 0
    collected: list[int] = field(default_factory=list)
    full_collections: list[float] = field(default_factory=list)
    seconds: float = 0.0
    missing: list[str] = field(default_factory=list)
    device: str = "cpu"
    steps: list[StepMark] = field(default_factory=list)
    pinned: list[tuple[int, tuple[Site, ...]]] = field(default_factory=list)
    pinned_alive: int = 0
    gpu: GpuRecord = field(default_factory=GpuRecord)
