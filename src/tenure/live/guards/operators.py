"""What an operator reads and writes, as its schema says."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from tenure.streams import Extent, dense, strided

if TYPE_CHECKING:
    from collections.abc import Iterator

# Operators that take a tensor only for its shape.
_SHAPE_ONLY = re.compile(r"new_|.*_like$|empty")
# Views whose schema does not say so, and operators on a tensor's description.
_NO_DATA = frozenset({"_unsafe_view", "set_", "resize_", "resize_as_", "lift", "lift_fresh"})
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
_INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})


class Sort(Enum):
    """How an operator is looked at."""

    NOTHING = "nothing"  # touches no data, or nothing is known about it
    RECORD = "record"  # record_stream
    COPY = "copy"  # may cross between host and devices
    COLLECTIVE = "collective"  # runs on a stream of its own that waits for the current one
    KERNEL = "kernel"


class Plan(NamedTuple):
    """What is known of an operator before it is called.

    Attributes:
        sort: How it is looked at.
        name: Without its namespace.
        positional: For each argument by position, None if it is no tensor, else whether it is
            written.
        named: The same by name.
        reads_inputs: Whether it reads the data of its arguments.
        fills: Whether it writes what it makes.
        waits: Whether the host waits for its result.
        indexed: Whether it waits only if one of its indices is a mask.
    """

    sort: Sort
    name: str = ""
    positional: tuple[bool | None, ...] = ()
    named: dict[str, bool] = {}  # noqa: RUF012  never changed
    reads_inputs: bool = True
    fills: bool = True
    waits: bool = False
    indexed: bool = False


NOTHING = Plan(Sort.NOTHING)


def plan_of(function: Any) -> Plan:
    """What an operator's schema says of it."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return NOTHING
    namespace, _, name = schema.name.partition("::")
    if namespace in _COLLECTIVES:
        return _described(schema, Sort.COLLECTIVE, name)
    if namespace == "prim" or name in _NO_DATA:
        return NOTHING
    if name == "record_stream":
        return Plan(Sort.RECORD, name)
    if _is_view(schema):
        return NOTHING
    tags = {str(tag).rpartition(".")[2] for tag in getattr(function, "tags", ())}
    waits = bool(tags & {"data_dependent_output", "dynamic_output_shape"})
    tensors = any("Tensor" in str(returned.type) for returned in schema.returns)
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    if not (tensors or written or waits):
        return NOTHING  # asks for a property
    sort = Sort.COPY if namespace == "aten" and name in {"copy_", "_to_copy"} else Sort.KERNEL
    return _described(schema, sort, name, waits=waits)


def _described(schema: Any, sort: Sort, name: str, *, waits: bool = False) -> Plan:
    positional: list[bool | None] = []
    named = {}
    for argument in schema.arguments:
        is_tensor = "Tensor" in str(argument.type)
        written = argument.alias_info is not None and bool(argument.alias_info.is_write)
        positional.append(written if is_tensor else None)
        if is_tensor:
            named[argument.name] = written
    return Plan(
        sort,
        name,
        tuple(positional),
        named,
        reads_inputs=_SHAPE_ONLY.match(name) is None,
        fills="empty" not in name,
        waits=waits and name not in _INDEXED,
        indexed=name in _INDEXED,
    )


def _is_view(schema: Any) -> bool:
    """Whether a result shares memory with an argument that is not written."""
    arguments = [a for a in schema.arguments if a.alias_info is not None]
    returned = any(r.alias_info is not None for r in schema.returns)
    return returned and not any(a.alias_info.is_write for a in arguments)


def tensors_of(plan: Plan, arguments: Any, named: Any) -> Iterator[tuple[Any, bool]]:
    """Each tensor among an operator's arguments, and whether it is written."""
    if not plan.reads_inputs and not any(plan.positional):
        return
    for value, written in zip(arguments, plan.positional, strict=False):
        if written is not None:
            yield from ((one, written) for one in _tensors(value))
    for name, value in named.items():
        written = plan.named.get(name)
        if written is not None:
            yield from ((one, written) for one in _tensors(value))


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors of an argument: where one may stand, a number or nothing may too."""
    if hasattr(value, "is_cuda"):
        yield value
    elif type(value) in {list, tuple}:
        yield from (one for one in value if hasattr(one, "is_cuda"))


def tensors_in(result: Any) -> Iterator[Any]:
    """Each tensor in an operator's result."""
    if type(result) in {tuple, list}:
        for one in result:
            yield from tensors_in(one)
    elif hasattr(result, "untyped_storage"):
        yield result


def storage_of(tensor: Any) -> Any:
    """A tensor's storage; None if it has none."""
    try:
        return tensor.untyped_storage()
    except (AttributeError, RuntimeError, NotImplementedError):
        return None


def extent_of(tensor: Any) -> Extent | None:
    """Bytes of its storage that a tensor shows; None if it shows none."""
    itemsize = tensor.element_size()
    count = tensor.numel()
    if not count:
        return None
    start = tensor.storage_offset() * itemsize
    if tensor.is_contiguous():
        return dense(start, count * itemsize)
    return strided(start, itemsize, tensor.shape, tensor.stride())


def has_mask(plan: Plan, arguments: Any, named: Any) -> bool:
    """Whether an indexing operator got a mask, so that the host waits for its count."""
    if not plan.indexed:
        return False
    indices = arguments[1] if len(arguments) > 1 else named.get("indices", ())
    return any(i is not None and str(i.dtype) in {"torch.bool", "torch.uint8"} for i in indices)
