"""The tutorials and READMEs: every command runs and prints what is shown; both languages agree."""

from __future__ import annotations

import ast
import lzma
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import tenure
from shared_data import EXAMPLES, ROOT
from tenure.cli import commands

if TYPE_CHECKING:
    from pathlib import Path

PAGES = ("README.md", "docs/tutorial.md", "docs/howto-reserved.md")
ELLIPSES = {"...", "…"}
ELSEWHERE = ("git", "make", "pip")  # what sets a machine up is not run here
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+\.py)\n")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
FIGURE = re.compile(r"(\d+(?:,\d{3})*(?:\.\d+)?) (?:MiB|GiB|ms)\b")
SMALL_SCRIPT = "import torch\ntorch.nn.Linear(8, 8)(torch.ones(1, 8)).sum().backward()\n"


@dataclass(frozen=True)
class Shown:
    """A command of a page and the lines shown below it."""

    page: str
    command: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.command}"

    @property
    def needs_torch(self) -> bool:
        return self.command.startswith(("tenure run", "python ", "pytest "))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def chinese(page: str) -> str:
    return page.replace(".md", ".zh-CN.md")


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(text_of(page)) if kind == language]


def shown(page: str) -> list[Shown]:
    """The commands of a page, without comments, each with what is shown below it."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *rest = part.rstrip("\n").split("\n")
            command = shlex.join(shlex.split(first, comments=True))
            found.append(Shown(page, command, tuple(rest)))
    return found


def scripts(page: str) -> dict[str, str]:
    """The Python blocks that begin with the name of a file."""
    return {
        name[1]: block
        for block in blocks(page, "python")
        if (name := NAMED.match(block)) is not None
    }


def folder_for(page: str, folder: Path) -> Path:
    """A folder with what a reader of the page has: the examples, the scripts, own recordings."""
    (folder / "examples").symlink_to(EXAMPLES)
    (folder / "train.py").write_text(SMALL_SCRIPT, encoding="utf-8")
    recording = lzma.decompress((EXAMPLES / "leak_graph.pickle.xz").read_bytes())
    for name in ("snapshot", "before", "after"):
        (folder / f"{name}.pickle").write_bytes(recording)
    for name, text in scripts(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def same(line: str, real: str) -> bool:
    """Whether a line is what is shown; an ellipsis at the end of what is shown stands for more."""
    return real.startswith(line.removesuffix("...")) if line.endswith(" ...") else line == real


def difference(lines: tuple[str, ...], output: str) -> str:
    """The first line shown that the output does not have at its place; empty if there is none."""
    real = [line.rstrip() for line in output.rstrip("\n").split("\n")]
    at, anywhere = 0, False
    for piece in pieces(lines):
        if piece is None:
            anywhere = True
            continue
        places = range(at, len(real) if anywhere else at + 1)
        agreement = {k: agreeing(piece, real[k:]) for k in places}
        best = max(agreement, key=agreement.__getitem__, default=at)
        if agreement.get(best, 0) < len(piece):
            return piece[agreement.get(best, 0)]
        at, anywhere = best + len(piece), False
    return "" if anywhere or at == len(real) or not lines else f"(goes on) {real[at]}"


def agreeing(piece: list[str], real: list[str]) -> int:
    """How many lines agree before the first that does not."""
    pairs = zip(piece, real, strict=False)
    return next((k for k, pair in enumerate(pairs) if not same(*pair)), min(len(piece), len(real)))


def pieces(lines: tuple[str, ...]) -> list[list[str] | None]:
    """Runs of lines without a gap; None stands for an ellipsis."""
    found: list[list[str] | None] = []
    for line in lines:
        if line in ELLIPSES or line.strip() == "…":
            found.append(None)
        elif found and found[-1] is not None:
            found[-1].append(line.rstrip())
        else:
            found.append([line.rstrip()])
    return found


def missing(command: str) -> str:
    """What a command with torch lacks here; empty if nothing."""
    if find_spec("torch") is None:
        return "torch is not installed: pip install torch==2.13.0"
    if "--gpu" not in command and "pytest" not in command:
        return ""
    from tenure.compiled import compiler
    from tenure.virtual import shim

    if shim.installed_version() not in shim.TRIED:
        return "another torch is installed than the virtual GPU was tried with"
    return "" if compiler() else "no C++ compiler"


def plugin() -> list[str]:
    """What makes pytest load tenure's plugin where tenure is not installed."""
    installed = any(point.name == "tenure" for point in entry_points(group="pytest11"))
    return [] if installed else ["-p", "tenure.testing.plugin"]


QUICK = [
    case
    for page in PAGES
    for case in shown(page)
    if case.command.split()[0] not in ELSEWHERE and not case.needs_torch
]
WITH_TORCH = [case for page in PAGES for case in shown(page) if case.needs_torch]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_command_prints_what_is_shown(
    case: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder_for(case.page, tmp_path))
    if "matplotlib" in case.command or re.search(r"\.(png|svg|pdf)\b", case.command):
        pytest.importorskip("matplotlib")
    program, *arguments = shlex.split(case.command)
    assert program == "tenure"
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code in {0, 1}, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert difference(case.lines, result.output) == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_TORCH, ids=str)
def test_a_script_prints_what_is_shown(case: Shown, tmp_path: Path) -> None:
    if absent := missing(case.command):
        pytest.skip(absent)
    program, *arguments = shlex.split(case.command)
    module = {"tenure": ["-m", "tenure"], "pytest": ["-m", "pytest", *plugin()]}.get(program, [])
    result = subprocess.run(
        [sys.executable, *module, *arguments],
        cwd=folder_for(case.page, tmp_path),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # the texts are about machines without one
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode in {0, 1}, result.stdout
    assert difference(case.lines, result.stdout) == ""


def test_a_difference_is_found() -> None:
    output = "one\ntwo 2\nthree\nfour\n"
    assert difference(("one", "...", "three", "four"), output) == ""
    assert difference(("one", "two ...", "..."), output) == ""
    assert difference(("one", "...", "three 3", "..."), output) == "three 3"
    assert difference(("one", "...", "two 2", "four"), output) == "four"
    assert difference(("one", "two 2"), output) == "(goes on) three"
    assert difference(("two 2", "..."), output) == "two 2"


@pytest.mark.parametrize("page", [*PAGES, *map(chinese, PAGES)])
def test_python_of_a_page_is_python(page: str) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_python_of_a_readme_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder_for(page, tmp_path))
    runnable = [block for block in blocks(page, "python") if "import torch" not in block]
    assert runnable
    for block in runnable:
        exec(compile(block, page, "exec"), {})
    assert "growth" in capsys.readouterr().out


def test_targets_of_make_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE)
    for page in PAGES:
        for case in shown(page):
            if case.command.startswith("make "):
                assert case.command.split()[1] in targets, case


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_show_the_same_commands_output_and_scripts(page: str) -> None:
    ours, theirs = shown(page), shown(chinese(page))
    assert [case.command for case in ours] == [case.command for case in theirs]
    for case, other in zip(ours, theirs, strict=True):
        assert case.lines == other.lines, case.command
    code = [without_comments(block) for block in blocks(page, "python")]
    assert code == [without_comments(block) for block in blocks(chinese(page), "python")]


def without_comments(code: str) -> str:
    return ast.unparse(ast.parse(code))


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_give_the_same_numbers(page: str) -> None:
    ours, theirs = sections(page), sections(chinese(page))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert Counter(NUMBER.findall(one)) == Counter(NUMBER.findall(other)), one.split("\n")[0]


def sections(page: str) -> list[str]:
    """The prose of each section, without blocks of code and targets of links."""
    prose = re.sub(r"\]\([^)]*\)", "]", FENCE.sub("", text_of(page)))
    return re.split(r"^## ", prose, flags=re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/howto-reserved.md"])
def test_figures_of_the_text_are_shown_or_worked_out(page: str) -> None:
    code = " ".join(block for _, block in FENCE.findall(text_of(page)))
    known = set(NUMBER.findall(code)) | RULES | MEASURED | worked_out()
    figures = {figure for section in sections(page) for figure in FIGURE.findall(section)}
    assert figures <= known, figures - known


# PyTorch's own thresholds.
RULES = {"1", "2", "10", "20"}
# On the H200, torch 2.11: sixteen buffers of 32 MiB active; the floor of context and libraries.
# On a virtual RTX 4090: the last command without --no-advise, which takes minutes.
MEASURED = {"512", "32", "618", "15.41", "30.02", "24.36"}


def worked_out() -> set[str]:
    """Figures of the texts that follow from the recordings but are in no output shown."""
    trace = tenure.load(str(EXAMPLES / "prefetch_streams.pickle.xz"))
    life, reused = 316, 729  # the block of the picture, and the one that got its address
    born, freed, done = (
        int(column[life])
        for column in (trace.allocations.born, trace.allocations.freed, trace.allocations.done)
    )
    assert (born, freed, done) == (961, 1132, 1839)
    assert int(trace.allocations.born[reused]) == 2198
    assert trace.allocations.address[reused] == trace.allocations.address[life]
    time = trace.events.time_us
    after = [float(time[event] - time[born]) / 1000 for event in (freed, done, 2198)]
    found = {f"{ms:.1f}" for ms in after} | {f"{after[0]:.0f}", f"{after[1] - after[0]:.0f}", "0.0"}
    found.add(f"{int(trace.allocations.requested[life]) / 2**20:.2f}")
    for name in ("gpt2_varlen", "llama_lora.limit5.5", "prefetch_streams"):
        said = CliRunner().invoke(commands, ["explain", str(EXAMPLES / f"{name}.pickle.xz")])
        found |= set(NUMBER.findall(said.output))
    # MiB of step.py: differences of what is shown there.
    forward, gradients, workspaces, state = 401 - 265, 329 - 265, 201 - 72 - 64, 329 - 201
    found |= {str(size) for size in (forward, gradients, workspaces, state)}
    free = 0.90 + 0.90  # GiB: cached and never reserved
    return found | {f"{free:.2f}", "856.00", "35.77"}


def test_pictures_are_there_and_small() -> None:
    named = {
        name
        for page in (*PAGES, *map(chinese, PAGES))
        for name in re.findall(r"\]\((?:docs/)?pictures/([^)]+)\)", text_of(page))
    }
    assert named == {path.name for path in (ROOT / "docs" / "pictures").glob("*.png")}
    for name in named:
        assert (ROOT / "docs" / "pictures" / name).stat().st_size < 150_000


@pytest.mark.parametrize("page", [*PAGES, *map(chinese, PAGES), "docs/index.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page)):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_index_names_every_page() -> None:
    index = text_of("docs/index.md")
    tree = re.search(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    assert tree
    listed = set(tree[1].split())
    for path in (ROOT / "docs").glob("*.md"):
        if path.stem != "index":
            assert path.stem in listed, path.name
            assert f"]({path.name})" in index, path.name
