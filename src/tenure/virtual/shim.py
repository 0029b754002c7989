"""The compiled part: built once for each torch version, kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from tenure import compiled
from tenure.errors import UsageError

# Exported by libc10: a guard for each device type.
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA = 1  # c10::DeviceType::CUDA
_NO_COMPILER = (
    "no C++ compiler was found, so this virtual GPU serves inference only: a backward pass needs a "
    "small file compiled; install g++ or clang++, or name one in CXX"
)
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


def load_shim() -> Any:
    """Builds the shim if need be and loads it; must come before `import torch`.

    Without a compiler what comes back serves inference only, and says so where a backward pass
    begins.

    Raises:
        UsageError: torch is there already, is missing, or is of an untried version; the shim
            cannot be compiled or written.
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
    flags = ("-O1", *(("-DTENURE_CUDA_BUILD",) if has_cuda_libraries(folder) else ()))
    try:
        library = compiled.built(
            SOURCE,
            folder,
            purpose="a virtual GPU",
            flags=flags,
            libraries=("c10", "torch_cpu"),
        )
    except UsageError:
        if compiled.compiler() is not None:
            raise
        return InferenceOnly(folder)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class CurrentStream:
    """The number of each thread's stream, which PyTorch sees too where the shim is compiled.

    Args:
        library: The shim.
    """

    def __init__(self, library: Any) -> None:
        local = threading.local()
        self.number: Callable[[], int] = lambda: getattr(local, "stream", 0)
        self.set: Callable[[int], Any] = lambda number: setattr(local, "stream", number)
        if isinstance(library, ctypes.CDLL):
            self.number, self.set = library.tenure_current_stream, library.tenure_set_stream
            library.tenure_current_stream.restype = ctypes.c_long
            library.tenure_set_stream.argtypes = (ctypes.c_long,)


class InferenceOnly:
    """Stands in for the shim where it cannot be compiled.

    Where PyTorch finds a guard for CUDA that counts no devices, it installs one that does
    nothing; a table of functions that return 0 is such a guard. Backward passes need more.
    """

    def __init__(self, torch: Path) -> None:
        self._torch = torch
        self._kept: list[Any] = []  # what PyTorch holds pointers to

    def tenure_install_guard(self) -> None:
        """Makes tensors on `cuda` possible; torch has to be there."""
        import torch

        if not has_cuda_libraries(self._torch):
            zero = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)
            address = ctypes.cast(zero, ctypes.c_void_p).value
            methods = (ctypes.c_void_p * 64)(*[address] * 64)
            guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
            self._kept += [zero, methods, guard]
            library = ctypes.CDLL(str(self._torch / "lib" / "libc10.so"))
            table = (ctypes.c_void_p * (_CUDA + 1)).in_dll(library, _GUARDS)
            table[_CUDA] = ctypes.addressof(guard)
        torch._C._ensureCUDADeviceGuardSet()  # noqa: SLF001  there is no public name
        torch.autograd.backward = _refused
        torch.autograd.grad = _refused
        print(f"tenure: {_NO_COMPILER}", file=sys.stderr)  # noqa: T201  before any report


def _refused(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError(_NO_COMPILER)
