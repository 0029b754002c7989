"""The report of `tenure replay` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.reports.text import gib, visible, wrapped
from tenure.units import format_bytes

if TYPE_CHECKING:
    from tenure.replays import Replay


def replay_text(replay: Replay, file: str, load_seconds: float) -> str:
    """Whether the replay is exact, the four byte counts, the calls to the driver, the notes."""
    lines = [*_verdict(replay), "", *_facts(replay, file), "", *_counts(replay), ""]
    lines += _spread(replay)
    lines += _calls(replay)
    for note in replay.trace.notes:
        lines += wrapped(f"Note: {note.text}.", "  ", "    ")
    rate = len(replay.trace.events) / max(replay.seconds, 1e-9) / 1e6
    lines.append(
        f"  {load_seconds:.2f} s to load, {replay.seconds:.3f} s to replay ({rate:.1f} M events/s)"
    )
    return "\n".join(lines) + "\n"


def _verdict(replay: Replay) -> list[str]:
    events = f"{len(replay.trace.events):,} events"
    if replay.exact:
        return wrapped(
            f"Exact: {events} replayed, every address, every segment and the end state equal to "
            "the record."
        )
    if not replay.compared:
        return wrapped(f"What if: {events} replayed under other settings.")
    lines = wrapped(
        f"DIFFERENT from the record: {replay.address_mismatches:,} addresses, "
        f"{replay.segment_mismatches:,} segment events, {replay.end_state_mismatches:,} blocks at "
        "the end."
    )
    if replay.divergence:
        lines += wrapped(f"First at event {replay.divergence.event:,}: {replay.divergence.what}.")
    if replay.settings.rules == "elastic":
        lines += wrapped(
            f"Peak reserved: {format_bytes(replay.recorded_reserved or 0)} in the record, "
            f"{format_bytes(replay.peak.reserved)} in the replay. Elastic rules move what the GPU "
            "is done with; when that was, or a limit that changed, is not in the record."
        )
    return lines


def _facts(replay: Replay, file: str) -> list[str]:
    settings = replay.settings
    version = ".".join(map(str, settings.torch_version))
    conf = visible(settings.conf or "default settings")
    rules = "elastic (tenure's own)" if settings.rules == "elastic" else f"torch {version}, {conf}"
    recorded = replay.trace.settings.rules
    if recorded == "elastic":  # else as ever: a recording of PyTorch's own allocator
        same = settings.rules == recorded
        rules += ", as recorded" if same else "; recorded under elastic (tenure's own)"
    lines = [
        f"  file       {visible(file)}",
        f"  device     {replay.trace.device}",
        f"  rules      {rules}",
    ]
    if settings.limit >= 0:
        lines.append(f"  capacity   {format_bytes(settings.limit)}")
    return lines


def _counts(replay: Replay) -> list[str]:
    def row(counts: dict[str, int]) -> str:
        return "".join(f"{gib(value):>12}" for value in counts.values())

    return [
        "  GiB           requested   allocated      active    reserved",
        f"  peak         {row(replay.peak.as_dict())}",
        f"  end          {row(replay.end.as_dict())}",
    ]


def _spread(replay: Replay) -> list[str]:
    low, high = replay.spread
    if low == high:
        return []
    return wrapped(
        f"Addresses had to be guessed: peak reserved between {format_bytes(low)} and "
        f"{format_bytes(high)}, most likely {format_bytes(replay.peak.reserved)}.",
        "  ",
        "  ",
    )


def _calls(replay: Replay) -> list[str]:
    statistics, failed = replay.statistics, replay.first_oom
    counted = {
        "requests to the driver": statistics["num_device_alloc"],
        "returns": statistics["num_device_free"],
        "retries": statistics["num_alloc_retries"],
        "out of memory": statistics["num_ooms"],
    }
    lines = ["  " + ", ".join(f"{count:,} {what}" for what, count in counted.items())]
    if replay.stall_seconds is not None:
        lines.append(
            f"  {replay.chunk_moves:,} chunks moved, {replay.elastic['host_waits']:,} waits; about "
            f"{replay.stall_seconds * 1e3:,.1f} ms in the driver beyond growing"
        )
    if failed:
        lines.append(
            f"  out of memory at event {failed.event:,}: {format_bytes(failed.requested)} asked for"
        )
    return lines
