"""The engine's type stub, written by hand, has the names and arguments of the built module."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_layout import ROOT

STUB = ROOT / "src" / "tenure" / "_engine.pyi"
UNNAMED = re.compile(r"arg\d*")  # what stubgen calls an argument that the binding did not name

# "Allocator.free" -> its arguments, "=" after each that has a default; () for an attribute
Members = dict[str, tuple[str, ...]]


def arguments_of(node: ast.FunctionDef) -> tuple[str, ...]:
    given = [*node.args.posonlyargs, *node.args.args]
    required = len(given) - len(node.args.defaults)
    names = [arg.arg + "=" * (index >= required) for index, arg in enumerate(given)]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return (*names, *(arg.arg + "=" * (default is not None) for arg, default in pairs))


def members_of(body: list[ast.stmt], prefix: str = "") -> Members:
    found: Members = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[prefix + node.name] = ()
            found |= members_of(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            attribute = bool(node.decorator_list) and "overload" not in ast.dump(node)
            found[prefix + node.name] = () if attribute else arguments_of(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[prefix + node.target.id] = ()
    return {name: args for name, args in found.items() if not re.search(r"(^|\.)_[^_]", name)}


def agree(written: tuple[str, ...], built: tuple[str, ...]) -> bool:
    """Same number, same defaults, and the same name where the binding names it."""
    return len(written) == len(built) and all(
        mine == real or (UNNAMED.fullmatch(real) and not mine.endswith("="))
        for mine, real in zip(written, built, strict=True)
    )


def test_the_stub_is_what_was_built(tmp_path: Path) -> None:
    drafted = tmp_path / "_engine.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "tenure._engine"]
    subprocess.run([*command, "-o", str(drafted)], check=True, cwd=tmp_path)
    written = members_of(ast.parse(STUB.read_text(encoding="utf-8")).body)
    built = members_of(ast.parse(drafted.read_text(encoding="utf-8")).body)
    wrong = [f"{name}: not in the stub" for name in built.keys() - written.keys()]
    wrong += [f"{name}: only in the stub" for name in written.keys() - built.keys()]
    wrong += [
        f"{name}{written[name]}: built with {built[name]}"
        for name in written.keys() & built.keys()
        if not agree(written[name], built[name])
    ]
    if wrong:
        pytest.fail("\n".join(sorted(wrong)), pytrace=False)
