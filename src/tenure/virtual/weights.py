"""Files of safetensors: on a virtual GPU their sizes are read, and none of their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

_FRAMEWORKS = {"pt", "torch", "pytorch"}


def opener(original: Any, types: dict[str, Any], written: Callable[[Any, Any], Any]) -> Any:
    """What takes the place of `safetensors.safe_open`.

    Args:
        original: That class.
        types: Its name of a type -> PyTorch's.
        written: The tensors by name, on a device, of a file that this process wrote without data;
            None of any other file.
    """

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **more: Any) -> Any:
        if framework not in _FRAMEWORKS:
            return original(filename, framework, device, **more)
        place = f"cuda:{device}" if isinstance(device, int) else device
        tensors = written(filename, place)
        if tensors is not None:
            names = {each: name for name, each in types.items()}
            parts = {
                name: _Written(tensor, names[tensor.dtype]) for name, tensor in tensors.items()
            }
            return Weights(parts, {"format": "pt"})
        file = original(filename, framework="numpy")
        return Weights(
            {name: _Unread(file.get_slice(name), types, place) for name in file.keys()},  # noqa: SIM118
            file.metadata(),
        )

    return safe_open


class Weights:
    """An open file, as `safe_open` gives it."""

    def __init__(self, parts: dict[str, Any], metadata: dict[str, str] | None) -> None:
        self._parts, self._metadata = parts, metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open any more."""

    def keys(self) -> list[str]:
        """The tensors' names."""
        return list(self._parts)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        """What the file says of itself."""
        return self._metadata

    def get_slice(self, name: str) -> Any:
        """A tensor of which an index makes as much as it asks for."""
        return self._parts[name]

    def get_tensor(self, name: str) -> Any:
        """A whole tensor."""
        return self._parts[name][...]

    def get_tensors(self) -> dict[str, Any]:
        """All of them."""
        return {name: part[...] for name, part in self._parts.items()}


class _Unread:
    def __init__(self, sizes: Any, types: dict[str, Any], device: Any) -> None:
        self._sizes, self._types, self._device = sizes, types, device

    def get_shape(self) -> list[int]:
        shape: list[int] = self._sizes.get_shape()
        return shape

    def get_dtype(self) -> str:
        return str(self._sizes.get_dtype())

    def __getitem__(self, index: Any) -> Any:
        shape = torch.empty(self.get_shape(), device="meta")[index].shape
        return torch.empty(shape, dtype=self._types[self.get_dtype()], device=self._device)


class _Written:
    def __init__(self, tensor: Any, dtype: str) -> None:
        self._tensor, self._dtype = tensor, dtype

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: Any) -> Any:
        return self._tensor[index]
