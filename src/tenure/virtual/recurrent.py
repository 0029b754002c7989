"""LSTM, GRU and plain recurrent networks as cuDNN runs them: one operator, not one for each step.

The reserve that an LSTM keeps for its backward matched a recording of torch 2.11 on an H200 at 20
lengths; those of the others, and all workspaces, are guesses.
"""

# ruff: noqa: SLF001  what is private in PyTorch is what a virtual GPU has to replace

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tenure.virtual.hidden import RECURRENT
from tenure.virtual.steps import OUTPUTS, Call, Step, planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenure.patches import Patches
    from tenure.virtual.card import Kernels
    from tenure.virtual.shadow import Shadows
    from tenure.virtual.tracker import Tracker

_aten = torch.ops.aten
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT = {"lstm": 5, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}  # values a step keeps for the backward
_DROPOUT_STATE = 49_152  # bytes for each multiprocessor
_states: list[Any] = []  # cuDNN's dropout state: made once a process, kept


@dataclass(frozen=True)
class Network:
    """A recurrent network by its sizes.

    Attributes:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        layers: How many.
        directions: 1 or 2.
        width: Of the hidden state.
        projected: Of what a step gives out; `width` if it is not projected.
        training: Whether it keeps what its backward needs.
        batch_first: The input's layout.
    """

    kind: str
    layers: int
    directions: int
    width: int
    projected: int
    training: bool
    batch_first: bool

    def workspace(self, rows: int, element: int) -> int:
        """Bytes of a call's workspace: all gates of one layer, a guess."""
        return rows * self.width * self.directions * _GATES[self.kind] * element

    def reserve(self, rows: int, element: int) -> int:
        """Bytes kept for the backward; `rows` is steps times batch."""
        wide = rows * self.width * self.directions
        between = self.layers - 1
        values = wide * (_KEPT[self.kind] * self.layers + between)
        return values * element + between * wide // 8 + 256


def paint(patches: Patches, tracker: Tracker, shadows: Shadows) -> None:
    """Replaces what the CPU build would compute step by step."""
    for kind in _GATES:
        original = getattr(torch._VF, kind)
        patches.set(torch._VF, kind, _runner(kind, tracker, original))
    patches.set(torch._VF, "_pack_padded_sequence", _packer(shadows))
    patches.set(torch._VF, "_pad_packed_sequence", _padder(shadows))
    base = torch.nn.RNNBase
    patches.set(base, "flatten_parameters", _flattener(base.flatten_parameters))


# --- cells: a step at a time, its gates in one kernel --------------------------------------------


def overrides() -> dict[Any, Any]:
    """Cells for which PyTorch has no fake kernel."""
    return {
        _aten._thnn_fused_gru_cell.default: _gru_cell,
        _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    }


def _gru_cell(_func: Any, args: Any, _kwargs: Any) -> Any:
    """The new state, and five values a unit for the backward."""
    state = args[2]
    return torch.empty_like(state), state.new_empty((state.shape[0], 5 * state.shape[1]))


def _gru_cell_backward(_func: Any, args: Any, _kwargs: Any) -> Any:
    grad, kept, has_bias = args
    batch, width = kept.shape[0], 3 * (kept.shape[1] // 5)
    gates = [kept.new_empty((batch, width)) for _ in range(2)]
    biases = [kept.new_empty(width) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(grad), *biases)


@planned("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell")
def _cell(call: Call) -> Iterator[Step]:
    yield Step("output", index=len(call.result) - 1)
    yield OUTPUTS


@planned("_thnn_fused_gru_cell_backward", "_thnn_fused_lstm_cell_backward_impl")
def _cell_backward(_call: Call) -> Iterator[Step]:
    yield OUTPUTS


def _flattener(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def flatten_parameters(self: Any) -> None:
        """Puts all weights into one buffer, as cuDNN wants them."""
        weights = [w for w in self._flat_weights if isinstance(w, torch.Tensor)]
        alike = len({(w.device, w.dtype) for w in weights}) == 1
        if not weights or not alike or weights[0].device.type != "cuda":
            original(self)
            return
        with torch.no_grad():
            buffer = weights[0].new_zeros(sum(w.numel() for w in weights))
            for weight, part in zip(weights, _parts(buffer, weights), strict=True):
                weight.data = part

    return flatten_parameters


def _parts(buffer: Any, weights: Any) -> list[Any]:
    pieces = buffer.split([w.numel() for w in weights])
    return [piece.view(w.shape) for piece, w in zip(pieces, weights, strict=True)]


def _runner(kind: str, tracker: Tracker, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(source: Any, *rest: Any) -> Any:
        if source.device.type != "cuda":
            return original(source, *rest)
        tracker.note(RECURRENT)
        packed = isinstance(rest[0 if kind == "lstm" else 1], torch.Tensor)
        if packed:
            rest = rest[1:]
        state, weights, _bias, layers, dropout, training, both = rest[:7]
        state = list(state) if kind == "lstm" else [state]
        network = Network(
            kind=kind,
            layers=layers,
            directions=2 if both else 1,
            width=weights[1].shape[1] if kind != "lstm" else weights[0].shape[0] // 4,
            projected=state[0].shape[-1],
            training=training,
            batch_first=not packed and bool(rest[7]),
        )
        if dropout and training and layers > 1 and not _states:
            _states.append(_dropout_state(source, tracker.kernels))
        source, state, half = _cast(source, state)
        results = _Cudnn.apply(network, half, source, *state, *weights)
        return tuple(results)

    return run


def _dropout_state(source: Any, kernels: Kernels) -> Any:
    source.new_empty(8, dtype=torch.uint8)
    return source.new_empty(_DROPOUT_STATE * kernels.multiprocessors, dtype=torch.uint8)


def _cast(source: Any, state: list[Any]) -> tuple[Any, list[Any], Any]:
    """Under autocast in its type, weights too; the type, or None."""
    if not torch.is_autocast_enabled("cuda"):
        return source, state, None
    half = torch.get_autocast_dtype("cuda")
    return source.to(half), [s.to(half) for s in state], half


class _Cudnn(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for mypy
    """What cuDNN takes, in its order; nothing is computed."""

    @staticmethod
    def forward(ctx: Any, network: Network, half: Any, source: Any, *tensors: Any) -> Any:
        states = 2 if network.kind == "lstm" else 1
        state, weights = tensors[:states], tensors[states:]
        if half is not None:
            buffer = source.new_empty(sum(w.numel() for w in weights))
        else:
            buffer = None
        x = source.transpose(0, 1) if network.batch_first else source
        copy = x.contiguous()
        rows = copy.numel() // copy.shape[-1]
        output = copy.new_empty((*copy.shape[:-1], network.projected * network.directions))
        finals = [torch.empty_like(s, memory_format=torch.contiguous_format) for s in state]
        element = source.element_size()
        workspace = copy.new_empty(network.workspace(rows, element), dtype=torch.uint8)
        reserve = None
        if network.training:
            reserve = copy.new_empty(network.reserve(rows, element), dtype=torch.uint8)
        del workspace, copy
        if network.batch_first:
            output = output.transpose(0, 1)
        ctx.network, ctx.states = network, states
        ctx.rest = (reserve, buffer)
        ctx.save_for_backward(source, output, *state, *weights)
        return (output, *finals)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        network, states = ctx.network, ctx.states
        source, output, *rest = ctx.saved_tensors
        state, weights = rest[:states], rest[states:]
        found = [
            g if g is not None else torch.zeros_like(t)
            for g, t in zip(grads, (output, *state), strict=True)
        ]
        swap = network.batch_first
        x = (source.transpose(0, 1) if swap else source).contiguous()
        dy = (found[0].transpose(0, 1) if swap else found[0]).contiguous()
        dx = torch.empty_like(x)
        initial = [torch.empty_like(s, memory_format=torch.contiguous_format) for s in state]
        size = network.workspace(x.numel() // x.shape[-1], x.element_size())
        workspace = x.new_empty(size, dtype=torch.uint8)
        del workspace, dy, x
        x = (source.transpose(0, 1) if swap else source).contiguous()
        buffer = x.new_zeros(sum(w.numel() for w in weights))
        workspace = x.new_empty(size, dtype=torch.uint8)
        del workspace, x
        parts = _parts(buffer, weights)
        if parts[0].dtype != weights[0].dtype:
            parts = [part.to(w.dtype) for part, w in zip(parts, weights, strict=True)]
        ctx.rest = None
        return (None, None, dx.transpose(0, 1) if swap else dx, *initial, *parts)


# --- sequences of different lengths --------------------------------------------------------------


def _packer(shadows: Shadows) -> Callable[..., Any]:
    def pack(source: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
        steps = source.shape[1 if batch_first else 0]
        value = shadows.array_of(lengths)
        counts = [min(int(n), steps) or steps for n in value.tolist()]
        sizes = torch.tensor([sum(n > step for n in counts) for step in range(max(counts))])
        return _Packed.apply(sum(counts), source), sizes

    return pack


def _padder(shadows: Shadows) -> Callable[..., Any]:
    def pad(data: Any, sizes: Any, batch_first: bool, _value: Any, total: int) -> tuple[Any, Any]:
        counts = shadows.array_of(sizes).tolist()
        lengths = torch.tensor([sum(n > row for n in counts) for row in range(counts[0])])
        steps = max(len(counts), total)
        return _Padded.apply((steps, counts[0]), batch_first, data), lengths

    return pad


class _Packed(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for mypy
    """The steps of all sequences, one below the other."""

    @staticmethod
    def forward(ctx: Any, rows: int, source: Any) -> Any:
        ctx.shape = source.shape
        return source.new_empty((rows, *source.shape[2:]))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, grad.new_zeros(ctx.shape)


class _Padded(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for mypy
    """The reverse."""

    @staticmethod
    def forward(ctx: Any, sizes: tuple[int, int], batch_first: bool, data: Any) -> Any:
        ctx.shape = data.shape
        result = data.new_empty((*sizes, *data.shape[1:]))
        return result.transpose(0, 1) if batch_first else result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, grad.new_empty(ctx.shape)
