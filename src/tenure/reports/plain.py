"""Results as plain values for --json: the field names are a contract, see docs/json.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.diagnoses import Advice, DeviceUse, Explanation, Finding, PoolShare
    from tenure.replays import Replay
    from tenure.streams import StreamUsage


def replay_dict(replay: Replay, file: str, load_seconds: float) -> dict[str, Any]:
    """A replay; all sizes in bytes."""
    statistics, failed, settings = replay.statistics, replay.first_oom, replay.settings
    return {
        "file": file,
        "device": replay.trace.device,
        "rules": settings.rules,
        "recorded_rules": replay.trace.settings.rules,
        "torch_version": ".".join(map(str, settings.torch_version)),
        "conf": settings.conf if settings.rules == "torch" else "",
        "capacity": settings.limit if settings.limit >= 0 else None,
        "events": len(replay.trace.events),
        "compared": replay.compared,
        "address_mismatches": replay.address_mismatches,
        "segment_mismatches": replay.segment_mismatches,
        "end_state_mismatches": replay.end_state_mismatches,
        "divergence": (
            {"event": replay.divergence.event, "what": replay.divergence.what}
            if replay.divergence and replay.compared
            else None
        ),
        "peak": replay.peak.as_dict(),
        "peak_reserved_spread": list(replay.spread),
        "recorded_peak_reserved": replay.recorded_reserved,
        "end": replay.end.as_dict(),
        "device_allocs": statistics["num_device_alloc"],
        "device_frees": statistics["num_device_free"],
        "chunk_moves": replay.chunk_moves,
        "stall_seconds": replay.stall_seconds,
        "retries": statistics["num_alloc_retries"],
        "ooms": statistics["num_ooms"],
        "first_oom": (
            {"event": failed.event, "requested": failed.requested, "stream": failed.stream}
            if failed
            else None
        ),
        "limit_range": list(replay.limit_range) if replay.limit_range else None,
        "statistics": dict(statistics),
        "notes": [note.text for note in replay.trace.notes],
        "seconds": {"load": load_seconds, "replay": replay.seconds},
    }


def explanation_dict(explanation: Explanation, file: str) -> dict[str, Any]:
    """An explanation; all sizes in bytes."""
    return {
        "file": file,
        "device": explanation.trace.device,
        "rules": explanation.trace.settings.rules,
        "capacity": explanation.capacity,
        "complete": explanation.complete,
        "missing": list(explanation.missing),
        "peak": {
            **explanation.replay.peak.as_dict(),
            "at_event": explanation.replay.peak_event.allocated,
            "by_site": [
                {"site": s.label, "category": s.category, "bytes": s.bytes, "blocks": s.blocks}
                for s in explanation.by_site
            ],
            "by_category": [
                {"category": s.category, "bytes": s.bytes, "blocks": s.blocks}
                for s in explanation.by_category
            ],
        },
        "reserved": _reserved(explanation),
        "reserved_by_pool": [_pool(share) for share in explanation.split.pools],
        "device_memory": _device(explanation.device) if explanation.device else None,
        "rounds": _rounds(explanation),
        "streams": [_stream(usage) for usage in explanation.streams],
        "settings": [
            {
                "rules": c.rules,
                "conf": c.conf,
                "peak_reserved": c.peak_reserved,
                "smallest_capacity": c.smallest_capacity,
                "fits": c.fits,
            }
            for c in explanation.candidates
        ],
        "findings": [finding_dict(finding) for finding in explanation.findings],
    }


def _reserved(explanation: Explanation) -> dict[str, Any]:
    """The moment at which reserved bytes are taken apart, and their parts."""
    split = explanation.split
    parts = {
        "live": split.live,
        "pending": split.pending,
        "whole_segments": split.whole,
        "remainders": split.remainders,
        "other_streams": split.other_streams,
        "private_pools": split.private,
    }
    return {
        "at_event": explanation.split_event,
        "total": split.reserved,
        **{name: {"bytes": p.bytes, "blocks": p.blocks} for name, p in parts.items()},
    }


def _pool(share: PoolShare) -> dict[str, Any]:
    return {
        "stream": share.stream,
        "pool": list(share.pool),
        "reserved": share.reserved,
        "live": share.live,
        "pending": share.pending,
        "returnable": share.whole,
        "pinned": share.pinned,
    }


def _stream(usage: StreamUsage) -> dict[str, Any]:
    return {
        "stream": usage.stream,
        "live_peak": usage.live_peak,
        "pending_peak": usage.pending_peak,
        "reserved_peak": usage.reserved_peak,
        "frees_that_waited": usage.waited,
        "longest_wait_us": usage.longest_wait_us,
        "most_waiting_at_once": usage.pending_blocks,
    }


def _device(use: DeviceUse) -> dict[str, Any]:
    return {
        "reserved": use.reserved,
        "free": use.free,
        "total": use.total,
        "card": use.card,
        "outside": use.outside,
    }


def _rounds(explanation: Explanation) -> dict[str, Any] | None:
    rounds = explanation.rounds
    if rounds is None:
        return None
    return {
        "per": rounds.per,
        "count": rounds.last_number,
        "first_event": int(rounds.begin[0]),
        "last_event": int(rounds.end[-1]) - 1,
        "flat_since": explanation.flat_since,
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One finding, as every command gives it."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "bytes": finding.bytes,
        "confidence": finding.confidence.value,
        "title": finding.title,
        "evidence": [line.strip() for line in finding.evidence],
        "advice": [_advice(advice) for advice in finding.advice],
        "more": finding.more,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    verified = advice.verified
    return {
        "text": advice.text,
        "conf": advice.conf,
        "verified": (
            {
                "peak_reserved_before": verified.peak_reserved_before,
                "peak_reserved_after": verified.peak_reserved_after,
                "smallest_capacity_before": verified.smallest_before,
                "smallest_capacity_after": verified.smallest_after,
            }
            if verified
            else None
        ),
    }
