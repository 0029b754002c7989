"""What an object refers to, by the names a programmer would use. Runs no code of the user's."""

from __future__ import annotations

import gc
import sys
from collections import deque
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any
from weakref import CallableProxyType, ProxyType

from tenure.lifetimes.graphs import graph_edges, node_name, own_dict
from tenure.lifetimes.sources import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator

Edge = tuple[str, str, object]  # kind, text to append to the chain, object

# Hold no tensor, or are reached by better names.
_SKIPPED: tuple[type, ...] = (
    *(int, float, complex, bool, str, bytes, bytearray, type(None), type(...), range, slice),
    *(CodeType, BuiltinFunctionType, property, staticmethod, classmethod),
    *(ProxyType, CallableProxyType),  # weak: what they lead to may be gone
)
SKIPPED = frozenset(_SKIPPED)
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_load_state_dict_pre_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_post_accumulate_grad_hooks",
)  # fmt: skip
_OPTIMIZED = 0x1  # CO_OPTIMIZED: locals live in slots; unset at module level
_SHORT = 40  # characters of a key that are shown


class Torch:
    """The classes of an imported torch, looked up once a walk."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        self.torch = torch
        self.tensor: type = torch.Tensor
        self.parameter: type = torch.nn.Parameter
        self.module: type = torch.nn.Module
        self.optimizer: type = torch.optim.Optimizer
        self._is: dict[type, str] = {}

    def kind(self, value: object) -> str:
        """`tensor`, `module`, `optimizer`, `node` or nothing; by type alone."""
        return self.kind_of_type(type(value))

    def kind_of_type(self, cls: type) -> str:
        """The same for instances of a class."""
        found = self._is.get(cls)
        if found is None:
            found = self._kind(cls)
            self._is[cls] = found
        return found

    def _kind(self, cls: type) -> str:
        mro = cls.__mro__
        for base, name in ((self.tensor, "tensor"), (self.module, "module")):
            if base in mro:
                return name
        if self.optimizer in mro:
            return "optimizer"
        names = {name for base in mro for name in base.__dict__}
        return "node" if {"next_functions", "_sequence_nr"} <= names else ""


def edges_of(value: Any, torch: Torch) -> Iterator[Edge]:
    """Everything that `value` keeps alive, named; of plain values only what may hold a tensor."""
    kind = torch.kind_of_type(type(value))
    if not kind:
        return _plain_edges(value)
    if kind == "tensor":
        return _tensor_edges(value)
    if kind == "node":
        return graph_edges(value)
    return _module_edges(value) if kind == "module" else _optimizer_edges(value)


def _tensor_edges(tensor: Any) -> Iterator[Edge]:
    if tensor.is_leaf or tensor.retains_grad:
        grad = tensor.grad
        if grad is not None:
            yield "grad", ".grad", grad
    node = tensor.grad_fn
    if node is not None:
        yield "graph", f".grad_fn -> {node_name(node)}", node
    hooks = tensor._backward_hooks  # noqa: SLF001  no public name
    for hook in list(hooks.values()) if hooks else ():
        yield "hook", f" hook {callable_name(hook)}", hook
    attributes = own_dict(tensor)
    if attributes:
        for key, item in list(attributes.items()):
            yield "attribute", f".{key}", item


def _module_edges(module: Any) -> Iterator[Edge]:
    attributes = own_dict(module) or {}
    for group, kind in (("_parameters", "parameter"), ("_buffers", "buffer"), ("_modules", "part")):
        members = attributes.get(group)
        if isinstance(members, dict):
            for name, member in list(members.items()):
                if member is not None:
                    yield kind, f".{name}", member
    for group in _HOOKS:
        hooks = attributes.get(group)
        if isinstance(hooks, dict):
            for hook in list(hooks.values()):
                word = group.strip("_").removesuffix("s").replace("_", " ")
                yield "hook", f" {word} {callable_name(hook)}", hook
    for name, item in list(attributes.items()):
        if name not in {"_parameters", "_buffers", "_modules", *_HOOKS}:
            yield "attribute", f".{name}", item


def _optimizer_edges(optimizer: Any) -> Iterator[Edge]:
    attributes = own_dict(optimizer) or {}
    state = attributes.get("state")
    if isinstance(state, dict):
        for index, values in enumerate(list(state.values())):
            if isinstance(values, dict):
                for name, item in list(values.items()):
                    yield "state", f".state[{index}].{name}", item
    for name, item in list(attributes.items()):
        if name != "state":
            yield "attribute", f".{name}", item


def _plain_edges(value: Any) -> Iterator[Edge]:
    cls = type(value)
    if cls is dict or (isinstance(value, dict) and cls.__module__ == "collections"):
        for key, item in list(dict.items(value)):
            if type(item) not in SKIPPED:
                yield "item", f"[{_key(key)}]", item
            if type(key) not in SKIPPED:
                yield "item", " key", key
    elif cls is list or cls is tuple or cls is deque:
        for index, item in enumerate(list(value)):
            if type(item) not in SKIPPED:
                yield "item", f"[{index}]", item
    elif cls is set or cls is frozenset:
        for item in list(value):
            yield "item", "{...}", item
    elif cls is FunctionType:
        yield from _function_edges(value)
    elif cls is CellType:
        try:
            yield "item", "", value.cell_contents
        except ValueError:
            return
    elif cls is MethodType:
        yield "attribute", ".__self__", value.__self__
        yield "attribute", ".__func__", value.__func__
    elif cls is FrameType:
        yield from frame_edges(value)
    elif cls is TracebackType:
        yield "exception", "", value.tb_frame
        yield "exception", "", value.tb_next
    elif cls is GeneratorType:
        yield "local", f" generator {value.__name__}", value.gi_frame
    elif cls is CoroutineType:
        yield "local", f" coroutine {value.__name__}", value.cr_frame
    elif cls is ModuleType:
        return
    elif isinstance(value, BaseException):
        yield from _exception_edges(value)
    elif isinstance(value, type):
        module = value.__dict__.get("__module__")
        if type(module) is str and not module.startswith(("torch", "tenure")):
            for name, item in list(value.__dict__.items()):
                yield "attribute", f".{name}", item
    else:
        yield from _instance_edges(value)


def _instance_edges(value: Any) -> Iterator[Edge]:
    attributes = own_dict(value)
    named = set()
    if attributes:
        for name, item in list(attributes.items()):
            if type(item) not in SKIPPED:
                named.add(id(item))
                yield "attribute", f".{name}" if type(name) is str else f"[{_key(name)}]", item
    for item in gc.get_referents(value):
        if (
            type(item) not in SKIPPED
            and id(item) not in named
            and item is not attributes
            and not isinstance(item, type)
        ):
            yield "item", f"<{type(value).__name__}>", item


def _function_edges(function: FunctionType) -> Iterator[Edge]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        yield "closure", f" closure variable {name}", cell
    for item in function.__defaults__ or ():
        yield "closure", " default", item
    for name, item in (function.__kwdefaults__ or {}).items():
        yield "closure", f" default {name}", item
    for name, item in list(function.__dict__.items()):
        yield "attribute", f".{name}", item


def _exception_edges(error: BaseException) -> Iterator[Edge]:
    text = type(error).__name__
    if error.__traceback__ is not None:
        yield "exception", f" ({text}).__traceback__", error.__traceback__
    for name in ("__cause__", "__context__"):
        other = getattr(BaseException, name).__get__(error)
        if other is not None:
            yield "exception", f".{name}", other
    for item in error.args:
        yield "exception", ".args", item
    for name, item in list((own_dict(error) or {}).items()):
        yield "attribute", f".{name}", item


def locals_of(frame: FrameType) -> dict[str, Any]:
    """A frame's local variables, leaving nothing behind on the frame."""
    found = frame.f_locals
    if not frame.f_code.co_flags & _OPTIMIZED:
        return {} if found is frame.f_globals else dict(found)
    values = dict(found)
    # Before Python 3.13 the frame keeps what f_locals returned, and with it the values: emptied,
    # unless somebody else called locals() and has it too (2 references: the frame and `found`).
    if type(found) is dict and sys.getrefcount(found) <= 3:
        found.clear()
    return values


def frame_edges(frame: FrameType) -> Iterator[Edge]:
    """The local variables of a frame."""
    code = frame.f_code
    if is_own(code.co_filename):
        return
    where = f" ({short_file(code.co_filename)}:{frame.f_lineno})"
    for name, item in locals_of(frame).items():
        yield "local", f"local {name} of {code.co_name}{where}", item


def short_file(path: str) -> str:
    """The last part of a path."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def callable_name(function: Any) -> str:
    """A function's name and line, without running anything."""
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is FunctionType:
        code = function.__code__
        name = function.__qualname__.replace("<locals>.", "")
        return f"{name} ({short_file(code.co_filename)}:{code.co_firstlineno})"
    return f"<{type(function).__name__}>"


def _key(key: object) -> str:
    if type(key) is str:
        return repr(key if len(key) <= _SHORT else key[:_SHORT] + "...")
    if type(key) in {int, bool, float}:
        return repr(key)
    return f"<{type(key).__name__}>"
