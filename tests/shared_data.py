"""Where the recorded runs are: a few in the repository, the rest beside it if present."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
EXAMPLES = ROOT / "examples"
SHARED = Path(os.environ.get("TENURE_SHARED", ROOT.parent / "shared"))
ABSENT = "the folder of shared recordings is not here: set TENURE_SHARED"


def traces() -> list[Path]:
    """The shared recordings; empty where there are none."""
    return sorted((SHARED / "traces").glob("*.pickle.xz"))


def name_of(path: Path) -> str:
    """`gpt2_varlen.split128` of `.../gpt2_varlen.split128.pickle.xz`."""
    return path.name.removesuffix(".pickle.xz")
