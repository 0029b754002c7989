"""Draws the pictures of the documentation anew: python tests/draw_pictures.py [NAME…].

Each is a part of the page that `tenure view` writes for a recording in examples/, after the keys
that a reader would press. Needs playwright, Pillow and chromium.
"""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from browser import Opened, browser
from shared_data import EXAMPLES, ROOT

PICTURES = ROOT / "docs" / "pictures"
COLOURS = 128  # of a picture; a page uses few, and the file is a third as large
WIDTH, HEIGHT = 1180, 1700  # pixels of the window
MARGIN = 8  # pixels around each part
GROUND = "#f7f6f2"  # as the page

# Name -> recording, columns of parts of its page, what is searched for, and the keys after it.
PARTS: dict[str, tuple[str, list[list[str]], str, str]] = {
    "pinned": ("llama_lora.limit5.5", [["live", "addresses"]], "#5387", "z"),
    "growth": ("leak_graph", [["live"]], "", ""),
    "life": ("prefetch_streams", [["addresses", "lanes"], ["panel"]], "#316", "xz"),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as context:
        for name in sys.argv[1:] or PARTS:
            recording, columns, search, keys = PARTS[name]
            page = Path(folder) / f"{name}.html"
            source = EXAMPLES / f"{recording}.pickle.xz"
            subprocess.run(
                [sys.executable, "-m", "tenure", "view", str(source), "-o", str(page)], check=True
            )
            opened = Opened(context, page)
            opened.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            act(opened, search, keys)
            save(picture(opened, columns), PICTURES / f"{name}.png")


def act(opened: Opened, search: str, keys: str) -> None:
    """Searches, chooses the first block found, empties the search, presses the keys."""
    if search:
        opened.page.fill("#search", search)
        opened.page.press("#search", "Enter")
        opened.settle()
        opened.page.click("#body-search button >> nth=0")
        opened.page.fill("#search", "")
        opened.page.wait_for_timeout(1000)  # a search begins once nothing more is typed
        opened.page.click("#tab-block")
        opened.page.evaluate("document.activeElement.blur()")
    for key in keys:
        opened.page.keyboard.press(key)
    opened.page.mouse.move(0, 0)
    opened.page.wait_for_timeout(1000)


def picture(opened: Opened, columns: list[list[str]]) -> Any:
    """Parts of the page, put together: lists of ids from left to right, each from above."""
    shots = [
        [Image.open(io.BytesIO(opened.page.locator(f"#{part}").screenshot())) for part in column]
        for column in columns
    ]
    widths = [max(shot.width for shot in column) + MARGIN for column in shots]
    heights = [sum(shot.height + MARGIN for shot in column) for column in shots]
    whole = Image.new("RGB", (sum(widths) + MARGIN, max(heights) + MARGIN), GROUND)
    for column, left in zip(shots, itertools.accumulate([0, *widths]), strict=False):
        top = MARGIN
        for shot in column:
            whole.paste(shot, (left + MARGIN, top))
            top += shot.height + MARGIN
    return whole


def save(whole: Any, path: Path) -> None:
    whole.quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main()
