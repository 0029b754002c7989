"""Findings about what no tensor and no trace shows: the driver, pinned memory, other processes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tenure.diagnoses import Advice, Confidence, Finding, Severity
from tenure.lifetimes import lifetimes, site_of
from tenure.lifetimes.edges import short_file
from tenure.live.runs.attribution import event_at
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.live.runs.record import Record
    from tenure.live.runs.sharing import Shared
    from tenure.live.runs.stepping import Rise
    from tenure.traces import Trace

LEAST_PINNED = 32 << 20  # bytes idle in pinned memory that are worth a word


def findings_of(record: Record, trace: Trace | None) -> tuple[Finding, ...]:
    """All of them.

    Args:
        record: Of the run.
        trace: Of its main device; None without one.
    """
    found = [*_clash(record), *_elsewhere(record, trace), *_pinned(record), *_floor(record)]
    return tuple(found)


def growth(rise: Rise, record: Record) -> Finding:
    """Live bytes that rise from step to step, where no trace says so."""
    per = format_bytes(rise.bytes_per_step)
    return Finding(
        "growth",
        Severity.WARNING,
        rise.total,
        f"live memory grows {per} every step and does not level off",
        (
            (
                f"steps {rise.first:,} to {rise.last:,}: {format_bytes(rise.total)} more at "
                f"their ends on {record.device}"
            ),
        ),
        (Advice("the holders above, and the table below, say what keeps it"),),
    )


def _clash(record: Record) -> list[Finding]:
    if record.gpu.backend != "pluggable":
        return []
    return [
        Finding(
            "setting.clash",
            Severity.WARNING,
            0,
            "a pluggable allocator is installed: PyTorch has no statistics, peaks or snapshots "
            "of it, and running out of memory is a plain RuntimeError",
            (
                (
                    "memory_stats(), max_memory_allocated(), reset_peak_memory_stats() and "
                    "memory_snapshot() raise; settings in PYTORCH_CUDA_ALLOC_CONF do nothing"
                ),
            ),
            (
                Advice(
                    "measure in the allocator itself, or use one that answers: tenure.install() "
                    "keeps PyTorch's statistics, peaks, snapshots and errors"
                ),
            ),
        )
    ]


def _elsewhere(record: Record, trace: Trace | None) -> list[Finding]:
    shared = record.gpu.shared
    total = sum(one.held for one in shared)
    if not total:
        return []
    receivers = sorted({who for one in shared for who in one.receivers})
    made = Counter(label for one in shared if (label := _made_at(record, one, trace)))
    lines = [
        (
            f"{len(shared):,} blocks that this process sent and dropped stay allocated until every "
            "receiver has let go"
        )
    ]
    if receivers:
        lines.append(f"child processes alive then: {', '.join(receivers)}")
    if made:
        lines.append(f"made at: {', '.join(label for label, _ in made.most_common(2))}")
    text = (
        "let the receivers drop the tensors (del), then call torch.cuda.ipc_collect() here; "
        "empty_cache() alone returns nothing of it"
    )
    title = f"{format_bytes(total)} dropped here are held for other processes"
    return [
        Finding("holder.process", Severity.WARNING, total, title, tuple(lines), (Advice(text),))
    ]


def _made_at(record: Record, one: Shared, trace: Trace | None) -> str:
    """The line that made a block which was sent."""
    window = record.gpu.window
    if trace is None or (window is not None and not window.covers(one.seen)):
        return ""
    born, gone = lifetimes(trace)
    event = event_at(trace, one.seen)
    there = trace.allocations.address == np.uint64(one.address)
    numbers = np.flatnonzero(there & (born < event) & (event <= gone))
    if not len(numbers):
        return ""
    site = site_of(trace.stacks.frames(int(trace.allocations.stack[numbers[-1]])))
    return site.label if site.user or site.inner else ""


def _pinned(record: Record) -> list[Finding]:
    host = record.gpu.host
    # Before torch 2.9 "allocated" are bytes in use, and "reserved" those that are held.
    allocated = host.get("allocated_bytes", 0)
    held = host.get("reserved_bytes", allocated)
    used = host.get("active_bytes", allocated if "reserved_bytes" in host else 0)
    # Seen on torch 2.11: a block whose only tensor was gone still counted as in use.
    asked = sum(_pinned_block(size) for size, _ in record.pinned)
    unused = min(held, asked) - 2 * record.pinned_alive  # a block has less than twice the request
    idle = max(held - used, unused)
    used = held - idle
    if idle < LEAST_PINNED:
        return []
    lines = [
        (
            f"pinned memory: {format_bytes(held)} held, {format_bytes(used)} in use at the end; "
            "each request is rounded up to a power of two and kept when it is freed"
        )
    ]
    if record.pinned:
        size, where = max(record.pinned, key=lambda one: one[0])
        place = f" at {short_file(where[0][0])}:{where[0][1]} {where[0][2]}" if where else ""
        lines.append(
            f"the largest request: {format_bytes(size)}{place}, which takes "
            f"{format_bytes(_pinned_block(size))}"
        )
    text = (
        "pin one slab of a power of two and cut it up yourself, or set "
        "pinned_max_round_threshold_mb (torch 2.13 or newer)"
    )
    return [
        Finding(
            "cache.idle",
            Severity.NORMAL,
            idle,
            f"{format_bytes(idle)} of pinned host memory is cached and unused at the end",
            tuple(lines),
            (Advice(text),),
        )
    ]


def _pinned_block(size: int) -> int:
    """Bytes of pinned memory that a request takes, by PyTorch's default settings."""
    return 1 << (size - 1).bit_length() if size else 0


def _floor(record: Record) -> list[Finding]:
    """Nothing is allocated at the end, and yet the driver shows bytes in use."""
    gpu = record.gpu
    if not gpu.devices or any(c.active for c in gpu.devices.values()):
        return []
    rest = sum(use.rest for use in gpu.use.values())
    if not gpu.use or not rest:
        return []
    cached = sum(c.reserved for c in gpu.devices.values())
    text = "nothing is cached" if not cached else f"{format_bytes(cached)} is cached"
    lines = [
        (
            "CUDA context, loaded kernels and libraries; they go back when the process ends, and "
            "nothing in it can return them before"
        )
    ]
    lines += [
        f"GPU {device}: {format_bytes(use.used)} in use by the driver's count; {use.why}"
        for device, use in sorted(gpu.use.items())
    ]
    return [
        Finding(
            "normal.floor",
            Severity.NORMAL,
            rest,
            f"at the end nothing is live and {text}; the {format_bytes(rest)} that are still in "
            "use are not PyTorch's to return",
            tuple(lines),
            confidence=Confidence.MEASURED
            if all(use.others is not None for use in gpu.use.values())
            else Confidence.INFERRED,
        )
    ]
