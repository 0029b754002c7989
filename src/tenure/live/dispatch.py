"""The dispatch mode that watched runs and guards build on."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def watching_mode() -> Any:
    """A class of dispatch modes that only watch, whatever PyTorch compiles; torch is imported."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class WatchingMode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True would import torch._dynamo under the script's frames, which then stay alive.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

    return WatchingMode
