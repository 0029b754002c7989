"""Takes tenure's own frames out of PyTorch's recorded stacks: a script sees what it would alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure.lifetimes.sources import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator

Frames = list[dict[str, Any]]

_STARTER = "live/runs/running.py"  # its frame called the script; what lies beyond called tenure
_CALLED = ("torch/_ops.py", "torch/utils/_python_dispatch.py")  # by a mode of ours


def hide_own_frames(snapshot: dict[str, Any]) -> None:
    """Removes them in place.

    Args:
        snapshot: As `torch.cuda.memory._snapshot()` gives it; frames are innermost first.
    """
    # PyTorch gives equal stacks as one list. Each is kept until the end: ids stay unique.
    seen: dict[int, Frames] = {}
    for frames in _stacks(snapshot):
        if id(frames) not in seen:
            seen[id(frames)] = frames
            frames[:] = _others(frames)


def _stacks(snapshot: dict[str, Any]) -> Iterator[Frames]:
    places = [event for trace in snapshot.get("device_traces") or () for event in trace]
    for segment in snapshot.get("segments") or ():
        places.append(segment)
        places += segment.get("blocks") or ()
    for place in places:
        frames = place.get("frames")
        if isinstance(frames, list):
            yield frames


def _others(frames: Frames) -> Frames:
    kept: Frames = []
    for frame in frames:
        file = str(frame.get("filename", "")).replace("\\", "/")
        if not is_own(file):
            kept.append(frame)
            continue
        if file.endswith(_STARTER):
            break
        while kept and _file(kept[-1]).endswith(_CALLED):
            kept.pop()
    return kept


def _file(frame: dict[str, Any]) -> str:
    return str(frame.get("filename", "")).replace("\\", "/")
