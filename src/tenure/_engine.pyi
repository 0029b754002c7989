# The native module as Python sees it, checked against the built one by tests/test_engine_stub.py.
#
# Sizes and addresses are bytes, -1 is no limit, streams are raw handles, and a pool is PyTorch's
# pair, (0, 0) the default. Errors are those of tenure.errors.

from collections.abc import Sequence
from types import CodeType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Pool: TypeAlias = tuple[int, int]
_Range: TypeAlias = tuple[int, int]  # address, size
# address, size, requested, pending, allocation
_SavedBlock: TypeAlias = tuple[int, int, int, bool, int]
# address, size, stream, pool, small, arena, mapped runs, blocks
_SavedSegment: TypeAlias = tuple[
    int, int, int, _Pool, bool, bool, Sequence[_Range], Sequence[_SavedBlock]
]
# begin, end, size, stream
_Intervals: TypeAlias = tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]
]
_Call: TypeAlias = tuple[int, _Pool, bool]  # event, pool, whether its owner let go

class _BinaryStream(Protocol):
    def read(self, size: int, /) -> bytes: ...

class Settings:
    torch_version: tuple[int, int]
    expandable_segments: bool
    max_split_size: int
    max_non_split_rounding: int
    large_segment_size: int
    roundup_power2_divisions: Sequence[int]  # 16 entries, from 1 MiB; 0 is off
    garbage_collection_threshold: float  # of the limit; 0 is off
    limit: int
    device_memory: int
    rules: str  # "torch" or "elastic"; what follows is for elastic rules
    chunk_divisor: int
    chunk_size: int  # 0: from the divisor
    soft_limit: float  # of the live peak; 0 is off
    # microseconds: create, map, access, unmap, release, release a MiB, event
    call_costs: Sequence[float]
    def __init__(self) -> None: ...

class Device: ...

class VirtualDevice(Device):
    def __init__(self, capacity: int = -1, placement: str = "descending") -> None: ...
    def finish(self, stream: int, /) -> None: ...
    @property
    def used(self) -> int: ...

class HostDevice(Device):
    def __init__(self, capacity: int = -1) -> None: ...
    def finish(self, stream: int, /) -> None: ...
    @property
    def used(self) -> int: ...

class Allocator:
    def __init__(self, settings: Settings, device: Device, /) -> None: ...
    def allocate(self, size: int, stream: int = 0, pool: _Pool = (0, 0)) -> int: ...
    def free(self, address: int, /) -> None: ...
    def record_stream(self, address: int, stream: int, /) -> None: ...
    def empty_cache(self) -> None: ...
    def empty_cache_pool(self, pool: _Pool, /) -> None: ...
    def create_pool(self, pool: _Pool, /) -> None: ...
    def release_pool(self, pool: _Pool, /) -> None: ...
    def set_no_split(self, pool: _Pool, /) -> None: ...
    def set_use_on_oom(self, pool: _Pool, use: bool, /) -> None: ...
    def set_limit(self, limit: int, /) -> None: ...
    def begin_capture(self) -> None: ...
    def end_capture(self) -> None: ...
    def pin(self, address: int, size: int, /) -> None: ...
    def unpin(self, address: int, size: int, /) -> None: ...
    def statistics(self) -> dict[str, int]: ...
    def elastic_statistics(self) -> dict[str, Any]: ...
    def reset_peak(self) -> None: ...
    def reset_accumulated(self) -> None: ...
    def segment_events(self) -> list[tuple[int, int, int]]: ...  # action, address, size
    # segment, address, size, requested, state, stream, pool
    def blocks(self) -> list[tuple[int, int, int, int, int, int, _Pool]]: ...
    def finish(self, stream: int, /) -> None: ...
    def check(self) -> None: ...

def round_size(settings: Settings, requested: int, /) -> int: ...
def should_split(settings: Settings, small: bool, rounded: int, block_size: int) -> bool: ...
def replay(
    settings: Settings,
    action: NDArray[np.uint8],
    address: NDArray[np.uint64],
    size: NDArray[np.int64],
    stream: NDArray[np.uint64],
    pool: NDArray[np.int32],
    allocation: NDArray[np.int64],
    *,
    pools: Sequence[_Pool],
    start: Sequence[_SavedSegment],
    allocations: int,
    calls: Sequence[_Call],
    known_calls: Sequence[int],
    recorded_peak: int,
    compare: bool,
    capacity: int = -1,
    ascending: bool = False,
    stop_at_oom: bool = False,
    until: int = -1,
    timeline: bool = False,
    slack: Sequence[tuple[int, int]] = ...,
) -> dict[str, Any]: ...
def read_snapshot(source: bytes | memoryview | _BinaryStream) -> dict[str, Any]: ...
def plan_intervals(
    born: NDArray[np.int64],
    done: NDArray[np.int64],
    requested: NDArray[np.int64],
    stream: NDArray[np.uint64],
    events: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: ...  # begin, end, size
def pack_plan(
    buffers: _Intervals, *, seconds: float, seed: int = 1, streams_apart: bool = False
) -> dict[str, Any]: ...
def check_plan(
    allocations: _Intervals,
    buffers: _Intervals,
    offsets: NDArray[np.int64],
    *,
    size: int,
    live_peak: int,
) -> tuple[str, int, int]: ...  # fault, buffer, other
def count_hand_overs(buffers: _Intervals, offsets: NDArray[np.int64]) -> int: ...
