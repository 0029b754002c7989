"""Functions in C++ and JavaScript source, found by braces: enough to measure their length."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXT = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # comments
    r'|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'  # raw strings of C++
    r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''  # not the ' inside 1'000
    r"|`(?:\\.|[^`\\])*`",  # templates of JavaScript
    re.DOTALL,
)
_CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$")
_NAME = re.compile(r"([A-Za-z_~]\w*|operator\s*\S+?)\s*\(")
_ARROW = re.compile(r"([A-Za-z_]\w*)\s*[=:]\s*(?:async\s*)?(?:\([^()]*\)|\w+)\s*=>\s*$")


@dataclass
class _Block:
    kind: str  # "container", "function" or "other"
    name: str = ""
    line: int = 0


def blank_comments_and_strings(text: str) -> str:
    """The same text with comments and strings as spaces; every newline stays where it was."""
    return _TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _kind_of(head: str, around: str) -> tuple[str, str]:
    """What a brace opens, told by the text before it and the block around it: kind and name."""
    if around == "function":
        return "other", ""
    arrow = _ARROW.search(head)
    if arrow:
        return "function", arrow[1]
    name = _NAME.search(head)
    if name and not _CONTAINER.search(head):
        return "function", name[1]
    return ("container", "") if _CONTAINER.search(head) else ("other", "")


def functions_of(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of each outermost function, in order of their ends.

    A lambda counts towards the function around it; a template's head belongs to its function.
    """
    code = re.sub(r"(?m)^\s*#[^\n]*", "", blank_comments_and_strings(text))
    open_blocks = [_Block("container")]
    head = ""
    head_line = line = 1
    finished: _Block | None = None  # a member initialiser with braces is not yet the body
    finished_line = 0
    for character in code:
        if character == "{":
            # `Pool(int n) : n_{n}, m_{1} {`: the same function goes on after each initialiser
            goes_on = finished is not None and (head.strip() == "" or head.lstrip()[0] == ",")
            if goes_on and finished is not None and open_blocks[-1].kind == "container":
                open_blocks.append(finished)
            else:
                kind, name = _kind_of(head, open_blocks[-1].kind)
                if open_blocks[-1].kind == "other" and kind == "container":
                    kind = "other"
                open_blocks.append(_Block(kind, name, head_line))
                if finished is not None:
                    yield finished.name, finished.line, finished_line - finished.line + 1
            finished, head = None, ""
        elif character == "}" and len(open_blocks) > 1:
            if finished is not None:
                yield finished.name, finished.line, finished_line - finished.line + 1
            closed = open_blocks.pop()
            finished = closed if closed.kind == "function" else None
            finished_line, head = line, ""
        elif character == ";":
            head = ""
        elif head or not character.isspace():
            if not head:
                head_line = line
            head += character
        line += character == "\n"
    if finished is not None:
        yield finished.name, finished.line, finished_line - finished.line + 1
