"""Small C++ files that need the classes of the torch that is installed.

Each is compiled on first use, once for each torch version, and kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tenure.errors import UsageError


def torch_folder() -> Path | None:
    """Where torch is installed, without importing it; None if it is not."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0])


def compiler() -> str | None:
    """The C++ compiler that would be used: $CXX, c++, g++ or clang++."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def built(
    source: Path, torch: Path, *, purpose: str, flags: Sequence[str], libraries: Sequence[str]
) -> Path:
    """The shared library made of a source file, from the cache or compiled now.

    Args:
        source: A C++ file.
        torch: The folder of the torch whose headers and libraries it needs.
        purpose: What needs it, for messages: "a virtual GPU".
        flags: For the compiler, beside those for torch itself.
        libraries: Of torch, by their names for the linker.

    Raises:
        UsageError: No compiler, it fails, or the cache folder cannot be written.
    """
    version = metadata.version("torch")
    command = [
        *("-std=c++20", "-shared", "-fPIC", "-w", *flags),
        *(f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"),
        *(f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"),
        *(f"-l{library}" for library in libraries),
    ]
    # The folders are part of the key: the libraries are found through a path inside the file.
    text = "\n".join((version, *command)).encode() + source.read_bytes()
    key = hashlib.sha256(text).hexdigest()[:16]
    target = _cache_folder() / f"{source.stem}-{version}-{key}.so"
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _compile(source, target, purpose, command)
        except OSError as error:
            raise UsageError(
                f"{target}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder "
                "that can"
            ) from None
    return target


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tenure"


def _compile(source: Path, target: Path, purpose: str, command: Sequence[str]) -> None:
    program = compiler()
    if program is None:
        raise UsageError(
            f"{purpose} compiles a small file on first use and found no C++ compiler; install "
            "g++ or clang++, or name one in CXX"
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        library = Path(folder) / target.name
        done = subprocess.run(  # noqa: S603  the compiler that the user's environment names
            [program, str(source), "-o", str(library), *command],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = (line for line in done.stderr.splitlines() if "error" in line)
            raise UsageError(f"{program} cannot compile {source.name}: {next(lines, 'no text')}")
        library.replace(target)  # whole or not at all, should two runs build at once
