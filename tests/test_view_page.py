"""The page of `tenure view` in a real browser: what it shows, and that it asks nobody."""

from __future__ import annotations

import re
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import ABSENT, Opened, browser
from hostile_recording import HOSTILE, hostile_trace
from shared_data import ABSENT as NO_SHARED
from shared_data import EXAMPLES, SHARED
from tenure.diagnoses import Severity, explain
from tenure.replays import recorded_replay
from tenure.reports.page import page_html
from tenure.snapshots import load
from tenure.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenure.diagnoses import Explanation

pytestmark = pytest.mark.skipif(bool(ABSENT), reason=ABSENT or "there is a browser")

NAMES = ("gpt2_varlen", "prefetch_streams", "leak_graph", "llama_lora.limit5.5", "resnet50")


@cache
def explained(name: str) -> Explanation:
    return explain(load(EXAMPLES / f"{name}.pickle.xz"))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def opened(context: Any, pages: Path, name: str, prepare: str = "") -> Opened:
    path = pages / f"{name}.html"
    if not path.exists():
        path.write_text(page_html(explained(name), f"{name}.pickle.xz"), encoding="utf-8")
    return Opened(context, path, prepare)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_opens_without_a_word_and_without_asking_anybody(
    context: Any, pages: Path, name: str
) -> None:
    page = opened(context, pages, name)
    page.settle()
    assert page.said == []
    assert page.asked == [(pages / f"{name}.html").as_uri()]
    assert page.page.title() == f"{name}.pickle.xz · tenure"
    page.page.close()


def test_no_address_of_the_network_is_in_a_page() -> None:
    text = page_html(explained("resnet50"), "resnet50")
    assert not re.search(r"https?:|//[a-z]+\.|@import|<link rel=.stylesheet", text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert "connect-src" not in policy[1]  # default-src forbids it


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_where_the_replay_has_it(context: Any, pages: Path, name: str) -> None:
    replay = explained(name).replay
    drawn = (
        "globalThis.drawn = []; const plain = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {"
        "  drawn.push([text, x]); plain.call(this, text, x, y); };"
    )
    page = opened(context, pages, name, drawn)
    page.settle()
    assert page.value("record.peak") == replay.peak_event.allocated + 1
    assert page.value("record.live[record.peak]") == replay.peak.allocated
    assert page.value("record.live.reduce((a, b) => Math.max(a, b))") == replay.peak.allocated
    assert page.value("record.reserved.reduce((a, b) => Math.max(a, b))") == replay.peak.reserved
    label = f"peak live {format_bytes(replay.peak.allocated)}"
    flags = [x for text, x in page.page.evaluate("drawn") if text == label]
    at = page.value("stage.live.xPixel(view.axis.x(record.peak), view.x0, view.x1)")
    assert flags
    assert all(abs(abs(x - at) - 7) < 1 for x in flags)  # 7 pixels beside the line
    numbers = page.page.inner_text("#numbers")
    assert format_bytes(replay.peak.allocated) in numbers
    assert format_bytes(replay.peak.reserved) in numbers
    page.page.close()


def test_every_finding_is_beside_the_charts(context: Any, pages: Path) -> None:
    for name in ("gpt2_varlen", "llama_lora.limit5.5"):
        page = opened(context, pages, name)
        text = " ".join(page.page.inner_text("#panel").split())
        findings = explained(name).findings
        assert findings
        for finding in findings:
            assert finding.code in text
            assert " ".join(finding.title[1:].split()) in text
            if finding.severity in (Severity.ERROR, Severity.WARNING):
                assert f"More: {finding.more}" in text
        page.page.close()


def click_on_block(page: Opened, block: int, chart: str) -> None:
    """Clicks where a block is drawn, a third into its life."""
    page.value(f"view.showLife({block})")
    page.settle()
    stage = page.page.locator(f"#{chart} .stage")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    x = page.value(
        f"stage.live.xPixel((2 * view.axis.x(record.born[{block}]) "
        f"+ view.axis.x(record.freed[{block}])) / 3, view.x0, view.x1)"
    )
    y = page.value(
        f"stage.addresses.above + stage.addresses.height * (view.high - record.place[{block}] "
        f"- record.size[{block}] / 2) / (view.high - view.low)"
    )
    page.page.mouse.click(box["x"] + x, box["y"] + y)
    page.settle()


def test_a_click_on_a_block_shows_its_stack_and_neighbours(context: Any, pages: Path) -> None:
    trace = explained("gpt2_varlen").trace
    allocations = trace.allocations
    named = (allocations.stack >= 0) & (allocations.born >= 0) & (allocations.freed >= 0)
    long = named & (allocations.freed - allocations.born > 200)
    block = int((allocations.requested * long).argmax())
    page = opened(context, pages, "gpt2_varlen")
    click_on_block(page, block, "addresses")
    assert page.value("view.selected") == block
    text = page.page.inner_text("#body-block")
    for frame in trace.stacks.frames(int(allocations.stack[block])):
        assert frame.name in text
        assert f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" in text
    assert f"{allocations.requested[block]:,} B" in text
    assert f"{allocations.address[block]:#x}" in text
    assert f"event {allocations.born[block]:,}" in text
    assert "Neighbours" in text
    assert "above" in text
    page.page.close()


def test_a_click_into_the_stack_selects_what_is_drawn_there(context: Any, pages: Path) -> None:
    page = opened(context, pages, "leak_graph")
    box = page.page.locator("#live .stage").bounding_box()
    page.page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.7)
    page.settle()
    block = page.value("view.selected")
    assert block >= 0
    assert page.value(f"record.born[{block}] <= view.moment && view.moment < record.freed[{block}]")
    assert page.page.get_attribute("#tab-block", "aria-selected") == "true"
    page.page.close()


def test_the_keyboard_zooms_moves_and_goes_to_the_peak(context: Any, pages: Path) -> None:
    page = opened(context, pages, "gpt2_varlen")
    press = page.page.keyboard.press

    def shown() -> tuple[float, float]:
        page.settle()
        return page.value("view.x0"), page.value("view.x1")

    whole = shown()
    press("+")
    closer = shown()
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 2)
    press("ArrowRight")
    moved = shown()
    assert moved[0] > closer[0]
    assert moved[1] - moved[0] == pytest.approx(closer[1] - closer[0])
    press("-")
    press("-")
    assert shown() == whole
    for _ in range(6):
        press("+")
    press("ArrowLeft")
    press("p")
    low, high = shown()
    assert low <= page.value("record.peak") <= high
    press("0")
    assert shown() == whole
    range_text = page.page.inner_text("#range")
    assert "100 %" in range_text
    press("?")
    assert page.page.is_visible("#keys")
    press("Escape")
    assert not page.page.is_visible("#keys")
    page.page.close()


def test_the_wheel_zooms_at_the_pointer_with_ctrl_and_scrolls_without(
    context: Any, pages: Path
) -> None:
    page = opened(context, pages, "gpt2_varlen")
    box = page.page.locator("#live .stage").bounding_box()
    page.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    whole = page.value("[view.x0, view.x1]")
    page.page.keyboard.down("Control")
    page.page.mouse.wheel(0, -300)
    page.page.keyboard.up("Control")
    page.settle()
    closer = page.value("[view.x0, view.x1]")
    assert closer[1] - closer[0] < whole[1] - whole[0]
    page.page.mouse.wheel(0, -300)
    page.settle()
    assert page.value("[view.x0, view.x1]") == closer
    page.page.close()


def test_search_filters(context: Any, pages: Path) -> None:
    page = opened(context, pages, "gpt2_varlen")
    trace = explained("gpt2_varlen").trace
    page.page.fill("#search", "adam.py >100MiB")
    page.page.wait_for_selector("#body-search:not([hidden])")
    text = page.page.inner_text("#body-search")
    found = [
        number
        for number in range(len(trace.allocations))
        if trace.allocations.requested[number] > 100 << 20
        and any("adam.py" in f.file for f in trace.stacks.frames(trace.allocations.stack[number]))
    ]
    assert f"{len(found):,} allocations match" in text
    assert page.value("view.matches.reduce((a, b) => a + b, 0)") == len(found)
    page.page.keyboard.press("Escape")
    page.settle()
    assert page.value("view.matches") is None
    page.page.close()


def test_both_themes_are_set_before_the_first_paint(context: Any, pages: Path) -> None:
    path = pages / "themes.html"
    path.write_text(page_html(explained("leak_graph"), "leak_graph"), encoding="utf-8")
    early = "document.addEventListener('DOMContentLoaded', () => { globalThis.early = "
    early += "document.documentElement.dataset.theme; });"
    grounds = []
    for scheme in ("light", "dark"):
        page = Opened(context, path, early, scheme)
        assert page.page.evaluate("early") == scheme
        grounds.append(page.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.page.keyboard.press("t")
        other = {"light": "dark", "dark": "light"}[scheme]
        assert page.page.evaluate("document.documentElement.dataset.theme") == other
        assert page.said == []
        page.page.evaluate("localStorage.clear()")
        page.page.close()
    assert grounds[0] != grounds[1]


def test_hostile_text_is_shown_as_text_and_runs_nothing(context: Any, pages: Path) -> None:
    path = pages / "hostile.html"
    trace = hostile_trace()
    path.write_text(page_html(explain(trace), HOSTILE[0]), encoding="utf-8")
    page = Opened(context, path)
    page.page.click("#tab-moment")
    page.value("view.select(record.liveAt(record.peak)[0])")
    page.page.click("#tab-block")
    page.page.fill("#search", "script")
    page.page.wait_for_selector("#body-search:not([hidden])")
    page.page.click("#tab-block")
    page.settle()
    text = page.page.inner_text("#body-block")
    for word in ("<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(2)>"):
        assert word in text
    assert "\\u0007" in text  # control and direction characters are spelled out
    assert "\\u202e" in text
    assert page.page.evaluate("document.querySelectorAll('img, #panel script').length") == 0
    assert page.page.evaluate("globalThis.hacked") is None
    assert page.page.inner_text("#file").startswith("<script>")
    assert page.said == []
    assert page.asked == [path.as_uri()]
    page.page.close()


def test_a_page_passes_an_accessibility_check(context: Any, pages: Path) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    page = opened(context, pages, "gpt2_varlen")
    for theme in ("light", "dark"):
        for tab in ("findings", "moment", "block", "search"):
            page.value(f"(view.step(1), controls.find('forward'), panel.open('{tab}'))")
            page.settle()
            result = axe.Axe().run(page.page)
            assert result.violations_count == 0, (theme, tab, result.generate_report())
        page.value("controls.otherTheme()")
    page.page.close()


def test_empty_and_one_event_recordings_have_a_page(context: Any, pages: Path) -> None:
    for name, events in (("none", 0), ("one", 1)):
        path = pages / f"{name}.html"
        path.write_text(page_html(explain(hostile_trace(events)), name), encoding="utf-8")
        page = Opened(context, path)
        for key in ("+", "-", "0", "p", "]", "z", "x", "g", ".", ","):
            page.page.keyboard.press(key)
        page.settle()
        assert page.said == []
        page.page.close()


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason=NO_SHARED)
def test_half_a_million_events_zoom_smoothly(
    context: Any, pages: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times are reported; the bounds are far above them: the machine may do other work."""
    trace = load(SHARED / "traces" / "llama_generate.pickle.xz")
    assert recorded_replay(trace).exact
    path = pages / "llama_generate.html"
    path.write_text(page_html(explain(trace), "llama_generate"), encoding="utf-8")
    begin = time.perf_counter()
    page = Opened(context, path)
    opening = time.perf_counter() - begin
    frames = page.value(
        "Array.from({length: 30}, (_, k) => { view.zoom(k < 15 ? 0.7 : 1.4, record.peak);"
        " stage.draw(); return stage.lastDraw; })"
    )
    middle = sorted(frames)[len(frames) // 2]
    record_property("open_seconds", opening)
    record_property("frame_milliseconds", middle)
    with capsys.disabled():
        told = f"525,407 events: {opening:.2f} s to open, {middle:.1f} ms a frame of zooming"
        sys.stdout.write(f"\n{told}\n")
    assert opening < 20
    assert middle < 1000
    page.page.close()
