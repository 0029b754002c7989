"""Counts, from shapes alone, the bytes that tensors hold on the card."""

import itertools

import torch


def held(*things):
    """Bytes of the blocks of all tensors in modules, optimizers, lists and gradients, once each."""
    seen, total = set(), 0
    for tensor in itertools.chain.from_iterable(map(_tensors, things)):
        storage = tensor.untyped_storage()
        if tensor.is_cuda and storage._cdata not in seen:
            seen.add(storage._cdata)
            total += -(-storage.nbytes() // 512) * 512
    return total


def _tensors(thing):
    if isinstance(thing, torch.Tensor):
        yield thing
        if thing.grad is not None:
            yield thing.grad
    elif isinstance(thing, torch.nn.Module):
        for tensor in itertools.chain(thing.parameters(), thing.buffers()):
            yield from _tensors(tensor)
    elif isinstance(thing, torch.optim.Optimizer):
        for state in thing.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            yield from _tensors(item)


def report(*things):
    """Prints what is allocated, and what of it the tensors given account for."""
    print("allocated", torch.cuda.memory_allocated(), "held", held(*things))
