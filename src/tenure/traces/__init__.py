"""What happened: events, stacks, segments as columns (numpy), with the state at any moment."""

from tenure.traces.beginning import StartBlock, StartSegment
from tenure.traces.columns import (
    Action,
    Annotation,
    Blocks,
    BlockState,
    Events,
    Frame,
    Segments,
    Stacks,
    State,
)
from tenure.traces.notes import Note
from tenure.traces.pairing import Allocations
from tenure.traces.trace import DEFAULT_POOL, Trace, make_trace

__all__ = [
    "DEFAULT_POOL",
    "Action",
    "Allocations",
    "Annotation",
    "BlockState",
    "Blocks",
    "Events",
    "Frame",
    "Note",
    "Segments",
    "Stacks",
    "StartBlock",
    "StartSegment",
    "State",
    "Trace",
    "make_trace",
]
