"""The page: template, style and script put into one file that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING

from tenure.reports.page.facts import facts_of
from tenure.reports.page.packing import pack

if TYPE_CHECKING:
    from tenure.diagnoses import Explanation

# In the order in which they need one another.
SCRIPTS = (
    "units.js",
    "decode.js",
    "peaks.js",
    "record.js",
    "axis.js",
    "scene.js",
    "palette.js",
    "grouping.js",
    "raster.js",
    "live_chart.js",
    "address_chart.js",
    "lanes_chart.js",
    "overview.js",
    "moment.js",
    "search.js",
    "elements.js",
    "panel.js",
    "plot.js",
    "stage.js",
    "view.js",
    "keys.js",
    "page.js",
)
# Modules import one another for tests and editors; in the page they are one script.
_IMPORT = re.compile(r"^import\b[^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)


def page_html(explanation: Explanation, file: str) -> str:
    """One HTML file that shows a recording: values reach it as packed data, never as markup.

    Args:
        explanation: What to show.
        file: What the page calls the recording.
    """
    facts = facts_of(explanation, file)
    return fill(pack(facts.head, facts.columns))


def fill(data: str) -> str:
    """The page around packed data."""
    style, theme, script = _read("page.css"), _read("theme.js"), joined_scripts()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(theme)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {"policy": policy, "style": style, "theme": theme, "script": script, "data": data}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("template.html"))


def joined_scripts() -> str:
    """All modules as one."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", _read(name))) for name in SCRIPTS)


def _read(name: str) -> str:
    return files("tenure.reports.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
