"""Tensors sent between processes on a real GPU: `python gpu_sharing.py torch|native`.

The child gets tensors of the parent's, checks and changes them, and sends one of its own back. The
last line printed is a JSON object; anything wrong is an exception.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch
import torch.multiprocessing as processes

from gpu_scenarios import MIB, Result, install, sound

LONGEST = 60  # seconds, for one message
SIZES = (1000, 30 * MIB + 512, 700 * MIB)  # bytes


def marked(size: int, value: int) -> Any:
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def all_are(tensor: Any, value: int) -> bool:
    return bool((tensor == value).all().item())


def child(rules: str, tasks: Any, answers: Any) -> None:
    """Each tensor's bytes are what the parent says; then it is filled anew, through its alias."""
    install(rules)
    own = [marked(3 * MIB + 1000, 77)]
    for value in iter(tasks.get, None):
        tensor, again = tasks.get(), tasks.get()
        right = all_are(tensor, value) and tensor.data_ptr() == again.data_ptr()
        again.fill_(value + 1)
        torch.cuda.synchronize()
        del tensor, again
        gc.collect()
        answers.put(right)
    answers.put(own[0])
    assert tasks.get() is None  # the parent let go
    sound(rules)


def main(rules: str) -> Result:
    install(rules)
    context = processes.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    other = context.Process(target=child, args=(rules, tasks, answers))
    other.start()
    beside = marked(5 * MIB, 5)
    for value, size in enumerate(SIZES, 10):
        tensor = marked(size, value)
        torch.cuda.synchronize()
        for message in (value, tensor, tensor.view(-1)):
            tasks.put(message)
        assert answers.get(timeout=LONGEST), size
        torch.cuda.synchronize()
        assert all_are(tensor, value + 1), size
        del tensor, message
    tasks.put(None)
    received = answers.get(timeout=LONGEST)
    assert received.numel() == 3 * MIB + 1000
    assert all_are(received, 77)
    assert all_are(beside, 5)
    del received, beside
    gc.collect()
    tasks.put(None)
    other.join(LONGEST)
    assert other.exitcode == 0, other.exitcode
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    left = torch.cuda.memory_allocated()
    assert left == 0, left
    sound(rules)
    return {"rules": rules, "bytes": list(SIZES)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")
