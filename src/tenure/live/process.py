"""Starts the engine in this process; PyTorch, CuPy and Numba then share it."""

from __future__ import annotations

import atexit
import functools
import inspect
import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ParamSpec

from tenure import _engine
from tenure.errors import UsageError
from tenure.live.oom import Host
from tenure.settings import RULES, AllocatorSettings, engine_settings, parse_alloc_conf
from tenure.units import format_bytes, parse_size

# As PyTorch reads them: the first that is set holds.
CONF_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
SMALLEST = 2 << 20  # bytes: the driver gives no less at once

_Given = ParamSpec("_Given")


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
    _check_values(options)
    settings = parse_alloc_conf(conf_in_force(options), torch_version=options.torch_version)
    # The string holds a fraction of a device that is not known yet.
    fraction = settings.limit / settings.device_memory if settings.limit >= 0 else 1.0
    limit = _limit(options.capacity)
    settings = replace(
        settings,
        rules=options.rules,
        soft_limit=options.soft_limit,
        limit=-1 if limit is None else limit,
    )
    return settings, fraction


def _check_values(options: Options) -> None:
    require_flags(stacks=options.stacks, collect_cycles=options.collect_cycles)
    if not (options.conf is None or isinstance(options.conf, str)):
        raise UsageError(f"conf: {options.conf!r} is no text such as 'max_split_size_mb:128'")
    soft: Any = options.soft_limit
    is_number = isinstance(soft, (int, float)) and math.isfinite(soft)
    if not is_number or (soft and soft < 1):
        raise UsageError(
            f"soft_limit: {soft!r} is no multiple of the live peak: at least 1, or 0 for none"
        )
    if _whole(options.events) < 0:
        raise UsageError(f"events: {options.events!r} is not how many of them to keep: 0 or more")
    if options.on_growth is not None and not _path("on_growth", options.on_growth).is_dir():
        raise UsageError(f"on_growth: {options.on_growth} is not a folder")
    name, target = "on_oom", options.on_oom or ""
    if not target:
        name, target = "TENURE_OOM", os.environ.get("TENURE_OOM", "")
    if target and not ((path := _path(name, target)).is_dir() or path.parent.is_dir()):
        raise UsageError(f"{name}: there is no folder {path.parent} for a snapshot")


def _limit(capacity: int | str | None) -> int | None:
    """Bytes that a device may reserve; None for all there is."""
    if capacity is None:
        return None
    limit = parse_size(capacity) if isinstance(capacity, str) else _whole(capacity, None)
    if limit is None:
        raise UsageError(f'capacity: {capacity!r} is neither bytes nor a size such as "14GiB"')
    if limit <= 0:
        raise UsageError(f"capacity: {capacity!r} leaves no memory at all")
    if limit < SMALLEST:
        raise UsageError(
            f"capacity: {capacity!r} is {format_bytes(limit)}, and the driver gives "
            f'{format_bytes(SMALLEST)} at least; write a unit, as in "14GiB"'
        )
    return min(limit, (1 << 63) - 1)


def _whole(value: Any, otherwise: int | None = -1) -> Any:
    """The value as an integer, or the other one where it is none."""
    if isinstance(value, bool):
        return otherwise
    try:
        return operator.index(value)
    except TypeError:
        return otherwise


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise UsageError(f"{name}: {value!r} names no file or folder")
    return Path(value)


def require_flags(**options: Any) -> None:
    """Raises UsageError unless each is True or False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name}: {value!r} is neither True nor False")


def names_its_options(function: Callable[_Given, None]) -> Callable[_Given, None]:
    """Makes an option that the function has not got a UsageError which lists those it has."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*given: _Given.args, **named: _Given.kwargs) -> None:
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            raise UsageError(
                f"{function.__name__}: {error}; its options are {', '.join(signature.parameters)}"
            ) from None
        function(*given, **named)

    return checked


def start(options: Options) -> None:
    """Makes the engine ready; no device is touched before the first allocation.

    Raises:
        UsageError: It was started before, or an option is not one there is.
    """
    from tenure.live import growth, recording

    if _engine.Live.is_installed():
        raise UsageError(
            f"tenure is already installed in this process, with {InForce.settings.rules} rules; "
            "it can be only once, since PyTorch cannot change its allocator"
        )
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
    known = [field.name for field in fields(Options)]
    if unknown := sorted(options.keys() - set(known)):
        raise UsageError(f"no such option: {', '.join(unknown)}; there are {', '.join(known)}")
    join(Options(**options))


def join(options: Options) -> None:
    """Starts the engine, or leaves it as it is where it runs and nothing else is asked for.

    Raises:
        UsageError: It runs, with options of its own; or one of them is not one there is.
    """
    if not _engine.Live.is_installed():
        start(options)
    elif options != Options(torch_version=options.torch_version):
        raise UsageError("the engine runs already: its options were set at its first install")


def require_started() -> None:
    """Raises UsageError unless the engine serves this process."""
    if not _engine.Live.is_installed():
        raise UsageError(
            "tenure does not manage memory in this process: call tenure.install() before the "
            "first use of CUDA"
        )
