"""What this process and machine would make of tenure: settings, versions, known clashes."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass, field

import tenure
from tenure import _engine, compiled
from tenure.errors import UsageError
from tenure.live import glue
from tenure.live.process import CONF_VARIABLES
from tenure.settings import known_clashes, parse_alloc_conf

_RMM = "can replace PyTorch's, CuPy's and Numba's allocator: install one of the two"
# Package -> what it does to the allocator of its process.
_OTHERS = {
    "comfy-aimdo": "installs an allocator of its own in PyTorch: two cannot both be installed",
    "rmm": _RMM,
    "rmm-cu12": _RMM,
    "rmm-cu13": _RMM,
    "torch-memory-saver": "replaces cudaMalloc under PyTorch by preloading a library: pause and "
    "resume do not reach memory that tenure manages",
}
_CANNOT_MAP = (
    "cannot map memory (virtual memory management): tenure serves it by PyTorch's default rules, "
    "whatever the rules asked for"
)
_LIBRARIES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "numba-cuda", "numba")
_PRELOADED = ("torch_memory_saver", "vmm_allocator", "aimdo", "librmm")


@dataclass(frozen=True)
class Check:
    """What was found.

    Attributes:
        versions: Package -> version, tenure and Python first.
        driver: "13.0", and how many GPUs; or why there is none.
        gpus: How many GPUs the driver shows.
        variable: Which environment variable holds the settings; "" for none.
        conf: The settings in it.
        install: What `tenure.install()` can do with the PyTorch that is installed.
        clashes: What defeats something else, one sentence each.
    """

    versions: dict[str, str]
    driver: str
    gpus: int
    variable: str
    conf: str
    install: str
    clashes: list[str] = field(default_factory=list)


def check() -> Check:
    """Looks at packages, driver and environment; imports none of the libraries it names."""
    variable = next((name for name in CONF_VARIABLES if os.environ.get(name)), "")
    conf = os.environ.get(variable, "") if variable else ""
    versions = {
        "tenure": tenure.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        **_versions(_LIBRARIES),
    }
    facts = _engine.Live.driver()
    driver = ".".join(map(str, facts["version"])) if facts["works"] else _no_driver(facts["error"])
    return Check(
        versions=versions,
        driver=driver,
        gpus=int(facts["devices"]),
        variable=variable,
        conf=conf,
        install=_install(),
        clashes=[
            *_of_settings(conf, versions.get("torch", "")),
            *_of_others(),
            *(f"GPU {gpu} {_CANNOT_MAP}" for gpu in facts["without_virtual_memory"]),
        ],
    )


def _versions(names: tuple[str, ...] | dict[str, str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _install() -> str:
    folder = compiled.torch_folder()
    if folder is None:
        return "cannot: PyTorch is not installed"
    if not (folder / "lib/libc10_cuda.so").exists():
        return "cannot: this PyTorch is built without CUDA"
    try:
        glue.require_headers(folder)
    except UsageError as error:
        return f"as a plug-in, which leaves calls out: {error}"
    if compiled.compiler() is None:
        return "as a plug-in, which leaves calls out: no C++ compiler here"
    return "serves PyTorch's whole interface for allocators"


def _no_driver(error: str) -> str:
    return f"none ({error})" if error else "none that starts"


def _of_settings(conf: str, torch: str) -> list[str]:
    parts = torch.split(".")[:2]
    version = (int(parts[0]), int(parts[1])) if len(parts) == 2 else None
    try:
        return known_clashes(parse_alloc_conf(conf, torch_version=version))
    except UsageError as error:
        return [str(error)]


def _of_others() -> list[str]:
    found = [f"{name} {what}" for name, what in _OTHERS.items() if _versions((name,))]
    preloaded = os.environ.get("LD_PRELOAD", "")
    found += [
        f"LD_PRELOAD names {name}, which stands between this process and the driver"
        for name in _PRELOADED
        if name in preloaded
    ]
    return found
