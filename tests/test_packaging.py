"""The package as users get it: what the wheel holds, and what importing it costs.

`make check` has made the sdist and the wheel, has installed the wheel, and names their folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tenure
from test_layout import ROOT, files_ending, name_of, tracked_files

LARGEST_WHEEL = 1_500_000  # bytes, the sample trace included
RELEASE = os.environ.get("TENURE_RELEASE")  # else the tests make both


def run(*command: str, cwd: Path | None = None) -> str:
    """What the command printed; fails with its errors."""
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(RELEASE) if RELEASE else tmp_path_factory.mktemp("sdist")
    script = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    if not RELEASE:
        run(sys.executable, "-c", script, cwd=ROOT)
    [path] = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist alone."""
    folder = Path(RELEASE) if RELEASE else tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder))
    if not RELEASE:
        run(sys.executable, "-m", "pip", "wheel", *options, str(sdist), cwd=folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_is_tagged_for_every_python_it_runs_on(wheel: Path) -> None:
    tag = "cp311-cp311" if sys.version_info < (3, 12) else "cp312-abi3"
    assert re.fullmatch(rf"tenure-{tenure.__version__}-{tag}-\w+\.whl", wheel.name)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"tenure-{tenure.__version__}.dist-info"
    modules = {name for name in names if re.fullmatch(r"tenure/_engine\.\S+\.so", name)}
    metadata = {name for name in names if name.startswith(f"{info}/")}
    tracked = [name_of(path) for path in tracked_files()]
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/tenure/")}
    assert len(modules) == 1
    assert names - modules - metadata == package
    assert f"{info}/licenses/LICENSE" in metadata
    assert "tenure/py.typed" in package


@pytest.mark.slow
def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST_WHEEL


@pytest.mark.slow
def test_the_sdist_holds_what_the_build_needs_and_no_leftovers(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = [*files_ending(".cpp", ".hpp", under="engine/"), *files_ending(".py", under="src/")]
    assert {name_of(path) for path in needed} <= names
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"} <= names
    leftovers = re.compile(r"(build|dist|\.venv|\.git)/|.*(__pycache__|\.so$|\.pyc$)")
    assert not [name for name in names if leftovers.match(name)]


def test_the_version_is_the_same_everywhere() -> None:
    assert importlib.metadata.version("tenure") == tenure.__version__
    assert run(sys.executable, "-m", "tenure", "--version").split()[-1] == tenure.__version__


@pytest.mark.parametrize("module", ["tenure", "tenure.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = {"numpy", "torch", "rich", "matplotlib", "tenure._engine"}
    script = f"import sys, {module}; print(*sys.modules)"
    assert heavy.isdisjoint(run(sys.executable, "-c", script).split())


def test_help_loads_nothing_heavy_either() -> None:
    script = (
        "import sys\n"
        "sys.argv = ['tenure', '--help']\n"
        "from tenure.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules)\n"
    )
    loaded = run(sys.executable, "-c", script).splitlines()[-1].split()
    assert {"numpy", "torch", "tenure._engine"}.isdisjoint(loaded)


def test_every_public_name_is_there() -> None:
    assert sorted(tenure.__all__) == sorted(tenure._DEFINED_IN)
    for name in tenure.__all__:
        assert getattr(tenure, name).__doc__, f"{name} has no docstring"
    assert not hasattr(tenure, "no_such_name")
