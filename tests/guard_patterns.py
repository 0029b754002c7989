"""Programs on a virtual GPU under a guard; run as a script, it prints what the guard said.

Lines are marked: `# earlier`, `# free`, `# later` are those that a finding has to name.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

import tenure

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 1 << 20
torch: Any = None


# --- races: the finding's code, and the lines it names -------------------------------------------


def stream_race_read() -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(COUNT, device="cuda")
    torch.cuda.synchronize()
    x.fill_(1.0)  # earlier
    with torch.cuda.stream(side):
        x.sum()  # later


def stream_race_read_of_a_view() -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(4, COUNT, device="cuda")
    torch.cuda.synchronize()
    x[1:3].copy_(torch.ones(2, COUNT, device="cuda"))  # earlier
    with torch.cuda.stream(side):
        x[2].mul(2)  # later


def stream_race_read_of_what_out_filled() -> None:
    side = torch.cuda.Stream()
    x, out = torch.ones(COUNT, device="cuda"), torch.empty(0, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    torch.add(x, 1.0, out=out)  # earlier
    with torch.cuda.stream(side):
        out.sum()  # later


def stream_race_read_of_a_list() -> None:
    side = torch.cuda.Stream()
    xs = [torch.ones(COUNT, device="cuda") for _ in range(2)]
    side.wait_stream(torch.cuda.current_stream())
    torch._foreach_add_(xs, 1.0)  # earlier
    with torch.cuda.stream(side):
        torch.stack(xs)  # later


def stream_race_read_though_an_earlier_event_is_waited_for() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    event = torch.cuda.Event()
    event.record()
    x.add_(1)  # earlier
    side.wait_event(event)
    with torch.cuda.stream(side):
        x.sum()  # later


def stream_race_read_because_the_wait_is_on_itself() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")  # earlier
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.current_stream())
        x.sum()  # later


def stream_race_read_by_the_host() -> None:
    x = torch.ones(COUNT, device="cuda")
    host = x.to("cpu", non_blocking=True)  # earlier
    host[:2].tolist()  # later


def stream_race_write() -> None:
    copies = torch.cuda.Stream()
    buffer = torch.ones(COUNT, device="cuda")
    for _ in range(2):
        copies.wait_stream(torch.cuda.current_stream())
        buffer.mul(2)  # earlier
        with torch.cuda.stream(copies):
            buffer.fill_(3.0)  # later
        torch.cuda.current_stream().wait_stream(copies)


def stream_race_write_of_both() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    x.fill_(1.0)  # earlier
    with torch.cuda.stream(side):
        x.zero_()  # later


def stream_race_reuse() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    out = torch.zeros(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out.copy_(x)  # earlier
    del x  # free
    torch.ones(COUNT, device="cuda")  # later


def stream_race_reuse_though_the_owner_is_recorded() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul(2)  # earlier
    x.record_stream(torch.cuda.current_stream())
    del x  # free
    torch.ones(COUNT, device="cuda")  # later


def stream_race_reuse_of_a_prefetched_batch() -> None:
    class Prefetcher:
        def __init__(self) -> None:
            self.stream = torch.cuda.Stream()

        def load(self) -> None:
            with torch.cuda.stream(self.stream):
                self.batch = torch.ones(COUNT).cuda()  # later

        def following(self) -> Any:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.batch
            self.load()
            return batch

    prefetcher = Prefetcher()
    prefetcher.load()
    for _ in range(4):
        batch = prefetcher.following()  # free
        batch.mul(2)  # earlier


def stream_race_reuse_of_a_resized_storage() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul(2)  # earlier
    x.untyped_storage().resize_(0)  # free
    torch.ones(COUNT, device="cuda")  # later


def stream_host_overwrite() -> None:
    host = torch.ones(COUNT).pin_memory()
    x = torch.zeros(COUNT, device="cuda")
    x.copy_(host, non_blocking=True)  # earlier
    host.fill_(7.0)  # later


def stream_host_overwrite_of_a_factory() -> None:
    host = torch.ones(COUNT, pin_memory=True)
    host.to("cuda", non_blocking=True)  # earlier
    host.add_(1.0)  # later


# --- healthy -------------------------------------------------------------------------------------


def healthy_columns() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(64, 64, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    x[:, :32].add_(1)
    with torch.cuda.stream(side):
        x[:, 32:].add_(1)
    torch.cuda.current_stream().wait_stream(side)


def healthy_double_buffer() -> None:
    copies = torch.cuda.Stream()
    buffers = [torch.zeros(COUNT, device="cuda") for _ in range(2)]
    host = [torch.ones(COUNT).pin_memory() for _ in range(2)]
    filled = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]
    copies.wait_stream(torch.cuda.current_stream())
    for step in range(6):
        slot = step % 2
        if step > 1:
            filled[slot].synchronize()
        host[slot].fill_(float(step))
        with torch.cuda.stream(copies):
            if step > 1:
                copies.wait_event(used[slot])
            buffers[slot].copy_(host[slot], non_blocking=True)
            filled[slot].record()
        torch.cuda.current_stream().wait_event(filled[slot])
        buffers[slot].mul(2)
        used[slot].record()


def healthy_polling() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    event = torch.cuda.Event()
    with torch.cuda.stream(side):
        y = x * 2
        event.record()
    while not event.query():
        pass
    y.sum()
    del x
    torch.ones(COUNT, device="cuda")


def healthy_late_wait() -> None:
    """Freed under a use, but the wait comes before anything asks for memory."""
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    del x
    torch.cuda.current_stream().wait_stream(side)
    y.sum()


def healthy_results_read_after_the_copy() -> None:
    x = torch.ones(COUNT, device="cuda")
    host = x.to("cpu", non_blocking=True)
    torch.cuda.current_stream().synchronize()
    host.sum()
    x.add_(1)
    host.copy_(x, non_blocking=True)
    float(x.sum())  # waits for the stream
    host[:2].tolist()


def healthy_training() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(32, 64).cuda()
        loss = torch.nn.functional.cross_entropy(model(x), torch.zeros(32, dtype=int).cuda())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def healthy_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    side = torch.cuda.Stream()
    layer = torch.nn.Linear(64, 64).cuda()
    x = torch.randn(32, 64, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    x.grad.sum()


def healthy_offload() -> None:
    """Activations go to the host and come back on a side stream."""
    side = torch.cuda.Stream()

    def pack(tensor: Any) -> Any:
        if not tensor.is_cuda:
            return tensor
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host = torch.empty(tensor.shape, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(side)
        return [host]

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, list):
            return packed
        with torch.cuda.stream(side):
            tensor = packed[0].to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        tensor.record_stream(torch.cuda.current_stream())
        return tensor

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = model(torch.randn(32, 64, device="cuda")).sum()
        loss.backward()
        model.zero_grad()
    torch.cuda.current_stream().wait_stream(side)


def healthy_results_in_turn() -> None:
    """Results copied to two pinned buffers on a side stream, read behind their events."""
    copies = torch.cuda.Stream()
    hosts = [torch.empty(COUNT).pin_memory() for _ in range(2)]
    copied = [torch.cuda.Event() for _ in range(2)]
    for step in range(6):
        slot = step % 2
        if step > 1:
            copied[slot].synchronize()
            hosts[slot].sum()
        y = torch.full((COUNT,), float(step), device="cuda")
        copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            hosts[slot].copy_(y, non_blocking=True)
            copied[slot].record()
        y.record_stream(copies)
    torch.cuda.synchronize()
    hosts[0].sum()


# --- other findings ------------------------------------------------------------------------------


def note_stream_self_wait() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.current_stream())  # later


def note_stream_self_record() -> None:
    x = torch.ones(COUNT, device="cuda")
    x.record_stream(torch.cuda.current_stream())  # later


def note_stream_pending() -> None:
    side = torch.cuda.Stream()
    for _ in range(8):
        x = torch.ones(8 * COUNT, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(2)
        x.record_stream(side)  # later
        del x


# --- running -------------------------------------------------------------------------------------


def patterns(*prefixes: str) -> list[Callable[[], None]]:
    return [v for name, v in globals().items() if name.startswith(prefixes) and callable(v)]


def lines_of(pattern: Callable[[], None]) -> dict[str, int]:
    """Mark -> line."""
    text, first = inspect.getsourcelines(pattern)
    return {
        line.rpartition("# ")[2].strip(): first + number
        for number, line in enumerate(text)
        if line.rstrip().endswith(("# earlier", "# free", "# later"))
    }


def run(pattern: Callable[[], None], mode: str) -> dict[str, Any]:
    waits: list[Any] = []
    kind = torch.cuda.Event
    original = kind.wait
    kind.wait = lambda _event, stream=None: waits.append(getattr(stream, "cuda_stream", None))
    guard = tenure.guard(mode)
    raised = ""
    try:
        pattern()
    except tenure.errors.RaceError as error:
        trace = error.__traceback__
        lines = []
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == __file__:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        raised = f"{error} at {lines[-1]}"
    finally:
        guard.stop()
        guard.stop()
        kind.wait = original
    return {
        "codes": [finding.code for finding in guard.findings],
        "text": str(guard),
        "faults": guard.faults,
        "inserted": [(w.why, w.earlier.line, w.site.line, w.count) for w in guard.inserted],
        "raised": raised,
        "waits": waits,
        "lines": lines_of(pattern),
    }


def under_run(pattern: Callable[[], None]) -> dict[str, Any]:
    """As `tenure run` does it; another dispatch mode is on meanwhile."""
    from torch.utils.flop_counter import FlopCounterMode

    from tenure.live.guards.races import start

    before = torch.cuda.Stream.__dict__.get("__init__"), torch.Tensor.pin_memory
    races = start()
    with FlopCounterMode(display=False):
        pattern()
    races.stop()
    after = torch.cuda.Stream.__dict__.get("__init__"), torch.Tensor.pin_memory
    return {
        "codes": [finding.code for finding in races.findings()],
        "watching": races.watching,
        "restored": before == after,
    }


def begun_late() -> dict[str, Any]:
    """A guard that did not see the write, and one stream alone."""
    side = torch.cuda.Stream()
    x = torch.ones(COUNT, device="cuda")
    with tenure.guard("report") as report, torch.cuda.stream(side):
        x.sum()
    with tenure.guard("sync") as sync:
        x.mul(2)
    with tenure.guard("sync") as late, torch.cuda.stream(side):
        x.sum()
        x.sum()
    waits = [[(w.why, w.count) for w in guard.inserted] for guard in (report, sync, late)]
    return {"codes": [f.code for f in report.findings], "waits": waits}


def own_guard() -> dict[str, Any]:
    """A script under `tenure run` that has a guard of its own."""
    from tenure.live.guards.races import start

    races = start()
    torch.cuda.Stream()
    with tenure.guard("report") as own:
        stream_race_read()
    races.stop()
    return {"own": [f.code for f in own.findings], "ours": [f.code for f in races.findings()]}


def main() -> None:
    global torch  # noqa: PLW0603  a virtual GPU is made before torch is imported
    with tenure.virtual_gpu("h200"):
        import torch as torch_module

        torch = torch_module
        result: dict[str, Any] = {
            mode: {
                pattern.__name__: run(pattern, mode)
                for pattern in patterns("stream_", "healthy_", "note_")
            }
            for mode in ("report", "raise", "sync")
        }
        result["run"] = {
            pattern.__name__: under_run(pattern) for pattern in patterns("stream_", "healthy_")
        }
        result["own"] = own_guard()
        result["late"] = begun_late()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
