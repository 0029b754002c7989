"""The compiled part: built once for each torch version, kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import sys
from importlib import metadata
from pathlib import Path

from tenure import compiled
from tenure.errors import UsageError

SOURCE = Path(__file__).with_name("shim.cpp")
# The shim and the patches depend on PyTorch's inner classes; these minor versions were tried.
TRIED = ((2, 13), (2, 14))


def torch_folder() -> Path:
    """Where torch is installed, without importing it.

    Raises:
        UsageError: It is not.
    """
    folder = compiled.torch_folder()
    if folder is None:
        raise UsageError("a virtual GPU needs PyTorch: pip install torch (a CPU build will do)")
    return folder


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
    library = compiled.built(
        SOURCE,
        folder,
        purpose="a virtual GPU",
        flags=("-O1", *(("-DTENURE_CUDA_BUILD",) if has_cuda_libraries(folder) else ())),
        libraries=("c10", "torch_cpu"),
    )
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
