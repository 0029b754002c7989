"""The compiled part: built once for each torch version, kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tenure.errors import UsageError

SOURCE = Path(__file__).with_name("shim.cpp")
# The shim and the patches depend on PyTorch's inner classes; these minor versions were tried.
TRIED = ((2, 13), (2, 14))


def torch_folder() -> Path:
    """Where torch is installed, without importing it.

    Raises:
        UsageError: It is not.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise UsageError("a virtual GPU needs PyTorch: pip install torch (a CPU build will do)")
    return Path(found.submodule_search_locations[0])


def installed_version() -> tuple[int, int]:
    """Major and minor version of the torch that is installed."""
    major, minor = metadata.version("torch").split(".")[:2]
    return int(major), int(minor)


def has_cuda_libraries(torch: Path) -> bool:
    """Whether the torch in that folder is a CUDA build; it needs no card for that."""
    return (torch / "lib" / "libtorch_cuda.so").exists()


def load_shim() -> ctypes.CDLL:
    """Builds the shim if need be and loads it; must come before `import torch`.

    Raises:
        UsageError: torch is there already, is missing, is of an untried version, or no compiler
            is found.
    """
    if "torch" in sys.modules:
        raise UsageError(
            "a virtual GPU has to be there before torch is: start it before `import torch`, or "
            "run the script with tenure run --gpu"
        )
    folder = torch_folder()
    if installed_version() not in TRIED:
        have = ".".join(map(str, installed_version()))
        known = ", ".join(".".join(map(str, version)) for version in TRIED)
        raise UsageError(
            f"a virtual GPU was tried with torch {known}, and torch {have} is installed; install "
            f"that version, or run with a real GPU"
        )
    return ctypes.CDLL(str(_built(folder)), mode=ctypes.RTLD_GLOBAL)


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tenure"


def _built(torch: Path) -> Path:
    source = SOURCE.read_bytes()
    version = metadata.version("torch")
    # The folder is part of the key: the libraries are found through a path inside the file.
    key = hashlib.sha256(source + version.encode() + str(torch).encode()).hexdigest()[:16]
    target = _cache_folder() / f"virtual-gpu-{version}-{key}.so"
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _compile(torch, target)
        except OSError as error:
            raise UsageError(
                f"{target}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder "
                "that can"
            ) from None
    return target


def compiler() -> str | None:
    """The C++ compiler that would be used: $CXX, c++, g++ or clang++."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _compile(torch: Path, target: Path) -> None:
    command = compiler()
    if command is None:
        raise UsageError(
            "a virtual GPU compiles a small file on first use and found no C++ compiler; install "
            "g++ or clang++, or name one in CXX"
        )
    libraries = torch / "lib"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / "shim.so"
        done = subprocess.run(  # noqa: S603  the compiler that the user's environment names
            [
                *(command, "-std=c++20", "-O1", "-shared", "-fPIC", "-w"),
                *("-I", str(torch / "include")),
                *("-I", str(torch / "include/torch/csrc/api/include")),
                *(("-DTENURE_CUDA_BUILD",) if has_cuda_libraries(torch) else ()),
                *(str(SOURCE), "-o", str(built)),
                *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no text")
            raise UsageError(f"{command} cannot compile the virtual GPU's shim: {first}")
        built.replace(target)  # whole or not at all, should two runs build at once
