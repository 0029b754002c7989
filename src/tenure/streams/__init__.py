"""Bytes per stream, and what the streams do to each other."""

from tenure.streams.accesses import Access, Block, Conflict, Kind, Race, Site, Use
from tenure.streams.checking import Checker
from tenure.streams.clocks import Clocks, Stamp, StreamId
from tenure.streams.extents import Extent, Overlap, dense, strided
from tenure.streams.pending import PendingFrees
from tenure.streams.usage import StreamUsage, stream_usage

__all__ = [
    "Access",
    "Block",
    "Checker",
    "Clocks",
    "Conflict",
    "Extent",
    "Kind",
    "Overlap",
    "PendingFrees",
    "Race",
    "Site",
    "Stamp",
    "StreamId",
    "StreamUsage",
    "Use",
    "dense",
    "stream_usage",
    "strided",
]
