"""The settings of PyTorch's allocator: read from its configuration string or from a snapshot.

Every rule is PyTorch's, for the version that is named; where versions differ, a comment says so.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tenure import _engine
from tenure.errors import BadInputError, UsageError
from tenure.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DEFAULT_VERSION = (2, 11)
RULES = ("elastic", "torch")
MOST_MEMORY = 1 << 56  # bytes; more than any device has, and twice that still is an address
MOST_SOFT = 1000.0  # times the live peak; above, it is no limit at all
INTERVALS = 16  # of roundup_power2_divisions: below 2 MiB, [2, 4) MiB, ... from 32 GiB up
MOST_MIB = (1 << 43) - 1  # larger numbers mean "unlimited" and would not fit 64 bits as bytes


@dataclass(frozen=True)
class AllocatorSettings:
    """What decides where a request goes.

    Attributes:
        torch_version: The version of PyTorch whose rules hold.
        expandable_segments: Whether segments grow within a reserved range of addresses.
        max_split_size: Bytes from which on a block is never split; -1 is unlimited.
        max_non_split_rounding: Bytes that a block of that kind may be larger than the request.
        large_segment_size: Bytes of the segment for requests between 1 and 10 MiB.
        roundup_power2_divisions: 16 entries, for sizes from 1 MiB up by powers of two; 0 is off.
        garbage_collection_threshold: Fraction of the limit from which on old blocks go; 0 is off.
        limit: Bytes that may be reserved (the memory fraction); -1 is no limit.
        device_memory: Bytes of the device; sizes the range that an expandable segment reserves.
        rules: "torch", PyTorch's own; or "elastic", which heed of the above only the limit and the
            device's memory (docs/elastic.md).
        chunk_divisor: Elastic: a chunk is this part of the limit, from 2 to 64 MiB.
        chunk_size: Elastic: bytes of a chunk, a multiple of 2 MiB; 0 takes it from the divisor.
        soft_limit: Elastic: chunks move, and none are made, above this multiple of the live peak
            so far; 0 is off.
        conf: The configuration string as it was given.
        ignored: "key:value" of what was accepted but changes nothing here.
    """

    torch_version: tuple[int, int] = DEFAULT_VERSION
    expandable_segments: bool = False
    max_split_size: int = -1
    max_non_split_rounding: int = 20 * MIB
    large_segment_size: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    limit: int = -1
    device_memory: int = 150_109_880_320
    rules: str = "torch"
    chunk_divisor: int = 2000
    chunk_size: int = 0
    soft_limit: float = 0.0
    conf: str = field(default="", compare=False)
    ignored: tuple[str, ...] = ()


def engine_settings(settings: AllocatorSettings) -> _engine.Settings:
    """The same settings as the engine takes them."""
    native = _engine.Settings()
    for name in (
        "torch_version",
        "expandable_segments",
        "max_split_size",
        "max_non_split_rounding",
        "large_segment_size",
        "garbage_collection_threshold",
        "limit",
        "device_memory",
        "rules",
        "chunk_divisor",
        "chunk_size",
        "soft_limit",
    ):
        setattr(native, name, getattr(settings, name))
    native.roundup_power2_divisions = list(settings.roundup_power2_divisions)
    return native


def parse_alloc_conf(
    text: str,
    *,
    torch_version: tuple[int, int] | None = None,
    base: AllocatorSettings | None = None,
) -> AllocatorSettings:
    """The settings that `text` puts in force, in the syntax of PYTORCH_CUDA_ALLOC_CONF.

    Args:
        text: For example "expandable_segments:True,roundup_power2_divisions:[256:1,>:4]".
        torch_version: Whose rules hold; that of `base` if not given, else 2.11.
        base: What was in force before. As PyTorch does, keeps its expandable_segments, large
            segment size and non-split rounding, and resets the rest that a string can set.

    Raises:
        UsageError: A key, a value or the syntax is not one that PyTorch takes.
    """
    before = base or AllocatorSettings()
    settings = replace(
        before,
        torch_version=torch_version or before.torch_version,
        max_split_size=-1,
        roundup_power2_divisions=(0,) * INTERVALS,
        garbage_collection_threshold=0.0,
        conf=text,
        ignored=(),
    )
    for key, value in _pairs(text):
        if key in _READERS:
            if settings.torch_version < _SINCE.get(key, (0, 0)):
                version = ".".join(map(str, settings.torch_version))
                raise UsageError(f"{key}: torch {version} does not know this setting")
            settings = replace(settings, **_READERS[key](value, settings))
        elif key in _IGNORED:
            settings = replace(settings, ignored=(*settings.ignored, f"{key}:{value}"))
        else:
            raise UsageError(_unknown_key(key))
    return settings


def from_snapshot_settings(
    recorded: Mapping[str, Any],
    *,
    torch_version: tuple[int, int] | None = None,
    device: int = 0,
) -> AllocatorSettings:
    """The settings in force when a snapshot was taken.

    The string inside gives what PyTorch does not export by itself: the large segment size and the
    rounding that follows it. The memory fraction is in no snapshot of PyTorch's own allocator; the
    limit under tenure's elastic rules is, since the size of a chunk follows from it.

    Args:
        recorded: The snapshot's `allocator_settings`; empty for torch 2.0.
        torch_version: Whose rules hold; 2.11 if not given, since a snapshot does not say.
        device: Which GPU: under tenure each has a limit of its own.

    Raises:
        BadInputError: A value is not of the kind that PyTorch or tenure writes.
    """
    if _recorded_rules(recorded, device) == "elastic":
        return _recorded_elastic(recorded, torch_version or DEFAULT_VERSION, device)
    conf = _recorded(recorded, "PYTORCH_CUDA_ALLOC_CONF", str, "")
    large, rounding = _sizes_in(conf)
    ignored = [f"{key}:True" for key in sorted(_NOT_MODELLED) if recorded.get(key) is True]
    return AllocatorSettings(
        torch_version=torch_version or DEFAULT_VERSION,
        expandable_segments=_recorded(recorded, "expandable_segments", bool, default=False)
        and recorded.get("tenure_rules") != "elastic",
        max_split_size=_recorded(recorded, "max_split_size", int, -1),
        max_non_split_rounding=rounding,
        large_segment_size=large,
        roundup_power2_divisions=_recorded_divisions(recorded),
        garbage_collection_threshold=float(
            _recorded(recorded, "garbage_collection_threshold", (int, float), 0.0)
        ),
        conf=conf,
        ignored=tuple(ignored),
    )


def recorded_version(recorded: Mapping[str, Any]) -> tuple[int, int] | None:
    """The torch version that a snapshot of tenure's names; None for PyTorch's, which name none.

    Raises:
        BadInputError: It is not one that tenure writes.
    """
    version = recorded.get("tenure_torch_version")
    if version is None:
        return None
    numbers = version if isinstance(version, list) else []
    if len(numbers) != 2 or not all(type(n) is int and 0 <= n < 1000 for n in numbers):
        raise _never_written("tenure_torch_version", version)
    return numbers[0], numbers[1]


def to_conf(settings: AllocatorSettings) -> str:
    """The shortest string that puts `settings` in force on top of PyTorch's defaults.

    The limit is not part of it: a call sets it, and the string only as a fraction.

    Raises:
        UsageError: A size is not a whole number of MiB, so that no string can say it.
    """
    large, split = settings.large_segment_size, settings.max_split_size
    pieces = []
    if large != AllocatorSettings.large_segment_size:
        pieces.append(f"large_segment_size_mb:{_mib(large)}")
    if settings.max_non_split_rounding != large:
        pieces.append(f"max_non_split_rounding_mb:{_mib(settings.max_non_split_rounding)}")
    if split >= 0:
        # A value below the large segment size is only taken before that is raised.
        pieces.insert(0 if split < large else len(pieces), f"max_split_size_mb:{_mib(split)}")
    if any(settings.roundup_power2_divisions):
        divisions = _divisions_text(settings.roundup_power2_divisions)
        pieces.append(f"roundup_power2_divisions:{divisions}")
    if settings.garbage_collection_threshold > 0:
        pieces.append(f"garbage_collection_threshold:{settings.garbage_collection_threshold!r}")
    if settings.expandable_segments:
        pieces.append("expandable_segments:True")
    return ",".join([*pieces, *settings.ignored])


def known_clashes(settings: AllocatorSettings) -> list[str]:
    """Sentences about settings that defeat each other, do nothing, or are not modelled here."""
    split = settings.max_split_size >= 0
    collects = settings.garbage_collection_threshold > 0
    found = []
    if split and settings.expandable_segments:
        found.append(
            "max_split_size_mb with expandable_segments:True: free memory grows together into "
            "blocks that smaller requests may not use, so reserved memory grows without bound "
            "(pytorch#193400). Use one of the two."
        )
    if split and settings.max_split_size < settings.large_segment_size:
        found.append(
            "max_split_size_mb is below large_segment_size_mb: a large segment that became free is "
            "not used again for the small requests it was made for."
        )
    if collects and settings.limit < 0:
        found.append(
            "garbage_collection_threshold does nothing without a memory fraction below 1: it is a "
            "fraction of that limit. Call torch.cuda.set_per_process_memory_fraction as well."
        )
    if collects and settings.expandable_segments:
        found.append(
            "garbage_collection_threshold with expandable_segments:True: garbage collection skips "
            "expandable segments, so there is nothing for it to collect."
        )
    if not split and settings.max_non_split_rounding != settings.large_segment_size:
        found.append("max_non_split_rounding_mb does nothing without max_split_size_mb.")
    for piece in settings.ignored:
        key, _, value = piece.partition(":")
        if key in _NOT_MODELLED and value != "False":
            found.append(f"{piece} changes where memory goes, but is not part of the replay.")
    return found


# --- the string ----------------------------------------------------------------------------------

_PAIR = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Each key with its value; white space counts nowhere, and a comma may end the string."""
    compact = "".join(text.split())
    at = 0
    while at < len(compact):
        match = _PAIR.match(compact, at)
        if match is None:
            raise UsageError(
                f"cannot read the allocator settings at {compact[at:]!r}: expected key:value or "
                "key:[a:b,c:d], separated by commas"
            )
        yield match[1], match[2]
        at = match.end()


def _unknown_key(key: str) -> str:
    near = difflib.get_close_matches(key, [*_READERS, *_IGNORED], n=1, cutoff=0.0)
    return f"{key}: PyTorch's allocator has no such setting; the nearest is {near[0]}"


def _number(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise UsageError(f"{key}:{value}: expected a whole number")
    return int(value)


def _mib_of(key: str, value: str, least: int, why: str) -> int:
    number = _number(key, value)
    if number < least:
        raise UsageError(f"{key}:{value}: must be at least {least} {why}")
    return min(number, MOST_MIB) * MIB


def _large_segment_size(value: str, _settings: AllocatorSettings) -> dict[str, Any]:
    size = _mib_of("large_segment_size_mb", value, 11, "(more than 10 MiB)")
    return {"large_segment_size": size, "max_non_split_rounding": size}


def _max_split_size(value: str, settings: AllocatorSettings) -> dict[str, Any]:
    least = settings.large_segment_size // MIB
    size = _mib_of("max_split_size_mb", value, least, "(the large segment size)")
    return {"max_split_size": size}


def _max_non_split_rounding(value: str, settings: AllocatorSettings) -> dict[str, Any]:
    least = settings.large_segment_size // MIB
    size = _mib_of("max_non_split_rounding_mb", value, least, "(the large segment size)")
    return {"max_non_split_rounding": size}


def _fraction(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{key}:{value}: expected a number") from None


def _garbage_collection(value: str, _settings: AllocatorSettings) -> dict[str, Any]:
    threshold = _fraction("garbage_collection_threshold", value)
    if not 0 < threshold < 1:
        raise UsageError(f"garbage_collection_threshold:{value}: must lie between 0 and 1")
    return {"garbage_collection_threshold": threshold}


def _memory_fraction(value: str, settings: AllocatorSettings) -> dict[str, Any]:
    fraction = _fraction("per_process_memory_fraction", value)
    if not 0 <= fraction <= 1:
        raise UsageError(f"per_process_memory_fraction:{value}: must be from 0 to 1")
    limit = int(fraction * settings.device_memory) if fraction < 1 else settings.limit
    return {"limit": limit}


def _expandable_segments(value: str, _settings: AllocatorSettings) -> dict[str, Any]:
    if value not in {"True", "False"}:
        raise UsageError(f"expandable_segments:{value}: must be True or False, spelled like that")
    return {"expandable_segments": value == "True"}


def _backend(value: str, settings: AllocatorSettings) -> dict[str, Any]:
    if value in {"cudaMallocAsync", "hipMallocAsync"}:
        raise UsageError(
            f"backend:{value} is another allocator, the driver's own: none of the rules here are "
            "about it. Record and replay with backend:native."
        )
    if value != "native":
        raise UsageError(f"backend:{value}: must be native or cudaMallocAsync")
    return {"ignored": (*settings.ignored, f"backend:{value}")}


def _roundup(value: str, settings: AllocatorSettings) -> dict[str, Any]:
    key = "roundup_power2_divisions"
    if not value.startswith("["):
        number = _number(key, value)
        if not _is_power_of_two(number):
            raise UsageError(f"{key}:{value}: must be a power of two")
        return {key: (number,) * INTERVALS}
    entries = [0] * INTERVALS
    last = None  # index of the last interval named
    for bound, divisions in _intervals(key, value):
        if bound == ">":
            # Up to torch 2.8 this also overwrote the last interval named.
            overwrites = settings.torch_version <= (2, 8)
            first = (last or 0) if overwrites else (last or 0) + 1
            entries[first:] = [divisions] * (INTERVALS - first)
            continue
        number = _number(key, bound)
        if not _is_power_of_two(number):
            raise UsageError(f"{key}: {bound} is not a power of two; intervals begin at those")
        index = min(number.bit_length() - 1, INTERVALS - 1)
        if last is None:
            entries[:index] = [divisions] * index
        entries[index] = divisions
        last = index
    return {key: tuple(entries)}


def _intervals(key: str, value: str) -> Iterator[tuple[str, int]]:
    for item in filter(None, value[1:-1].split(",")):
        bound, colon, text = item.partition(":")
        if not colon:
            raise UsageError(f"{key}: cannot read {item!r}; expected MiB:divisions or >:divisions")
        divisions = _number(key, text)
        if divisions and not _is_power_of_two(divisions):
            raise UsageError(f"{key}: {divisions} divisions; must be 0 or a power of two")
        yield bound, divisions


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


_READERS: dict[str, Callable[[str, AllocatorSettings], dict[str, Any]]] = {
    "backend": _backend,
    "expandable_segments": _expandable_segments,
    "garbage_collection_threshold": _garbage_collection,
    "large_segment_size_mb": _large_segment_size,
    "max_non_split_rounding_mb": _max_non_split_rounding,
    "max_split_size_mb": _max_split_size,
    "per_process_memory_fraction": _memory_fraction,
    "roundup_power2_divisions": _roundup,
}
_SINCE = {"large_segment_size_mb": (2, 7)}

# Keys that change where memory goes in ways that no rule here follows.
_NOT_MODELLED = {
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
}
# Keys of pinned host memory, of locking, and the like.
_IGNORED = _NOT_MODELLED | {
    "expandable_segments_handle_type",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
}


# --- back to text --------------------------------------------------------------------------------


def _mib(size: int) -> int:
    if size % MIB:
        raise UsageError(
            f"{size} bytes is not a whole number of MiB, which the settings string needs"
        )
    return size // MIB


def _divisions_text(entries: tuple[int, ...]) -> str:
    if len(set(entries)) == 1:
        return str(entries[0])
    tail = next(i for i in range(INTERVALS) if len(set(entries[i:])) == 1)
    # The first key fills the entries below it, so the last of a run of equal ones is named.
    first = next(i for i in range(INTERVALS) if entries[i + 1] != entries[0])
    named = [i for i in range(first, tail + 1) if i == first or entries[i]]
    pieces = [f"{1 << i}:{entries[i]}" for i in named]
    if tail < INTERVALS - 1 and entries[tail]:
        pieces.append(f">:{entries[tail]}")
    return f"[{','.join(pieces)}]"


# --- what a snapshot says ------------------------------------------------------------------------


def _recorded(
    recorded: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any
) -> Any:
    value = recorded.get(key, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _never_written(key, value)
    return value


def _never_written(key: str, value: object) -> BadInputError:
    writer = "tenure" if key.startswith("tenure") else "PyTorch"
    shown = reprlib.repr(value)
    return BadInputError(f"allocator_settings: {key} is {shown}, which {writer} never writes")


def _recorded_rules(recorded: Mapping[str, Any], device: int) -> str:
    """The rules of one GPU: where it cannot map memory, they are torch's whatever was asked for."""
    asked = _recorded(recorded, "tenure_rules", str, "torch")
    rules = _of_device(recorded, device).get("rules", asked)
    for name in (asked, rules):
        if name not in RULES:
            raise BadInputError(
                f"allocator_settings: tenure_rules is {reprlib.repr(name)}; this tenure knows "
                f"{' and '.join(RULES)}. Read the file with the version that wrote it, or a newer "
                "one"
            )
    return str(rules)


def _recorded_elastic(
    recorded: Mapping[str, Any], version: tuple[int, int], device: int
) -> AllocatorSettings:
    """What elastic rules heed; PyTorch's settings have no meaning there but are told."""
    mine = _of_device(recorded, device)
    limit = mine.get("limit", -1)
    total = mine.get("total_memory", AllocatorSettings.device_memory)
    if type(limit) is not int or limit < -1:
        raise _never_written(f"tenure_devices[{device}].limit", limit)
    if type(total) is not int or not 0 < total <= MOST_MEMORY:
        raise _never_written(f"tenure_devices[{device}].total_memory", total)
    soft = float(_recorded(recorded, "tenure_soft_limit", (int, float), 0.0))
    if soft and not soft >= 1:  # nor if it is no number
        raise _never_written("tenure_soft_limit", soft)
    return AllocatorSettings(
        torch_version=version,
        expandable_segments=True,
        limit=limit,
        device_memory=total,
        rules="elastic",
        soft_limit=min(soft, MOST_SOFT),
        conf=_recorded(recorded, "PYTORCH_CUDA_ALLOC_CONF", str, ""),
    )


def _of_device(recorded: Mapping[str, Any], device: int) -> dict[str, Any]:
    devices = _recorded(recorded, "tenure_devices", dict, {})
    mine = devices.get(device, {})
    if not isinstance(mine, dict):
        raise _never_written(f"tenure_devices[{device}]", mine)
    return mine


def _recorded_divisions(recorded: Mapping[str, Any]) -> tuple[int, ...]:
    """From {"1": 0, "2": 0, "4": 8, ...}: each key is where an interval begins, in MiB."""
    key = "roundup_power2_divisions"
    table = _recorded(recorded, key, dict, {})
    return tuple(_recorded(table, str(1 << i), int, 0) for i in range(INTERVALS))


def _sizes_in(conf: str) -> tuple[int, int]:
    """Large segment size and non-split rounding, in a string that PyTorch itself has accepted."""
    large = rounding = AllocatorSettings.large_segment_size
    keys = r"(?:^|,)(large_segment_size_mb|max_non_split_rounding_mb):([0-9]+)"
    for key, number in re.findall(keys, "".join(conf.split())):
        rounding = min(int(number), MOST_MIB) * MIB
        if key == "large_segment_size_mb":
            large = rounding
    return large, rounding
