"""Each finding of explain or run has its page, and no page is about one that neither can give."""

from __future__ import annotations

import re

from shared_data import ROOT

PAGES = ROOT / "docs" / "findings"
ROOMS = ("diagnoses", "traces", "snapshots", "live")
AREAS = "oom|growth|(?:fragmentation|cache|stream|pool|holder|outside|normal|trace|setting)"
CODE = re.compile(rf'"((?:{AREAS})(?:\.[a-z_]+)?)"')


def codes() -> set[str]:
    """The codes that the source names: whole strings with the form of a code."""
    text = "".join(
        path.read_text(encoding="utf-8")
        for room in ROOMS
        for path in sorted((ROOT / "src" / "tenure" / room).rglob("*.py"))
    )
    return {code for code in CODE.findall(text) if "." in code or code in {"oom", "growth"}}


def test_each_code_has_a_page_and_each_page_a_code() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert pages == codes()


def test_a_page_is_named_after_its_code_and_listed() -> None:
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    for path in PAGES.glob("*.md"):
        if path.stem == "index":
            continue
        assert path.read_text(encoding="utf-8").startswith(f"# `{path.stem}`")
        assert f"]({path.name})" in index


def test_links_between_pages_lead_somewhere() -> None:
    for path in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+\.md)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
