"""A plan, as text and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure.reports.text import visible, wrapped
from tenure.units import format_bytes, format_count

if TYPE_CHECKING:
    from tenure.plans import Plan
    from tenure.traces import Note


def plan_dict(plan: Plan, file: str, notes: tuple[Note, ...], graph_buffers: int) -> dict[str, Any]:
    """All sizes in bytes; fields are in docs/plans.md."""
    return {
        "file": file,
        "device": plan.device,
        "live_peak": plan.live_peak,
        "size": plan.size,
        "checked": plan.checked,
        "buffers": len(plan.buffers),
        "seconds": plan.seconds,
        "streams": {
            "count": plan.streams.count,
            "hand_overs": plan.streams.hand_overs,
            "apart": plan.streams.apart,
        },
        "graph_buffers": graph_buffers,
        "notes": [note.text for note in notes],
    }


def plan_text(
    plan: Plan, file: str, notes: tuple[Note, ...], graph_buffers: int, saved: str | None
) -> str:
    """The answer first, then what it rests on."""
    above = plan.size - plan.live_peak
    lines = wrapped(
        f"All {format_count(len(plan.buffers))} allocations fit into {format_bytes(plan.size)}, "
        + (
            "which is what is live at the peak: nothing can do better."
            if above == 0
            else f"{format_bytes(above)} ({100 * (plan.ratio - 1):.2f} %) above what is live at "
            "the peak, the bound."
        )
    )
    lines += [
        "",
        f"  file        {visible(file)}",
        f"  device      {plan.device}",
        f"  live peak   {format_count(plan.live_peak):>18} bytes, the bound",
        f"  plan        {format_count(plan.size):>18} bytes, {plan.ratio:.4f} x",
        f"  checked     {'yes' if plan.checked else 'NO'}: no two that live together share a byte",
        f"  streams     {_streams(plan)}",
    ]
    if saved:
        lines.append(f"  saved as    {visible(saved)}")
    lines.append("")
    if plan.streams.hand_overs:
        lines += wrapped(
            f"{format_count(plan.streams.hand_overs)} times memory goes from one stream to "
            "another: in the recording the first was done by then; a run that follows the plan "
            "needs an event at each. --streams-apart plans without.",
            "  ",
            "  ",
        )
    if graph_buffers:
        lines += wrapped(
            f"Note: {format_count(graph_buffers)} allocations are in private pools (CUDA graphs). "
            "A graph that is replayed uses them again after the record frees them; the plan does "
            "not see that, so it may be too small.",
            "  ",
            "  ",
        )
    for note in notes:
        lines += wrapped(f"Note: {note.text}.", "  ", "  ")
    lines += wrapped(
        f"Offline only: every request has to be known beforehand. Found in {plan.seconds:.2f} s; "
        "tenure tune shows it beside what PyTorch's settings reach.",
        "  ",
        "  ",
    )
    return "\n".join(lines) + "\n"


def _streams(plan: Plan) -> str:
    if plan.streams.count <= 1:
        return "one"
    if plan.streams.apart:
        return f"{plan.streams.count}, none uses another's memory"
    return f"{plan.streams.count}, {format_count(plan.streams.hand_overs)} hand-overs between them"
