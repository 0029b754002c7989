"""Births and deaths of storages: dispatch tells of the one, weak references of the other."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tenure.errors import OutOfMemoryError
from tenure.virtual import hidden
from tenure.virtual.memory import Lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tenure.virtual.card import Kernels
    from tenure.virtual.memory import Memory


_BY_VALUES = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
_NO_NUMBER = 1 << 62  # of nodes that belong to no operator


class Tracker(TorchDispatchMode):  # type: ignore[misc]  # torch is not there where types are checked
    """Runs every operator on fake tensors and asks the memory for what it would take.

    Attributes:
        memory: Where requests go.
        kernels: The card's.
        operators: How often each operator ran.
        after: Called with each operator that has run, its arguments and its result.
        by_values: Runs an operator whose result has a size that values decide.
    """

    def __init__(self, memory: Memory, kernels: Kernels) -> None:
        super().__init__()
        self.memory = memory
        memory.lineage = self._lineage
        self.kernels = kernels
        self.stream: Callable[[], int] = lambda: 0
        self.operators: dict[Any, int] = {}
        self._overrides: dict[Any, list[Callable[..., Any]]] = {}
        self.after: list[Callable[..., None]] = []
        self.by_values: Callable[..., Any] = _refused
        self._known: dict[int, tuple[Any, int]] = {}  # storage -> its weak reference, address
        self._workspaces: set[tuple[int, int, str]] = set()
        self._local = threading.local()
        # The operator and the shapes of its arguments: shapes, since a reference to a tensor would
        # keep it alive, and keep autograd from taking a gradient over as it is.
        self.running: tuple[Any, list[tuple[int, ...]]] = (None, [])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.running = func, [tuple(t.shape) for t in args if isinstance(t, torch.Tensor)]
        result = NotImplemented
        for override in self._overrides.get(func, ()):
            result = override(func, args, kwargs)
            if result is not NotImplemented:
                break
        else:
            try:
                result = func(*args, **kwargs)
            except _BY_VALUES as error:
                result = self.by_values(func, args, kwargs, error)
        self.operators[func] = self.operators.get(func, 0) + 1
        for note in self.after:
            note(func, args, kwargs, result)
        self._ask(func, args, kwargs, result)
        return result

    def override(self, operators: dict[Any, Callable[..., Any]], *, first: bool = False) -> None:
        """Lets functions run in operators' place; one that returns NotImplemented leaves it.

        Args:
            operators: The function of each.
            first: Whether it is asked before those that are there.
        """
        for func, replacement in operators.items():
            there = self._overrides.setdefault(func, [])
            there.insert(0 if first else len(there), replacement)

    def note(self, operator: str) -> None:
        """Counts an operator that ran without being dispatched."""
        self.operators[operator] = self.operators.get(operator, 0) + 1

    def _ask(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        fresh = []
        for tensor in tensors_in(result):
            storage = self._fresh_storage(tensor)
            if storage is not None:
                fresh.append(storage)
        plan = hidden.plan_of(func)
        if plan is None:
            for storage in fresh:
                self._born(storage)
            return
        call = hidden.Call(func, args, kwargs, result, self.kernels, self._first_use)
        self._follow(plan(call), fresh, guess=hidden.is_guess(func))

    def _follow(self, steps: Iterable[hidden.Step], fresh: list[Any], *, guess: bool) -> None:
        """Takes temporaries and outputs in the kernel's order, and gives temporaries back."""
        held: dict[str, int] = {}
        waiting = dict(enumerate(fresh))
        try:
            for step in steps:
                if step.kind == "output":
                    if step.index in waiting:
                        self._born(waiting.pop(step.index))
                    elif step.index < 0:
                        for storage in waiting.values():
                            self._born(storage)
                        waiting.clear()
                elif step.kind == "skip":
                    waiting.pop(step.index, None)
                elif step.kind == "take":
                    held[step.name] = self._request(step.size, guess=guess)
                elif step.kind == "keep":
                    self._request(step.size)
                else:
                    self.memory.free(held.pop(step.name))
            for storage in waiting.values():
                self._born(storage)
        finally:
            for address in reversed(held.values()):
                self.memory.free(address)

    def _first_use(self, what: str) -> bool:
        """Whether this thread had no workspace of that kind on its stream; from now on it has."""
        key = (threading.get_ident(), self.stream(), what)
        if key in self._workspaces:
            return False
        self._workspaces.add(key)
        return True

    def _fresh_storage(self, tensor: Any) -> Any:
        if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None and known[0]() is storage:
            return None
        return storage

    def _born(self, storage: Any) -> None:
        key = storage._cdata
        known = self._known.get(key)
        if known is not None and known[0]() is storage:
            return  # two outputs in one storage
        address = self._request(int(storage.nbytes()))

        def dead(reference: Any, key: int = key, address: int = address) -> None:
            known = self._known.get(key)
            if known is not None and known[0] is reference:
                del self._known[key]
            self.memory.free(address)

        self._known[key] = (weakref.ref(storage, dead), address)

    def _request(self, size: int, *, guess: bool = False) -> int:
        try:
            return self.memory.allocate(size, self.stream(), guess=guess)
        except OutOfMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def _lineage(self) -> Lineage:
        """The node of the operator that runs now.

        In a forward pass its operator sees it as the last one that this thread made.
        """
        node = torch._C._current_autograd_node()
        if node is None:
            return Lineage(torch._C._autograd._get_sequence_nr() - 1, in_backward=False)
        number = node._sequence_nr()
        if number >= _NO_NUMBER:  # a gradient is added up: that of the node before it
            number = getattr(self._local, "number", -1)
        self._local.number = number
        return Lineage(number, in_backward=True)

    def address_of(self, tensor: Any) -> int:
        """Where a tensor's storage lies on the card; 0 if it is not there."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        return known[1] if known else 0


def _refused(_func: Any, _args: Any, _kwargs: Any, error: Exception) -> Any:
    raise error


def tensors_in(value: Any) -> Iterator[Any]:
    """Every tensor of an operator's result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
