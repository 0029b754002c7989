"""Who made an allocation: the user's line, and the library's line that it called."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.traces import Frame, Stacks, Trace

NO_FRAMES = "(no Python frames)"
_PLUMBING = {"_call_impl", "_wrapped_call_impl", "decorate_context", "wrapper", "inner", "fn"}


@dataclass(frozen=True)
class Site:
    """A place in the code that asks for memory.

    Attributes:
        user: The innermost line outside installed libraries; None where there is none.
        inner: The innermost line of a library below it (torch only if nothing else); None where
            the user's line asked by itself.
    """

    user: Frame | None
    inner: Frame | None

    @property
    def label(self) -> str:
        """As in `train.py:49 -> modeling_gpt2.py:307 forward`."""
        parts = []
        if self.user:
            parts.append(f"{_base(self.user.file)}:{self.user.line}")
        if self.inner:
            parts.append(f"{_base(self.inner.file)}:{self.inner.line} {self.inner.name}")
        elif self.user:
            parts[-1] += f" {self.user.name}"
        return " -> ".join(parts) or NO_FRAMES


def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    return (
        "site-packages" in file
        or "dist-packages" in file
        or "/lib/python3" in file
        or file.startswith("<")
        or not file.endswith((".py", ".ipynb"))
    )


def is_torch(file: str) -> bool:
    """Whether a file belongs to torch itself."""
    return "/torch/" in file


def site_of(frames: tuple[Frame, ...]) -> Site:
    """The site of a stack, innermost frame first."""
    user = next((f for f in frames if not is_library(f.file)), None)
    below = frames[: frames.index(user)] if user else frames
    foreign = [f for f in below if not is_torch(f.file) and f.name not in _PLUMBING]
    torch = [f for f in below if is_torch(f.file) and f.name not in _PLUMBING]
    inner = foreign[0] if foreign else torch[0] if torch else None
    return Site(user, inner)


class Sites:
    """The sites of all stacks of a trace, each found once."""

    def __init__(self, trace: Trace) -> None:
        self._stacks: Stacks = trace.stacks
        self._of_allocation = trace.allocations.stack
        self._of_forward = trace.forward_stack

    @cached_property
    def _found(self) -> tuple[tuple[Site, ...], NDArray[np.int64]]:
        known: dict[Site, int] = {Site(None, None): 0}
        index = np.zeros(len(self._stacks) + 1, np.int64)  # last entry: no stack
        used = np.concatenate([self._of_allocation, self._of_forward])
        for stack in np.unique(used).tolist():
            if stack >= 0:
                site = site_of(self._stacks.frames(stack))
                index[stack] = known.setdefault(site, len(known))
        return tuple(known), index

    @property
    def table(self) -> tuple[Site, ...]:
        """Every distinct site; index 0 is the one without frames."""
        return self._found[0]

    @cached_property
    def of_allocation(self) -> NDArray[np.int64]:
        """For each allocation, its index in the table."""
        return self._found[1][self._of_allocation]

    @cached_property
    def of_forward(self) -> NDArray[np.int64]:
        """The same of the forward op that the recording names for it; 0 for none."""
        return self._found[1][self._of_forward]


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
