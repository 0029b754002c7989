"""The design's rules about the source text: who may know whom, and how long things may get.

They need neither a compiler nor the installed package.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpp_text import blank_comments_and_strings, functions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tenure"

# A room may import itself and every row above its own; rooms of one row don't know each other.
# The first row is the ground that all stand on: its files may import each other.
ROWS: list[set[str]] = [
    {"units", "errors", "settings", "cards", "compiled", "patches", "_engine"},
    {"traces"},
    {"snapshots", "replays", "lifetimes", "streams"},
    {"plans", "virtual"},
    {"diagnoses"},
    {"live", "reports"},
    {"verbs"},  # the public functions: a file or a trace in, a result out
    {"cli", "testing"},
]
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}

LONGEST_FILE = 600  # lines
LONGEST_FUNCTION = 60  # lines, from its head to its last

# Each exception to a rule with its reason: "path" for a file, "path::function" for a function.
EXCEPTIONS: dict[str, str] = {}

FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "core", "misc"}
CUDA_HEADER = re.compile(r"(cuda|cu[A-Z]|cu(blas|dnn|fft|rand|solver|sparse|pti)|nvml|nccl|nvtx)")
TORCH_HEADER = re.compile(r"(torch|ATen|c10|pybind11)/")
# Folders of the machine a file was written on; spelled in parts so that this file passes.
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/" + r"(?:work|root|tmp|home/\w+)/")


def tracked_files() -> list[Path]:
    """Every file of the project that git tracks, or, outside a checkout, every source file."""
    if (ROOT / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        )
        files = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        folders = ("engine", "src", "tests", "benchmarks", "examples", "docs")
        files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in files if path.is_file() and "__pycache__" not in path.parts]


FILES = tracked_files()


def files_ending(*suffixes: str, under: str = "") -> list[Path]:
    return [path for path in FILES if path.suffix in suffixes and name_of(path).startswith(under)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def refuse(wrong: list[str]) -> None:
    """Fails with the list of what is wrong, one line each."""
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


# --- rooms ---------------------------------------------------------------------------------------


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").removesuffix(".pyi")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import, relative ones resolved, inside functions too."""
    package = ["tenure", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module == "tenure":  # from tenure import units: the room is the name
                for alias in node.names:
                    yield node.lineno, f"tenure.{alias.name}"
            else:
                yield node.lineno, module


def may_import(importer: str, imported: str) -> bool:
    if imported in {importer, "__version__"}:
        return True
    here, there = ROW_OF[importer], ROW_OF.get(imported)
    return there is not None and (there < here or here == there == 0)


def test_rooms_import_only_what_stands_below_them() -> None:
    wrong = []
    for path in files_ending(".py", ".pyi", under="src/tenure/"):
        room = room_of(path)
        if room in {"__init__", "__main__"}:  # the facade and the entry know every room
            continue
        if room not in ROW_OF:
            wrong.append(f"{name_of(path)}: {room} is no room of the design")
            continue
        for line, module in imported_modules(path):
            parts = module.split(".")
            if parts[0] != "tenure" or len(parts) == 1:
                continue
            if not may_import(room, parts[1]):
                wrong.append(f"{name_of(path)}:{line}: {room} may not import tenure.{parts[1]}")
    refuse(wrong)


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("traces", "units", True),
        ("units", "errors", True),
        ("units", "traces", False),
        ("replays", "traces", True),
        ("replays", "snapshots", False),
        ("virtual", "plans", False),
        ("reports", "diagnoses", True),
        ("live", "reports", False),
        ("cli", "live", True),
        ("reports", "cli", False),
        ("cli", "explain", False),
    ],
)
def test_the_order_of_rooms_is_the_designs(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed


# --- the native boundary -------------------------------------------------------------------------


def included_headers(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match[1]


def test_only_the_bindings_know_python() -> None:
    refuse(
        [
            f"{name_of(path)}:{line}: includes {header}"
            for path in files_ending(".hpp", ".cpp", ".h", under="engine/")
            for line, header in included_headers(path)
            if re.match(r"(nanobind/|Python\.h)", header) or "engine/python/" in header
            if not name_of(path).startswith("engine/python/")
        ]
    )


def test_the_engine_includes_no_cuda_and_no_torch_header() -> None:
    refuse(
        [
            f"{name_of(path)}:{line}: includes {header}"
            for path in files_ending(".hpp", ".cpp", ".h", under="engine/")
            for line, header in included_headers(path)
            if CUDA_HEADER.match(header) or TORCH_HEADER.match(header)
        ]
    )


# --- names and sizes -----------------------------------------------------------------------------


def test_no_file_is_named_for_everything() -> None:
    refuse([f"{name_of(p)}: name it for what it does" for p in FILES if p.stem in FORBIDDEN_NAMES])


def test_no_file_is_too_long() -> None:
    wrong = []
    for path in files_ending(".py", ".hpp", ".cpp", ".js"):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > LONGEST_FILE and name_of(path) not in EXCEPTIONS:
            wrong.append(f"{name_of(path)}: {count} lines, {LONGEST_FILE} allowed")
    refuse(wrong)


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield node.name, node.lineno, last - node.lineno + 1


def test_no_function_is_too_long() -> None:
    wrong = []
    for path in files_ending(".py", ".hpp", ".cpp", ".js"):
        text = path.read_text(encoding="utf-8")
        found = python_functions(text) if path.suffix == ".py" else functions_of(text)
        for name, line, count in found:
            if count > LONGEST_FUNCTION and f"{name_of(path)}::{name}" not in EXCEPTIONS:
                wrong.append(
                    f"{name_of(path)}:{line}: {name} has {count} lines, {LONGEST_FUNCTION} allowed"
                )
    refuse(wrong)


def test_every_exception_is_still_needed_and_says_why() -> None:
    for place, reason in EXCEPTIONS.items():
        assert reason, place
        assert (ROOT / place.partition("::")[0]).exists(), f"{place} is gone"


def test_the_measure_of_native_functions_finds_them() -> None:
    text = """
namespace a {  // { not code
class Pool {
    explicit Pool(int n) : n_{n}, text_("}{") {
        if (n) { f(); }
    }
    int size() const noexcept { return n_; }
    int n_{3};
};
template <typename T>
auto Pool::grow(T n) -> int {
    auto add = [&](int x) {
        return x;
    };
    return add(n);
}
}
"""
    assert list(functions_of(text)) == [("Pool", 4, 3), ("size", 7, 1), ("grow", 10, 7)]
    script = "function draw(a) {\n  if (a) {\n  }\n}\nconst f = (x) => {\n  x();\n};\n"
    assert list(functions_of(script)) == [("draw", 1, 4), ("f", 5, 3)]
    assert blank_comments_and_strings('a = "}"; // {\n/* { */ b') == "a =    ;     \n        b"


# --- what a stranger sees ------------------------------------------------------------------------


def test_no_file_names_a_folder_of_the_machine_it_was_written_on() -> None:
    wrong = []
    for path in FILES:
        if name_of(path) in EXCEPTIONS:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a recorded trace
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line):
                wrong.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    refuse(wrong)


def test_every_make_target_says_what_it_does() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    targets = [line for line in lines if re.match(r"[a-z][\w-]*:(?!=)", line)]
    assert len(targets) > 10
    refuse([f"Makefile: {line}: has no ## help" for line in targets if " ## " not in line])
