"""Changes that save memory, made to what a script does while the script stays as it is."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tenure.virtual.traits import Traits

_ADAMS = ("Adam", "AdamW")
_FUSED = (*_ADAMS, "SGD")  # have fused kernels for CUDA
_FEWEST_BLOCKS = 2
_FEWEST_LAYERS = 4  # of a Sequential without blocks, to be worth segments


@dataclass(frozen=True)
class Change:
    """Something that a user may change.

    Attributes:
        name: As in JSON.
        text: What to do, for people.
        price: What it costs.
        applies: Whether a script with these traits can gain by it.
    """

    name: str
    text: str
    price: str
    applies: Callable[[Traits], bool]


CHANGES = (
    Change(
        "checkpointing",
        "gradient checkpointing: model.gradient_checkpointing_enable(), or "
        "torch.utils.checkpoint around each block",
        "about a third more time",
        lambda traits: traits.steps > 0 and not traits.checkpoints,
    ),
    Change(
        "autocast",
        "forward and loss under torch.autocast('cuda', dtype=torch.bfloat16)",
        "16-bit products",
        lambda traits: traits.steps > 0 and not traits.autocasts and "float32" in traits.dtypes,
    ),
    Change(
        "optimizer-fused",
        "the optimizer with fused=True",
        "nothing",
        lambda traits: any(traits.optimizers.get(n, "fused") != "fused" for n in _FUSED),
    ),
    Change(
        "optimizer-foreach",
        "the optimizer with foreach=False",
        "slower steps",
        lambda traits: any(
            way == "foreach" for n, way in traits.optimizers.items() if n not in _FUSED
        ),
    ),
    Change(
        "optimizer-8bit",
        "an optimizer with 8-bit state (bitsandbytes.optim.AdamW8bit)",
        "rounded state",
        lambda traits: any(n in traits.optimizers for n in _ADAMS),
    ),
    Change(
        "optimizer-sgd",
        "SGD with momentum in place of Adam",
        "another optimizer: its own learning rate, often worse",
        lambda traits: any(n in traits.optimizers for n in _ADAMS),
    ),
)


@contextlib.contextmanager
def make(name: str) -> Iterator[None]:
    """Makes a change for what runs inside; none for an empty name.

    Whether it took effect shows in the traits of the run.
    """
    if not name:
        yield
        return
    from tenure.patches import Patches

    patches = Patches()
    handles = _MAKERS[name](patches)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        patches.undo()


def took_effect(name: str, before: Traits, after: Traits) -> bool:
    """Whether a run shows the change that was made to it."""
    if name == "checkpointing":
        return after.checkpoints > 0
    if name == "autocast":
        return after.autocasts > 0
    return before.optimizers != after.optimizers


# --- gradient checkpointing ----------------------------------------------------------------------


def _checkpointing(_patches: Any) -> list[Any]:
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    seen: set[int] = set()

    def first_call(module: Any, _args: Any) -> None:
        if id(module) in seen or not module.training or not torch.is_grad_enabled():
            return
        seen.update(id(m) for m in module.modules())
        _checkpoint(module)

    return [register_module_forward_pre_hook(first_call)]


def _checkpoint(module: Any) -> None:
    """As the model's library does it, else around each of its blocks."""
    if getattr(module, "supports_gradient_checkpointing", False):
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif hasattr(module, "set_grad_checkpointing"):
        module.set_grad_checkpointing()
    else:
        _checkpoint_blocks(module)


def _checkpoint_blocks(module: Any) -> None:
    import torch

    children = list(module.children())
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        blocks = _blocks(children)
        for block in blocks:
            _wrap(block)
        plain = not any(list(child.children()) for child in children)
        if plain and isinstance(module, torch.nn.Sequential) and len(children) >= _FEWEST_LAYERS:
            _wrap_segments(module, children)
        children = [child for child in children if child not in blocks]
    for child in children:
        _checkpoint_blocks(child)


def _blocks(modules: list[Any]) -> list[Any]:
    """Those of the kind that is there most often, if it has several parts and comes repeatedly."""
    kinds = Counter(type(m) for m in modules if len(list(m.modules())) > _FEWEST_BLOCKS)
    if not kinds or max(kinds.values()) < _FEWEST_BLOCKS:
        return []
    kind = kinds.most_common(1)[0][0]
    return [m for m in modules if type(m) is kind]


def _wrap(block: Any) -> None:
    module: Any = sys.modules["torch.utils.checkpoint"]
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        import torch

        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        return module.checkpoint(original, *args, use_reentrant=False, **kwargs)

    block.forward = forward


def _wrap_segments(module: Any, children: list[Any]) -> None:
    checkpoint: Any = sys.modules["torch.utils.checkpoint"]
    segments = max(2, math.isqrt(len(children)))

    def forward(value: Any) -> Any:
        return checkpoint.checkpoint_sequential(children, segments, value, use_reentrant=False)

    module.forward = forward


# --- dtype ---------------------------------------------------------------------------------------


def _autocast(_patches: Any) -> list[Any]:
    import torch
    from torch.nn.modules import module as modules

    local = threading.local()

    def enter(_module: Any, _args: Any) -> None:
        local.depth = getattr(local, "depth", 0) + 1
        if local.depth == 1:
            local.region = torch.autocast("cuda", dtype=torch.bfloat16)
            local.region.__enter__()

    def leave(_module: Any, _args: Any, _result: Any) -> None:
        local.depth -= 1
        if local.depth == 0:
            local.region.__exit__(None, None, None)

    return [
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave, always_call=True),
    ]


# --- optimizers ----------------------------------------------------------------------------------


def _defaults(**wanted: bool) -> Callable[[Any], list[Any]]:
    """Sets defaults of every optimizer that has them, before its parameters are added."""

    def change(patches: Any) -> list[Any]:
        import torch

        original = torch.optim.Optimizer.__init__

        def init(self: Any, params: Any, defaults: dict[str, Any]) -> None:
            if "fused" not in wanted or type(self).__name__ in _FUSED:
                defaults.update({name: v for name, v in wanted.items() if name in defaults})
            original(self, params, defaults)

        patches.set(torch.optim.Optimizer, "__init__", init)
        return []

    return change


def _replaced(make_class: Callable[[], Any]) -> Callable[[Any], list[Any]]:
    """Puts another class where Adam and AdamW were."""

    def change(patches: Any) -> list[Any]:
        import torch

        for name in _ADAMS:
            patches.set(torch.optim, name, make_class())
        return []

    return change


def _sgd() -> Any:
    import torch

    class SGDWithMomentum(torch.optim.SGD):  # type: ignore[misc]  # torch is not there for mypy
        """Takes Adam's arguments."""

        def __init__(self, params: Any, lr: Any = 1e-3, *_args: Any, **named: Any) -> None:
            fused = named.get("fused")
            super().__init__(params, lr=lr, momentum=0.9, fused=fused)

    return SGDWithMomentum


def _eight_bit() -> Any:
    import torch

    block = 256  # elements that share a scale, as in bitsandbytes 0.45 and later
    fewest = 4096  # a smaller parameter keeps 32 bits

    class Adam8bit(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not there for mypy
        """The state of bitsandbytes' Adam; its kernel takes no temporaries."""

        def __init__(self, params: Any, lr: Any = 1e-3, *_args: Any, **_named: Any) -> None:
            super().__init__(params, {"lr": lr})
            self._maps: list[Any] = []

        def step(self, closure: Any = None) -> Any:
            loss = closure() if closure is not None else None
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None and not self.state[p]:
                        self._begin(p)
            return loss

        def _begin(self, p: Any) -> None:
            state, cuda = self.state[p], p.device
            small = p.numel() < fewest
            if not small and not self._maps:
                self._maps = [torch.zeros(256, device=cuda) for _ in range(2)]
            for name in ("state1", "state2"):
                kind = torch.float32 if small else torch.uint8
                state[name] = torch.zeros(p.shape, dtype=kind, device=cuda)
                if not small:
                    state["absmax" + name[-1]] = torch.zeros(-(-p.numel() // block), device=cuda)

    return Adam8bit


_MAKERS: dict[str, Callable[[Any], list[Any]]] = {
    "checkpointing": _checkpointing,
    "autocast": _autocast,
    "optimizer-fused": _defaults(fused=True),
    "optimizer-foreach": _defaults(foreach=False),
    "optimizer-8bit": _replaced(_eight_bit),
    "optimizer-sgd": _replaced(_sgd),
}
