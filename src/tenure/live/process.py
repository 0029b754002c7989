"""Starts the engine in this process; PyTorch, CuPy and Numba then share it."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tenure import _engine
from tenure.errors import UsageError
from tenure.live.oom import Host
from tenure.settings import AllocatorSettings, engine_settings, parse_alloc_conf
from tenure.units import parse_size

# As PyTorch reads them: the first that is set holds.
CONF_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
RULES = ("elastic", "torch")


@dataclass(frozen=True)
class Options:
    """How the engine serves this process.

    Attributes:
        rules: "elastic", ours; or "torch", exactly PyTorch's own.
        capacity: Bytes that each device may reserve, or a size such as "14GiB"; None: all there is.
        conf: Settings as in PYTORCH_CUDA_ALLOC_CONF; None takes that variable.
        soft_limit: Elastic rules: use less though there is room, at most this multiple of the live
            peak; 0 is off.
        stacks: Remember which line made each live block.
        events: How many of the newest events to keep for a snapshot; 0 is off.
        on_oom: A file or folder for a snapshot when memory runs out.
        on_growth: A folder for a snapshot whenever the process holds more than before.
        collect_cycles: Before failing, collect dead reference cycles once.
        torch_version: Whose rules and texts hold.
    """

    rules: str = "elastic"
    capacity: int | str | None = None
    conf: str | None = None
    soft_limit: float = 0.0
    stacks: bool = True
    events: int = 0
    on_oom: str | os.PathLike[str] | None = None
    on_growth: str | os.PathLike[str] | None = None
    collect_cycles: bool = True
    torch_version: tuple[int, int] = (2, 11)


class InForce:
    """What this process was started with."""

    settings: AllocatorSettings = AllocatorSettings()


def conf_in_force(options: Options) -> str:
    """The configuration string that holds: the given one, or that of the environment."""
    if options.conf is not None:
        return options.conf
    return next((os.environ[name] for name in CONF_VARIABLES if os.environ.get(name)), "")


def settings_of(options: Options) -> tuple[AllocatorSettings, float]:
    """The engine's settings, and the fraction of each device that may be reserved.

    Raises:
        UsageError: An option is not one there is.
    """
    if options.rules not in RULES:
        raise UsageError(f"rules: {options.rules!r} is none of {' and '.join(map(repr, RULES))}")
    if options.soft_limit and options.soft_limit < 1:
        raise UsageError("soft_limit is a multiple of the live peak: at least 1, or 0 for none")
    if options.events < 0:
        raise UsageError("events is how many of them to keep: 0 or more")
    if options.on_growth is not None and not Path(options.on_growth).is_dir():
        raise UsageError(f"on_growth: {options.on_growth} is not a folder")
    settings = parse_alloc_conf(conf_in_force(options), torch_version=options.torch_version)
    # The string holds a fraction of a device that is not known yet.
    fraction = settings.limit / settings.device_memory if settings.limit >= 0 else 1.0
    capacity = options.capacity
    limit = parse_size(capacity) if isinstance(capacity, str) else capacity
    if limit is not None and limit <= 0:
        raise UsageError(f"capacity: {capacity!r} leaves no memory at all")
    settings = replace(
        settings,
        rules=options.rules,
        soft_limit=options.soft_limit,
        limit=-1 if limit is None else limit,
    )
    return settings, fraction


def start(options: Options) -> None:
    """Makes the engine ready; no device is touched before the first allocation.

    Raises:
        UsageError: It was started before, or an option is not one there is.
    """
    from tenure.live import growth, recording

    if _engine.Live.is_installed():
        raise UsageError("tenure is already installed in this process; it can be only once")
    settings, fraction = settings_of(options)
    InForce.settings = settings
    host = Host(collect_cycles=options.collect_cycles, on_oom=options.on_oom)
    _engine.Live.install(engine_settings(settings), fraction, host)
    atexit.register(_engine.Live.interpreter_exits)
    recording.begin(stacks=options.stacks, events=options.events)
    if options.on_growth is not None:
        growth.watch(options.on_growth)


def share(**options: Any) -> None:
    """Starts the engine, unless it serves this process already.

    Args:
        **options: As in Options; only where it does not.

    Raises:
        UsageError: It does, and there are options; or one of them is not one there is.
    """
    if not _engine.Live.is_installed():
        start(Options(**options))
    elif options:
        raise UsageError("the engine runs already: its options were set at its first install")


def require_started() -> None:
    """Raises UsageError unless the engine serves this process."""
    if not _engine.Live.is_installed():
        raise UsageError(
            "tenure does not manage memory in this process: call tenure.install() before the "
            "first use of CUDA"
        )
