"""A real headless browser for tests of pages, or the reason why there is none."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
ABSENT = ""
if find_spec("playwright") is None:
    ABSENT = "playwright is not installed: pip install playwright"
elif not CHROMIUM:
    ABSENT = "no chromium is installed: apt-get install chromium"

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = "document.documentElement.dataset.ready !== undefined"
SIZE: Any = {"width": 1440, "height": 1600}


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A browser whose profile is in an empty folder; what it yields opens pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=FLAGS, viewport=SIZE
        )
        try:
            yield context
        finally:
            context.close()


class Opened:
    """A page that was opened from disk, with all that it said and asked for."""

    def __init__(self, context: Any, path: Path, prepare: str = "", scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.emulate_media(color_scheme=scheme)
        if prepare:
            self.page.add_init_script(prepare)
        self.page.goto(path.as_uri())
        self.page.wait_for_function(READY, timeout=60_000)

    def value(self, script: str) -> Any:
        """What a script comes to; `view`, `stage`, `record` and `panel` are those of the page."""
        names = "const {view, stage, panel, controls} = tenureView; const {record} = view;"
        return self.page.evaluate(f"(() => {{ {names} return {script}; }})()")

    def settle(self) -> None:
        """Waits until everything asked for has been painted."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
