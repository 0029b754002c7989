"""PyTorch on the engine: its allocator, and every function that asks the allocator."""

from __future__ import annotations

import logging
import os
from typing import Any

from tenure import _engine
from tenure.errors import UsageError
from tenure.live import glue as compiled_glue
from tenure.live import oom, recording
from tenure.live.memory_pool import MemPool
from tenure.live.process import (
    InForce,
    Options,
    conf_in_force,
    join,
    names_its_options,
    require_flags,
    start,
)
from tenure.live.snapshot import plain_frames, snapshot
from tenure.live.statistics import nested, reset_peak
from tenure.patches import Patches

_log = logging.getLogger("tenure")

# The allocator's method -> our function; the names are PyTorch's.
_HOOKS = {
    "set_record_stream_fn": "record_stream",
    "set_reset_fn": "empty_cache",
    "set_memory_fraction_fn": "set_memory_fraction",
    "set_base_alloc_fn": "base_address",
    "set_begin_allocate_to_pool": "begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "end_allocate_to_pool",
    "set_release_pool": "release_pool",
}

# What does not work; said once, at install. The first ones do with the glue.
WITHOUT_GLUE = (
    "torch.backends.cudnn.benchmark = True fails: plug-in allocators cannot answer cacheInfo",
    'torch.compile(mode="reduce-overhead") fails: its graphs need checkpoints of pools',
    "torch.profiler(profile_memory=True) sees no CUDA memory: plug-in allocators do not report it",
)
LIMITS = ("pools cannot be registered with NCCL",)
WITHOUT_SEGMENTS = "CUDA tensors cannot be sent to other processes (IPC)"

_replaced = Patches()
_kept: list[Any] = []  # PyTorch's object of our allocator lives as long as the process


@names_its_options
def install(
    rules: str = "elastic",
    *,
    capacity: int | str | None = None,
    conf: str | None = None,
    soft_limit: float = 0.0,
    stacks: bool = True,
    events: int = 0,
    on_oom: str | os.PathLike[str] | None = None,
    on_growth: str | os.PathLike[str] | None = None,
    collect_cycles: bool = True,
    glue: bool = True,
    quiet: bool = False,
) -> None:
    """Makes the engine PyTorch's allocator in this process, before its first use of CUDA.

    Training code runs unchanged: torch.cuda.memory_* answer from the engine, and running out of
    memory raises torch.OutOfMemoryError.

    Args:
        rules: "elastic" (ours: memory follows the work, across streams, without stopping the
            device), or "torch" (exactly PyTorch's own).
        capacity: What each GPU may reserve: bytes, or a size such as "14GiB".
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF; by default that variable's. Elastic rules
            heed only per_process_memory_fraction.
        soft_limit: Elastic rules: reserve at most this multiple of the live peak though there is
            room, for example 1.05; 0 is off.
        stacks: Remember which line made each live block, for messages and memory_summary().
        events: How many of the newest events to keep for snapshots; 0 is off.
        on_oom: A file or folder for a snapshot when memory runs out; by default what the
            environment variable TENURE_OOM names.
        on_growth: A folder for a snapshot whenever the process holds more than before.
        collect_cycles: Before failing, collect dead reference cycles once.
        glue: Serve PyTorch's whole interface for allocators, by a small file that is compiled at
            the first install; without a compiler, or without this, only what plug-ins may.
        quiet: Do not say what will not work.

    Raises:
        UsageError: An unknown option, a second install, CUDA in use already, no CUDA in PyTorch.
    """
    require_flags(glue=glue, quiet=quiet)
    torch = _cuda_torch()
    options = Options(
        rules=rules,
        capacity=capacity,
        conf=conf,
        soft_limit=soft_limit,
        stacks=stacks,
        events=events,
        on_oom=on_oom,
        on_growth=on_growth,
        collect_cycles=collect_cycles,
        torch_version=_version(torch),
    )
    _start(options)
    missing = _become_allocator(torch, glue=glue)
    _replace_functions(torch)
    if not quiet:
        for line in (*missing, *_limits(options, missing), *_ignored(options)):
            _log.warning("tenure: %s", line)


def uninstall() -> None:
    """Gives PyTorch's functions back; what was allocated, and will be, stays with the engine.

    PyTorch cannot change its allocator back, so the engine goes on serving this process. The
    restored functions raise, as they do under any plug-in allocator.

    Raises:
        UsageError: Nothing was installed.
    """
    if not _replaced:
        raise UsageError("tenure is not installed in this process")
    _replaced.undo()


def _start(options: Options) -> None:
    if _kept:
        start(options)  # which says that it can be only once
    join(options)  # CuPy or Numba may have started the engine


def _cuda_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"PyTorch cannot be imported ({error})") from None
    if getattr(torch.version, "hip", None):
        raise UsageError("this PyTorch is built for ROCm; tenure manages CUDA memory only")
    if not hasattr(_native(torch), "_cuda_customAllocator"):
        raise UsageError("this PyTorch is built without CUDA: there is no allocator to replace")
    if torch.cuda.is_initialized():
        raise UsageError(
            "CUDA is in use already, and PyTorch cannot change its allocator any more: call "
            "tenure.install() before the first CUDA call, best right after the imports"
        )
    return torch


def _native(torch: Any) -> Any:
    """PyTorch's native module: its interface for allocators has no public name."""
    return torch._C  # noqa: SLF001


def _version(torch: Any) -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _become_allocator(torch: Any, *, glue: bool) -> list[str]:
    """Hands our functions over; what will not work for the way in which that was done."""
    if not glue:
        return [*_plug_in(torch), *WITHOUT_GLUE]
    try:
        library = compiled_glue.load(torch)
    except UsageError as error:
        return [*_plug_in(torch), *WITHOUT_GLUE, f"to mend that: {error}"]
    compiled_glue.become_allocator(library)
    _kept.append(library)
    _listen_to_profilers(torch, library)
    return []


def _listen_to_profilers(torch: Any, library: Any) -> None:
    """Lets the allocator report to PyTorch's profiler, but only while one runs."""
    profiler = torch.autograd.profiler

    def telling(function: Any, running: bool) -> Any:
        def told(*args: Any, **kwargs: Any) -> Any:
            library.tenure_glue_profile(running)
            return function(*args, **kwargs)

        return told

    for name, running in (("_enable_profiler", True), ("_disable_profiler", False)):
        if hasattr(profiler, name):
            _replaced.set(profiler, name, telling(getattr(profiler, name), running))


def _plug_in(torch: Any) -> list[str]:
    """Through the interface for plug-ins; what that of this version lacks."""
    points = _engine.Live.entry_points()
    native: Any = _native(torch)
    allocator = native._cuda_customAllocator(points["allocate"], points["free"])  # noqa: SLF001
    missing = []
    for method, function in _HOOKS.items():
        setter = getattr(allocator, method, None)
        if setter is None:
            missing.append(f"this PyTorch has no {method}: {function} is not served")
        else:
            setter(points[function])
    try:
        native._cuda_changeCurrentAllocator(allocator)  # noqa: SLF001
    except RuntimeError as error:
        raise UsageError(f"PyTorch refuses another allocator ({_first_line(error)})") from None
    _kept.append(allocator)
    return missing


def _limits(options: Options, missing: list[str]) -> list[str]:
    """What no way of handing over makes work; only the glue sends segments to other processes."""
    in_chunks = options.rules == "elastic" or InForce.settings.expandable_segments
    return [*([WITHOUT_SEGMENTS] if in_chunks or missing else []), *LIMITS]


def _ignored(options: Options) -> list[str]:
    conf = conf_in_force(options)
    if options.rules == "torch":
        return ["soft_limit is of elastic rules: torch rules have none"] * bool(options.soft_limit)
    if not conf:
        return []
    return [f"elastic rules heed only per_process_memory_fraction of the settings {conf!r}"]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- functions that ask the allocator ------------------------------------------------------------


def _replace_functions(torch: Any) -> None:
    """Replaces PyTorch's native functions, so that everything in Python that calls them works on.

    Trainers hold references to torch.cuda.memory_allocated and the like; those all end here.
    """
    for name, function in _NATIVE.items():
        _replaced.set(_native(torch), name, function)
    for name, function in _ACCELERATOR.items():
        if hasattr(_native(torch), name):
            _replaced.set(_native(torch), name, function)
    if hasattr(_native(torch), "_cuda_beginAllocateCurrentThreadToPool"):
        for module in (torch.cuda, torch.cuda.memory):
            _replaced.set(module, "MemPool", MemPool)


def _memory_stats(device: int) -> dict[str, Any]:
    return nested(_engine.Live.statistics(device))


def _memory_snapshot(which: Any = None, *_: Any, **__: Any) -> dict[str, Any]:
    # None, a pool's id, or an id with "include traces" behind it.
    pool = tuple(which[:2]) if which else (0, 0)
    traces = bool(which[2]) if which and len(which) > 2 else True
    return snapshot(pool, traces=traces)


def _record_memory_history(
    enabled: str | None,
    context: str | None = "all",
    _stacks: str = "all",
    max_entries: int = (1 << 63) - 1,
    clear_history: bool = False,
    *_: Any,
    **__: Any,
) -> None:
    recording.record_history(enabled, context, max_entries, clear=clear_history)


def _record_memory_history_legacy(enabled: bool, *arguments: Any, **__: Any) -> None:
    # record_context, trace_alloc_max_entries, trace_alloc_record_context, record_context_cpp,
    # clear_history
    given = dict(enumerate(arguments))
    context = "state" if given.get(0, True) else None
    if given.get(2, False):
        context = "alloc"
    entries = given.get(1, 1)
    # PyTorch keeps a history only where more than one entry is asked for.
    state = ("all" if entries > 1 else "state") if enabled else None
    recording.record_history(state, context, entries, clear=given.get(4, False))


def _memory_fraction(device: int) -> float:
    import torch

    limit = _engine.Live.limit(device)
    total: int = torch.cuda.get_device_properties(device).total_memory
    return 1.0 if limit < 0 else limit / total


def _allocation_traceback(address: int) -> list[dict[str, Any]] | None:
    for device in _engine.Live.devices():
        for block in _engine.Live.blocks(device):
            if block[1] == address and block[4] == 1 and block[9]:
                return plain_frames(block[9])
    return None


_NATIVE: dict[str, Any] = {
    "_cuda_memoryStats": _memory_stats,
    "_cuda_resetAccumulatedMemoryStats": _engine.Live.reset_accumulated,
    "_cuda_resetPeakMemoryStats": reset_peak,
    "_cuda_memorySnapshot": _memory_snapshot,
    "_cuda_record_memory_history": _record_memory_history,
    "_cuda_record_memory_history_legacy": _record_memory_history_legacy,
    "_cuda_isHistoryEnabled": recording.is_enabled,
    "_cuda_attach_out_of_memory_observer": oom.observers.append,
    "_cuda_getMemoryFraction": _memory_fraction,
    "_cuda_allocationTraceback": _allocation_traceback,
}

# What torch.accelerator.memory calls, in versions that have it.
_ACCELERATOR: dict[str, Any] = {
    "_accelerator_getDeviceStats": _memory_stats,
    "_accelerator_resetAccumulatedStats": _engine.Live.reset_accumulated,
    "_accelerator_resetPeakStats": reset_peak,
}
