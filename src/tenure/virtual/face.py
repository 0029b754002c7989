"""torch.cuda as a script sees it, answering for the card and its memory."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.cuda
import torch.cuda.memory

from tenure.virtual import captures

if TYPE_CHECKING:
    from tenure.patches import Patches
    from tenure.virtual.card import Kernels
    from tenure.virtual.memory import Memory
    from tenure.virtual.shim import CurrentStream
    from tenure.virtual.tracker import Tracker


# Of the runs that the rules were learnt from.
_CUDA_VERSION, _CUDNN_VERSION = "13.0", 91300
_MONITORED = ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage")
_RUNTIME = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister")


class Streams:
    """Which stream is current on each thread, and which there are.

    Attributes:
        memory: Of the card.
        count: How many were made.
        capturing: Those whose work goes into a graph.
    """

    def __init__(self, memory: Memory, current: CurrentStream) -> None:
        self.memory = memory
        self.count = 0
        self.capturing: set[int] = set()
        self._current = current

    def new(self) -> int:
        """The number of a new stream."""
        self.count += 1
        return self.count

    def current(self) -> int:
        """The number of this thread's; 0 is the default one."""
        return self._current.number()

    def make_current(self, number: int) -> None:
        """Sets this thread's."""
        self._current.set(number)

    def join(self, waiting: int, other: int) -> None:
        """A stream that waits for a captured one is captured with it."""
        if other in self.capturing:
            self.capturing.add(waiting)

    def synchronize(self, *_args: Any) -> None:
        """Lets all work be done."""
        if self.capturing:
            raise RuntimeError(captures.NOT_PERMITTED)
        self.memory.finish(*range(self.count + 1))


def _stream_class(streams: Streams) -> type:
    class Stream:
        """A CUDA stream that is not there."""

        def __init__(self, device: Any = None, priority: int = 0, **known: Any) -> None:
            self.cuda_stream = known["stream"] if "stream" in known else streams.new()
            self.device = torch.device("cuda", 0)
            self.device_index, self.priority = 0, priority
            self.stream_id = self.cuda_stream
            self._before: list[int] = []  # current when it was entered

        def __enter__(self) -> Any:
            self._before.append(streams.current())
            streams.make_current(self.cuda_stream)
            return self

        def __exit__(self, *_error: object) -> None:
            streams.make_current(self._before.pop())

        def __eq__(self, other: object) -> bool:
            return getattr(other, "cuda_stream", None) == self.cuda_stream

        def __hash__(self) -> int:
            return hash(self.cuda_stream)

        def wait_stream(self, stream: Any) -> None:
            """Orders nothing: no work runs here."""
            streams.join(self.cuda_stream, stream.cuda_stream)

        def wait_event(self, event: Any) -> None:
            """Orders nothing."""
            streams.join(self.cuda_stream, getattr(event, "stream", 0))

        def record_event(self, event: Any = None) -> Any:
            """An event of this stream."""
            event = event or torch.cuda.Event()
            event.stream = self.cuda_stream
            return event

        def synchronize(self) -> None:
            """Lets this stream's work be done."""
            streams.memory.finish(self.cuda_stream)

        def query(self) -> bool:
            """Always done."""
            return True

    return Stream


def _event_class(streams: Streams) -> type:
    class Event:
        """A CUDA event that is not there; always done, and no time passes."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            self.cuda_event = 0
            self.stream = 0  # on which it was recorded

        def record(self, stream: Any = None) -> None:
            """Nothing to wait for."""
            self.stream = streams.current() if stream is None else stream.cuda_stream

        def wait(self, stream: Any = None) -> None:
            """Nothing to wait for."""
            waiting = streams.current() if stream is None else stream.cuda_stream
            streams.join(waiting, self.stream)

        def synchronize(self) -> None:
            """Nothing to wait for."""

        def query(self) -> bool:
            """Always done."""
            return True

        def elapsed_time(self, _end: Any) -> float:
            """Milliseconds: not known, and never 0, since scripts divide by it."""
            return 1.0

    return Event


def paint(patches: Patches, tracker: Tracker, current: CurrentStream) -> None:
    """Replaces what a CPU build cannot answer."""
    memory, kernels = tracker.memory, tracker.kernels
    streams = Streams(memory, current)
    tracker.stream = streams.current
    captured = captures.Captures(memory, streams)
    tracker.override(captured.overrides(), first=True)
    captures.paint(patches, captured)
    _device(patches, memory, kernels)
    _streams(patches, streams, tracker)
    _memory(patches, memory, streams)
    _accelerator(patches, memory)
    _seeds(patches)
    _marks(patches)


def _device(patches: Patches, memory: Memory, kernels: Kernels) -> None:
    major, minor = kernels.capability
    properties = SimpleNamespace(
        name="NVIDIA " + memory.card.title,
        major=major,
        minor=minor,
        total_memory=memory.card.total,
        multi_processor_count=kernels.multiprocessors,
        max_threads_per_multi_processor=kernels.threads,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        L2_cache_size=50 << 20,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
    )
    runtime = SimpleNamespace(
        cudaMemGetInfo=lambda _device=0: (memory.free_bytes(), memory.card.total),
        **dict.fromkeys(_RUNTIME, lambda *_args: 0),
    )

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "_exchange_device": lambda _device: 0,
        "_maybe_exchange_device": lambda _device: 0,
        "get_device_properties": lambda _device=None: properties,
        "get_device_name": lambda _device=None: properties.name,
        "get_device_capability": lambda _device=None: kernels.capability,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": lambda *_args, **_named: True,
        "_sleep": lambda _cycles: None,
        "ipc_collect": lambda: None,
        "can_device_access_peer": lambda _device, _peer: False,
        "set_sync_debug_mode": lambda _mode: None,
        "get_sync_debug_mode": lambda: 0,
        **dict.fromkeys(_MONITORED, lambda _device=None: 0),
        "cudart": lambda: runtime,
    }
    for name, answer in answers.items():
        patches.set(torch.cuda, name, answer)
    patches.set(torch.version, "cuda", _CUDA_VERSION)
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: _CUDNN_VERSION)
    patches.set(torch.cuda.profiler, "start", lambda: None)
    patches.set(torch.cuda.profiler, "stop", lambda: None)
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.Tensor, "pin_memory", lambda tensor, *_args: tensor)


def _streams(patches: Patches, streams: Streams, tracker: Tracker) -> None:
    kind: Any = _stream_class(streams)

    def current(_device: Any = None) -> Any:
        return kind(stream=streams.current())

    def stream(which: Any) -> Any:
        return which if which is not None else contextlib.nullcontext()

    def record_stream(tensor: Any, stream: Any) -> None:
        tracker.memory.record_stream(tracker.address_of(tensor), int(stream.cuda_stream))

    for name, answer in {
        "Stream": kind,
        "ExternalStream": lambda pointer, device=None: kind(device, stream=int(pointer)),
        "Event": _event_class(streams),
        "current_stream": current,
        "default_stream": lambda _device=None: kind(stream=0),
        "set_stream": lambda stream: streams.make_current(stream.cuda_stream),
        "stream": stream,
        "StreamContext": stream,
        "synchronize": streams.synchronize,
    }.items():
        patches.set(torch.cuda, name, answer)
    patches.set(torch.Tensor, "record_stream", record_stream)


def _memory(patches: Patches, memory: Memory, streams: Streams) -> None:
    share = [1.0]

    def fraction(value: float, _device: Any = None) -> None:
        share[0] = value
        memory.set_limit(int(value * memory.card.total))

    def allocate(size: int, _device: Any = None, stream: Any = None) -> int:
        number = getattr(stream, "cuda_stream", stream)
        return memory.allocate(size, streams.current() if number is None else int(number))

    def dump(filename: str = "dump_snapshot.pickle", **_kwargs: Any) -> None:
        from tenure.virtual import recording

        Path(filename).write_bytes(pickle.dumps(recording.plain_snapshot(memory), protocol=4))

    def snapshot(*_args: Any, **_kwargs: Any) -> Any:
        from tenure.virtual import recording

        return recording.plain_snapshot(memory)

    answers: dict[str, Any] = {
        "memory_stats": lambda _device=None, **_named: memory.statistics(),
        "mem_get_info": lambda _device=None: (memory.free_bytes(), memory.card.total),
        "empty_cache": memory.empty_cache,
        "reset_peak_memory_stats": lambda _device=None: memory.reset_peak(),
        "reset_max_memory_allocated": lambda _device=None: memory.reset_peak(),
        "reset_max_memory_cached": lambda _device=None: memory.reset_peak(),
        "reset_accumulated_memory_stats": lambda _device=None: None,
        "set_per_process_memory_fraction": fraction,
        "get_per_process_memory_fraction": lambda _device=None: share[0],
        "get_allocator_backend": lambda: "native",
        "caching_allocator_alloc": allocate,
        "caching_allocator_delete": memory.free,
        "memory_snapshot": lambda *_args, **_named: snapshot()["segments"],
        "_record_memory_history": lambda *_args, **_named: None,
        "_dump_snapshot": dump,
        "_snapshot": snapshot,
    }
    for name, answer in answers.items():
        patches.set(torch.cuda.memory, name, answer)
        if hasattr(torch.cuda, name):
            patches.set(torch.cuda, name, answer)


def _accelerator(patches: Patches, memory: Memory) -> None:
    """torch.accelerator's names for the same."""
    answers: dict[str, Any] = {
        "memory_stats": lambda _device=None: memory.statistics(),
        "get_memory_info": lambda _device=None: (memory.free_bytes(), memory.card.total),
        "empty_cache": memory.empty_cache,
        "empty_host_cache": lambda: None,
        "reset_peak_memory_stats": lambda _device=None: memory.reset_peak(),
        "reset_accumulated_memory_stats": lambda _device=None: None,
    }
    counts = {"memory_allocated": "allocated", "memory_reserved": "reserved"}
    for name, count in counts.items():
        for prefix, which in (("", "current"), ("max_", "peak")):
            statistic = f"{count}_bytes.all.{which}"
            answers[prefix + name] = lambda _device=None, s=statistic: memory.statistics()[s]
    for owner in (torch.accelerator, torch.accelerator.memory):
        for name, answer in answers.items():
            patches.set(owner, name, answer)


def _marks(patches: Patches) -> None:
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.set(torch.cuda.nvtx, name, lambda *_args, **_named: 0)


def _seeds(patches: Patches) -> None:
    for name in ("manual_seed", "manual_seed_all"):
        patches.set(torch.cuda, name, lambda _seed: None)
    for name in ("seed", "seed_all", "initial_seed"):
        patches.set(torch.cuda, name, lambda: 0)

    def state(_device: Any = None) -> Any:
        return torch.zeros(16, dtype=torch.uint8)

    for owner in (torch.cuda, torch.cuda.random):
        patches.set(owner, "get_rng_state", state)
        patches.set(owner, "get_rng_state_all", lambda: [state()])
        patches.set(owner, "set_rng_state", lambda *_args: None)
        patches.set(owner, "set_rng_state_all", lambda *_args: None)
