"""Results as plain values for --json: the field names are a contract, see docs/json.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.diagnoses import Advice, Explanation, Finding
    from tenure.replays import Replay


def replay_dict(replay: Replay, file: str, load_seconds: float) -> dict[str, Any]:
    """A replay; all sizes in bytes."""
    statistics, failed, settings = replay.statistics, replay.first_oom, replay.settings
    return {
        "file": file,
        "device": replay.trace.device,
        "rules": settings.rules,
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
    replay, split = explanation.replay, explanation.split
    return {
        "file": file,
        "device": explanation.trace.device,
        "capacity": explanation.capacity,
        "complete": explanation.complete,
        "missing": list(explanation.missing),
        "peak": {
            **replay.peak.as_dict(),
            "at_event": replay.peak_event.allocated,
            "by_site": [
                {"site": s.label, "category": s.category, "bytes": s.bytes, "blocks": s.blocks}
                for s in explanation.by_site
            ],
            "by_category": [
                {"category": s.category, "bytes": s.bytes, "blocks": s.blocks}
                for s in explanation.by_category
            ],
        },
        "reserved": {
            "at_event": replay.peak_event.reserved,
            "total": split.reserved,
            **{
                name: {"bytes": part.bytes, "blocks": part.blocks}
                for name, part in (
                    ("live", split.live),
                    ("pending", split.pending),
                    ("whole_segments", split.whole),
                    ("remainders", split.remainders),
                    ("other_streams", split.other_streams),
                    ("private_pools", split.private),
                )
            },
        },
        "streams": [
            {
                "stream": u.stream,
                "live_peak": u.live_peak,
                "pending_peak": u.pending_peak,
                "reserved_peak": u.reserved_peak,
                "frees_that_waited": u.waited,
                "longest_wait_us": u.longest_wait_us,
            }
            for u in explanation.streams
        ],
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
        "findings": [_finding(finding) for finding in explanation.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "bytes": finding.bytes,
        "title": finding.title,
        "evidence": [line.strip() for line in finding.evidence],
        "advice": [_advice(advice) for advice in finding.advice],
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
