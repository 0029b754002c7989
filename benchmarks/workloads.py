"""What is measured: a long recorded trace, as a plain file."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TENURE_SHARED", ROOT.parent / "shared")) / "traces"
LONG = SHARED / "llama_generate.pickle.xz"  # 525,000 events


def recorded() -> Path:
    """The longest trace there is: the shared one, else the largest in the repository."""
    if LONG.exists():
        return LONG
    kept = [*(ROOT / "examples").glob("*.pickle.xz"), *(ROOT / "tests/golden").glob("*.pickle.xz")]
    return max(kept, key=lambda path: path.stat().st_size)


def name_of(path: Path) -> str:
    """`llama_generate` of `.../llama_generate.pickle.xz`."""
    return path.name.removesuffix(".pickle.xz")


def uncompressed(path: Path, folder: Path) -> Path:
    """A plain copy of a compressed snapshot."""
    plain = folder / path.name.removesuffix(".xz")
    plain.write_bytes(lzma.decompress(path.read_bytes()))
    return plain
