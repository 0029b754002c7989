"""What goes from tensors without data to NumPy, to Python's numbers, to files and to processes."""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from tenure.virtual import weights
from tenure.virtual.shadow import value_of

if TYPE_CHECKING:
    from tenure.patches import Patches
    from tenure.virtual.shadow import Shadows

_INFINITE = (float("inf"), -float("inf"))
_MAGIC = b"tenure: tensors of a virtual GPU, without data\n"


def paint(patches: Patches, shadows: Shadows) -> None:
    """Replaces what reads data out of tensors."""
    put = patches.set
    put(torch.Tensor, "item", _item(shadows, torch.Tensor.item))
    put(torch.Tensor, "__format__", _format(torch.Tensor.__format__))
    put(torch.Tensor, "data_ptr", _tensor_address)
    put(torch.UntypedStorage, "data_ptr", _storage_address(torch.UntypedStorage.data_ptr))
    put(torch.Tensor, "share_memory_", _shared(torch.Tensor.share_memory_))
    put(torch.Tensor, "numpy", _numpy(shadows, torch.Tensor.numpy))
    put(torch, "Generator", _Generator)
    put(torch, "compile", _compile(shadows))
    put(torch.utils.data.DataLoader, "_get_iterator", _in_this_process)
    put(torch.nn.DataParallel, "scatter", _on_the_one_card)
    files = _Files()
    put(torch, "save", files.save)
    put(torch, "load", functools.partial(files.load, torch.load))
    # transformers and accelerate import these by name: they have to be there first.
    if importlib.util.find_spec("safetensors") is not None:
        safetensors: Any = importlib.import_module("safetensors.torch")
        put(safetensors, "save_file", files.save)
        opener = weights.opener(safetensors.safe_open, safetensors._TYPES, files.written)
        for module in (safetensors, importlib.import_module("safetensors")):
            put(module, "safe_open", opener)
    # Threads of its own would make tensors that are not of this run.
    patches.set_variable("HF_DEACTIVATE_ASYNC_LOAD", "1")


# --- numbers -------------------------------------------------------------------------------------


def _decides(name: str) -> Callable[..., Any]:
    original = getattr(float, name)

    def method(self: AssumedNumber, *others: Any) -> Any:
        # Whether it is infinite, or not a number: every run is taken to be finite.
        if not (others and (others[0] is self or others[0] in _INFINITE)):
            self.decided()
        return original(self, *others)

    return method


def _derives(name: str) -> Callable[..., Any]:
    original = getattr(float, name)

    def method(self: AssumedNumber, *others: Any) -> Any:
        value = original(self, *others)
        return AssumedNumber(value, self.decided) if isinstance(value, float) else value

    return method


class AssumedNumber(float):
    """A number that nobody computed. To print it is harmless; to decide by it is noted.

    Attributes:
        decided: Called when the script decides by it.
    """

    decided: Callable[[], None]

    def __new__(cls, value: float, decided: Callable[[], None]) -> Self:
        """A number with what is called when it decides."""
        number = super().__new__(cls, value)
        number.decided = decided
        return number

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float.__add__(self, 0.0),)


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "floor", "ceil"):
    setattr(AssumedNumber, f"__{_name}__", _decides(f"__{_name}__"))
for _name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod"):
    setattr(AssumedNumber, f"__{_name}__", _derives(f"__{_name}__"))
    setattr(AssumedNumber, f"__r{_name}__", _derives(f"__r{_name}__"))
for _name in ("neg", "abs", "round"):
    setattr(AssumedNumber, f"__{_name}__", _derives(f"__{_name}__"))
AssumedNumber.__hash__ = float.__hash__  # type: ignore[method-assign]  # __eq__ took it away


def _item(shadows: Shadows, original: Any) -> Any:
    def item(self: Any) -> Any:
        if not isinstance(self, FakeTensor) or not self.dtype.is_floating_point:
            return original(self)
        with shadows.handing_out() as handed:
            value = original(self)
        return AssumedNumber(value, handed.decided) if handed.texts else value

    return item


def _format(original: Any) -> Any:
    def format_(self: Any, form: str) -> str:
        if isinstance(self, FakeTensor) and self.dim() == 0 and form:
            return format(self.item(), form)
        return str(original(self, form))

    return format_


def _storage_address(original: Any) -> Any:
    """Libraries tell by it which tensors share memory: one of its own for each storage."""
    return lambda self: self._cdata if self.device.type == "meta" else original(self)


def _tensor_address(self: Any) -> int:
    first = self.untyped_storage().data_ptr()
    return int(first + self.storage_offset() * self.element_size()) if self.numel() else 0


def _shared(original: Any) -> Any:
    return lambda self: self if isinstance(self, FakeTensor) else original(self)


def _numpy(shadows: Shadows, original: Any) -> Any:
    def numpy(self: Any, *, force: bool = False) -> Any:
        if not isinstance(self, FakeTensor):
            return original(self, force=force)
        if not force and self.device.type != "cpu":
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        if not force and self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                "instead."
            )
        value = shadows.array_of(self)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            return original(value.clone())

    return numpy


# --- random numbers, compilation, workers --------------------------------------------------------


class _Generator(torch.Generator):  # type: ignore[misc]  # torch is not there for mypy
    """A generator that says it is the card's; its numbers come from the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Self:
        self: Self = super().__new__(cls, "cpu")
        self.on = torch.device(device)
        return self

    @property
    def device(self) -> Any:
        """Where it claims to be."""
        return torch.device("cuda", self.on.index or 0) if self.on.type == "cuda" else self.on


def _compile(shadows: Shadows) -> Any:
    def compile(model: Any = None, **_options: Any) -> Any:  # noqa: A001  as PyTorch calls it
        """The model itself."""
        if model is None:
            return compile
        shadows.assume("torch.compile is left out: compiled code may need less or more")
        return model

    return compile


def _in_this_process(loader: Any) -> Any:
    """A DataLoader's iterator without workers, which tensors without data could not leave."""
    loader.num_workers = 0
    loader.timeout = 0
    return sys.modules["torch.utils.data.dataloader"]._SingleProcessDataLoaderIter(loader)


def _on_the_one_card(_self: Any, inputs: Any, kwargs: Any, _devices: Any) -> Any:
    """What DataParallel does before a forward pass, with one card."""

    def moved(value: Any) -> Any:
        return value.cuda() if isinstance(value, torch.Tensor) else value

    return (tree_map(moved, inputs),), (tree_map(moved, kwargs),)


# --- files ---------------------------------------------------------------------------------------


class _Saved(NamedTuple):
    """A tensor in a file; `numbers` are None where nobody knows them."""

    parameter: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: str
    requires_grad: bool
    numbers: Any


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Sizes in the place of tensors, and values where they are known."""
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        known = value_of(value)
        with torch._C._DisableTorchDispatch():
            numbers = None if known is None else known.tolist()
        saved = _Saved(
            isinstance(value, torch.nn.Parameter),
            tuple(value.shape),
            value.stride(),
            value.dtype,
            str(value.device),
            value.requires_grad,
            numbers,
        )
        return _rebuilt, (saved,)


_loading = threading.local()


def _rebuilt(saved: _Saved) -> Any:
    device = _loading.place(saved.device)
    if saved.numbers is None:
        tensor = torch.empty_strided(saved.shape, saved.stride, dtype=saved.dtype, device=device)
    else:
        tensor = torch.tensor(saved.numbers, dtype=saved.dtype).reshape(saved.shape).to(device)
    if saved.parameter:
        return torch.nn.Parameter(tensor, saved.requires_grad)
    return tensor.requires_grad_(saved.requires_grad)


class _Files:
    """torch.save and torch.load, of tensors without data.

    Only what this process wrote is read back, since reading it may run code, as pickles do.
    """

    def __init__(self) -> None:
        self._written: set[bytes] = set()

    def save(self, value: Any, f: Any, *_args: Any, **_kwargs: Any) -> None:
        """Writes sizes, and the values that are known."""
        data = io.BytesIO()
        data.write(_MAGIC)
        _Pickler(data, protocol=4).dump(value)
        self._written.add(hashlib.sha256(data.getvalue()).digest())
        if hasattr(f, "write"):
            f.write(data.getvalue())
        else:
            Path(f).write_bytes(data.getvalue())

    def load(self, original: Any, f: Any, map_location: Any = None, *args: Any, **kw: Any) -> Any:
        """Reads what `save` wrote; any other file as PyTorch does."""
        file = f if hasattr(f, "read") else None
        if file is None:
            with Path(f).open("rb") as opened:
                begins = opened.read(len(_MAGIC))
        else:
            begins = file.read(len(_MAGIC))
            file.seek(-len(begins), io.SEEK_CUR)
        if begins != _MAGIC:
            return original(f, map_location, *args, **kw)
        data = Path(f).read_bytes() if file is None else file.read()
        if hashlib.sha256(data).digest() not in self._written:
            raise RuntimeError(
                f"{f}: written by another run on a virtual GPU, which saves no data; write the "
                "file in this run, or take one from a real run"
            )
        _loading.place = _placing(map_location)
        return pickle.loads(data[len(_MAGIC) :])  # noqa: S301  written by this process

    def written(self, filename: Any, device: Any) -> Any:
        """What `save` wrote to a file; None for any other file."""
        with Path(filename).open("rb") as opened:
            ours = opened.read(len(_MAGIC)) == _MAGIC
        return self.load(None, filename, device) if ours else None


def _placing(map_location: Any) -> Callable[[str], Any]:
    """Where a tensor goes that was saved on a device."""
    if map_location is None:
        return lambda device: device
    if isinstance(map_location, dict):
        return lambda device: map_location.get(device, device)
    if callable(map_location):
        return lambda _device: "cpu"  # the usual lambda keeps the storage where it was read
    return lambda _device: map_location
