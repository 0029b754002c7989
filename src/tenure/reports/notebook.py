"""What Jupyter shows for results: the page in a frame of its own, or the text where it is large.

Importing this module gives `Explanation` and `Replay` their `_repr_html_`: the rooms they are
defined in know nothing of reports.
"""

from __future__ import annotations

from html import escape

from tenure.diagnoses import Explanation
from tenure.replays import Replay
from tenure.reports.page import page_html
from tenure.reports.text import explanation_text, visible
from tenure.units import format_bytes

LARGEST_PAGE = 2_000_000  # characters that a notebook keeps for one cell
HEIGHT = 900  # pixels
_METHOD = "_repr_html_"


def explanation_html(explanation: Explanation) -> str:
    """The page about an explanation in a frame, or its text if the page would bloat a notebook."""
    page = page_html(explanation, "recording")
    if len(page) > LARGEST_PAGE:
        text = explanation_text(explanation)
        return f"<pre>{escape(text)}\nThe picture is large: tenure view FILE -o memory.html</pre>"
    # allow-scripts alone: the page runs apart from the notebook, without its origin or storage.
    return (
        f'<iframe title="tenure: what held GPU memory" sandbox="allow-scripts" width="100%" '
        f'height="{HEIGHT}" style="border:0" srcdoc="{escape(page)}"></iframe>'
    )


def replay_html(replay: Replay) -> str:
    """The byte counts of a replay as a table."""
    peak, end = replay.peak.as_dict(), replay.end.as_dict()
    rows = "".join(
        f"<tr><th>{name}</th><td>{format_bytes(peak[name])}</td>"
        f"<td>{format_bytes(end[name])}</td></tr>"
        for name in peak
    )
    conf = escape(visible(replay.settings.conf or "default settings"))
    if replay.settings.rules == "elastic":
        conf = "tenure's elastic rules"
    title = "exact" if replay.exact else "as recorded" if replay.compared else "what if"
    return (
        f"<table><caption>{len(replay.trace.events):,} events replayed ({title}), {conf}</caption>"
        f"<thead><tr><th></th><th>peak</th><th>at the end</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


setattr(Explanation, _METHOD, explanation_html)
setattr(Replay, _METHOD, replay_html)
