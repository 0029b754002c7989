"""PyTorch's whole interface for allocators, by a small file compiled against the user's torch.

The interface for plug-ins, which is there without it, leaves calls out and keeps a list of its own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tenure import _engine, compiled
from tenure.errors import UsageError

SOURCE = Path(__file__).with_name("glue.cpp")
_CLASS = "include/torch/csrc/cuda/CUDAPluggableAllocator.h"
_CUDA = ("cuda_runtime.h", "crt/host_config.h")  # pip's package of the runtime lacks the second


def load(torch: Any, source: Path = SOURCE) -> ctypes.CDLL:
    """The compiled glue.

    Args:
        torch: The module.
        source: Another file for the same purpose.

    Raises:
        UsageError: It cannot be made here.
    """
    folder = Path(torch.__file__).parent
    headers = require_headers(folder)
    abi = int(torch.compiled_with_cxx11_abi())  # the layout of std::string
    library = compiled.built(
        source,
        folder,
        purpose="tenure's glue to PyTorch",
        flags=("-O2", f"-I{headers}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        libraries=("c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_python"),
    )
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise UsageError(f"tenure's glue to PyTorch cannot be loaded ({error})") from None


def require_headers(torch: Path) -> Path:
    """The folder of CUDA's headers.

    Args:
        torch: Its folder.

    Raises:
        UsageError: There is none, or PyTorch's own headers are not there.
    """
    if not (torch / _CLASS).exists():
        raise UsageError(f"PyTorch's headers are not there ({torch / _CLASS})")
    headers = next(cuda_headers(torch), None)
    if headers is None:
        raise UsageError(
            f"found no CUDA headers ({' and '.join(_CUDA)}); set CUDA_HOME to where they are"
        )
    return headers


def become_allocator(glue: ctypes.CDLL) -> None:
    """Makes the engine PyTorch's allocator through the glue.

    Raises:
        UsageError: PyTorch has another allocator already.
    """
    install = glue.tenure_glue_install
    install.argtypes, install.restype = [ctypes.c_char_p], ctypes.c_char_p
    error = install(os.fsencode(_engine.__file__))
    if error is not None:
        first = error.decode(errors="replace").partition("\n")[0]
        raise UsageError(f"PyTorch refuses another allocator ({first})")


def cuda_headers(torch: Path) -> Iterator[Path]:
    """Folders with the CUDA runtime's headers, likeliest first."""
    packages = torch.parent
    candidates = [
        *(
            Path(home) / "include"
            for home in map(os.environ.get, ("CUDA_HOME", "CUDA_PATH"))
            if home
        ),
        *sorted(packages.glob("nvidia/cu[0-9]*/include"), reverse=True),
        packages / "nvidia/cuda_runtime/include",
        Path("/usr/local/cuda/include"),
        packages / "triton/backends/nvidia/include",
    ]
    return (folder for folder in candidates if all((folder / header).exists() for header in _CUDA))
