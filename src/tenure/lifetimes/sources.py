"""Whose a source file is: the user's, a library's, or tenure's own."""

from __future__ import annotations

import sysconfig

_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple({_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = __file__.replace("\\", "/").rsplit("/", 2)[0] + "/"


def is_library(path: str) -> bool:
    """Whether a source file belongs to Python or to an installed package."""
    return path.startswith((*_LIBRARIES, "<frozen", "<string>")) or "site-packages" in path


def is_own(path: str) -> bool:
    """Whether a source file is tenure's."""
    return path.replace("\\", "/").startswith(_OWN)
