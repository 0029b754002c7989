"""Static pictures of a recording with matplotlib (the extra `plots`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tenure.errors import UsageError
from tenure.lifetimes import ORDER
from tenure.reports.page.lives import Lives, lives_of
from tenure.reports.text import visible
from tenure.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tenure.replays import Replay
    from tenure.traces import Trace

    Ints = NDArray[np.int64]

WIDTH, HEIGHT = 1400, 420  # samples over time, and rows of the address picture
# As the page's light theme, by the order of the categories.
COLORS = (
    "#4d74a8",
    "#c2727b",
    "#8b78b6",
    "#4f9f8c",
    "#cf9b57",
    "#7f8b98",
    "#6cabc9",
    "#bba956",
    "#aab0b6",
)
GROUND, CACHED, INK, FAINT = "#ffffff", "#eeece7", "#1c2127", "#646d78"

CAPTION = (
    "Each column shows the moment within it at which most was live; blocks thinner than a pixel "
    "cover one another. Categories are inferred."
)


def save_plot(trace: Trace, replay: Replay, title: str, path: Path) -> None:
    """Writes live bytes and addresses over time as a picture; the ending says which kind.

    Args:
        trace: What to show.
        replay: The trace as recorded, with its timeline.
        title: Above the picture.
        path: Where to, such as memory.png, memory.svg or memory.pdf.

    Raises:
        UsageError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            f"{path}: pictures need matplotlib: pip install 'tenure[plots]', or write an .html page"
        ) from None
    lives = lives_of(trace, replay)
    at = sample(lives.level(), WIDTH)
    figure = Figure(figsize=(12, 8), dpi=150, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1))
    figure.suptitle(visible(title), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    _draw_live(upper, lives, at, replay)
    _draw_addresses(lower, lives, at)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=FAINT, labelsize=8)
    try:
        figure.savefig(path, facecolor=GROUND, metadata=_undated(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _undated(path: Path) -> dict[str, None]:
    """Metadata without the time of writing, so that the same trace gives the same file."""
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
    return {dated: None} if dated else {}


def sample(level: Ints, width: int) -> Ints:
    """A position for each column: of those it covers the one with most of the level."""
    edges = np.linspace(0, len(level), width + 1).astype(np.int64)
    first = np.minimum(edges[:-1], len(level) - 1)
    last = np.maximum(edges[1:], first + 1)
    pieces = zip(first.tolist(), last.tolist(), strict=True)
    return np.array([a + int(level[a:b].argmax()) for a, b in pieces])


def _draw_live(axes: Any, lives: Lives, at: Ints, replay: Replay) -> None:
    present = np.flatnonzero(np.bincount(lives.category, minlength=len(ORDER)))
    layers = [lives.level(lives.size * (lives.category == index))[at] for index in present]
    reserved = lives.reserved_level()[at]
    unit, name = (GIB, "GiB") if reserved.max(initial=0) >= GIB else (MIB, "MiB")
    x = np.linspace(0, lives.positions - 1, len(at))
    if layers:
        axes.stackplot(
            x,
            *[layer / unit for layer in layers],
            colors=[COLORS[index] for index in present],
            labels=[ORDER[index].value for index in present],
            linewidth=0,
        )
    axes.plot(x, reserved / unit, color=FAINT, linewidth=1, label="reserved")
    peak = replay.peak.allocated
    position = replay.peak_event.allocated + 1
    axes.axvline(position, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.annotate(
        f"peak live {format_bytes(peak)}",
        (position, peak / unit),
        xytext=(6, 4),
        textcoords="offset points",
        fontsize=8,
        color=INK,
        fontweight="bold",
    )
    axes.set_ylabel(f"live bytes, {name}", fontsize=9, color=FAINT)
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    axes.legend(
        fontsize=7,
        ncols=5,
        frameon=False,
        labelcolor=FAINT,
        loc="lower left",
        bbox_to_anchor=(0, 1),
    )


def _draw_addresses(axes: Any, lives: Lives, at: Ints) -> None:
    total = int(lives.ground.stretch_size.sum())
    unit, name = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
    axes.imshow(
        address_image(lives, at, HEIGHT),
        aspect="auto",
        interpolation="nearest",
        extent=(0, lives.positions - 1, 0, max(total, 1) / unit),
    )
    axes.set_ylabel(f"addresses ever reserved, {name}", fontsize=9, color=FAINT)
    axes.set_xlabel(f"event\n{CAPTION}", fontsize=8, color=FAINT)


def address_image(lives: Lives, at: Ints, height: int) -> NDArray[np.uint8]:
    """Blocks and segments by address (upwards) and sampled position, as red, green and blue."""
    total = max(int(lives.ground.stretch_size.sum()), 1)
    image = np.empty((height, len(at), 3), np.uint8)
    image[:] = _rgb(GROUND)

    def paint(place: int, size: int, left: int, right: int, color: tuple[int, ...]) -> None:
        top = round(height - (place + size) * height / total)
        bottom = max(round(height - place * height / total), top + 1)
        image[max(top, 0) : bottom, left:right] = color

    ground = lives.ground
    spans = zip(
        ground.place(ground.address).tolist(),
        ground.size.tolist(),
        np.searchsorted(at, ground.born).tolist(),
        np.searchsorted(at, ground.died).tolist(),
        strict=True,
    )
    for place, size, left, right in spans:
        paint(place, size, left, right, _rgb(CACHED))
    left, right = np.searchsorted(at, lives.born), np.searchsorted(at, lives.done)
    colors = [_rgb(color) for color in COLORS]
    for i in np.flatnonzero((left < right) & (lives.place >= 0)).tolist():
        place, size = int(lives.place[i]), int(lives.size[i])
        paint(place, size, int(left[i]), int(right[i]), colors[int(lives.category[i])])
    return image


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
