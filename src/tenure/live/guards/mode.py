"""The dispatch mode of a guard: each operator's accesses, on the stream it runs on."""

# ruff: noqa: SLF001  identities of storages, stacks of modes: PyTorch has no public names for them

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tenure.live.dispatch import watching_mode
from tenure.live.guards.operators import (
    Plan,
    Sort,
    has_mask,
    plan_of,
    storage_of,
    tensors_in,
    tensors_of,
)
from tenure.live.guards.sites import user_site

if TYPE_CHECKING:
    from tenure.live.guards.recorder import Recorder
    from tenure.streams import Site, StreamId, Use

_TRACED = frozenset({"FakeTensor", "FunctionalTensor"})  # tensors without data


class Work:
    """One operator's call."""

    __slots__ = ("host", "number", "plan", "site", "stream", "uses")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stream: StreamId | None = None
        self.number = 0
        self.uses: list[Use] = []
        self.host: list[Use] = []
        self.site: Site | None = None

    def line(self) -> Site:
        """The user's line, looked up once."""
        if self.site is None:
            self.site = user_site()
        return self.site


class Operators:
    """Follows operators for a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        torch: Any = sys.modules["torch"]
        self.recorder = recorder
        self._plans: dict[Any, Plan] = {}
        self._node = torch._C._current_autograd_node

    def call(self, function: Any, arguments: Any, named: Any) -> Any:
        """Runs an operator, looked at from both sides."""
        plan = self._plans.get(function)
        if plan is None:
            plan = self._plans[function] = plan_of(function)
        recorder = self.recorder
        if plan.sort is Sort.NOTHING or not recorder.on:
            return function(*arguments, **named)
        if plan.sort is Sort.RECORD:
            told = recorder.quietly(recorder.recorded, *arguments[:2])
            return None if told is False else function(*arguments, **named)
        if recorder.capturing:
            return function(*arguments, **named)
        recorder.operators += 1
        work = Work(plan)
        recorder.quietly(self._before, work, arguments, named)
        result = function(*arguments, **named)
        recorder.quietly(self._after, work, arguments, named, result)
        return result

    def _before(self, work: Work, arguments: Any, named: Any) -> None:
        plan, recorder = work.plan, self.recorder
        if plan.sort is Sort.COPY:
            self._gather_copy(work, arguments, named)
        else:
            for tensor, written in tensors_of(plan, arguments, named):
                self._gather(work, tensor, writes=written)
        if work.host:
            recorder.host_access(work.host, plan.name, work.line())
        if work.stream is None:
            return
        recorder.in_backward(self._node(), work.stream)
        recorder.check(work.stream, work.uses, plan.name, work.line())
        if plan.sort is not Sort.COLLECTIVE:
            work.number = recorder.launch(work.stream, work.uses, plan.name, work.line())

    def _gather(self, work: Work, tensor: Any, *, writes: bool) -> None:
        recorder = self.recorder
        if tensor.is_cuda:
            if work.stream is None:
                work.stream = recorder.device.current(tensor.device.index or 0)
            use = recorder.use(tensor, writes=writes)
            if use is not None:
                work.uses.append(use)
        elif recorder.host_keys:
            use = self._host_use(tensor, writes=writes)
            if use is not None:
                work.host.append(use)

    def _host_use(self, tensor: Any, *, writes: bool) -> Use | None:
        """What touching a tensor of the host means, if a copy may still touch it too."""
        storage = storage_of(tensor)
        if storage is None or storage._cdata not in self.recorder.host_keys:
            return None
        return self.recorder.use(tensor, writes=writes)

    def _gather_copy(self, work: Work, arguments: Any, named: Any) -> None:
        """A copy's two ends. Across the border the device touches the host's memory as well."""
        recorder = self.recorder
        ends = [(arguments[0], False)]
        if work.plan.name == "copy_":
            ends = [(arguments[1], False), (arguments[0], True)]
        on_device = [tensor.is_cuda for tensor, _ in ends]
        target = named.get("device")
        if work.plan.name == "_to_copy" and target is not None:
            on_device.append(target.type == "cuda")
        crosses = len(set(on_device)) > 1
        for tensor, writes in ends:
            if tensor.is_cuda or not crosses:
                self._gather(work, tensor, writes=writes)
        if not crosses:
            self._meet_devices(work, ends, target)
            return
        if work.stream is None:  # from the host, to a device not yet seen in an argument
            work.stream = recorder.device.current(_index(target, recorder))
        for tensor, writes in ends:
            if tensor.is_cuda:
                continue
            if _does_not_block(work.plan, arguments, named) and recorder.is_pinned(tensor):
                use = recorder.use(tensor, writes=writes)
                if use is not None:
                    recorder.host_keys.add(use.key)
            else:
                use = self._host_use(tensor, writes=writes)
            if use is not None:
                work.uses.append(use)

    def _meet_devices(self, work: Work, ends: list[tuple[Any, bool]], target: Any) -> None:
        """A copy between two devices runs on the source's stream; both sides wait."""
        recorder, source = self.recorder, work.stream
        if source is None:
            return
        index = ends[-1][0].device.index if len(ends) > 1 else _index(target, recorder, source)
        if index is not None and index != source.device:
            recorder.stream_waited_for(source, recorder.device.current(index))

    def _after(self, work: Work, arguments: Any, named: Any, result: Any) -> None:
        plan, recorder = work.plan, self.recorder
        made = [t for t in tensors_in(result) if t.is_cuda]
        if made and plan.sort is not Sort.COLLECTIVE:
            self._note_made(work, made)
        if work.stream is None:
            if named.get("pin_memory") and not recorder.device.real:
                recorder.pin(result)
            return
        recorder.after(work.stream, work.number, work.uses)
        if plan.sort is Sort.COPY:
            self._finish_copy(work, arguments, named, result)
        elif plan.waits or has_mask(plan, arguments, named):
            recorder.host_waited_for(work.stream)

    def _note_made(self, work: Work, made: list[Any]) -> None:
        recorder = self.recorder
        for tensor in made:
            storage = storage_of(tensor)
            block = None
            if storage is not None:
                block = recorder.checker.blocks.get(storage._cdata)
            if storage is None or (block is not None and block.bytes):
                continue
            stream = recorder.device.current(tensor.device.index or 0)
            if work.stream is None:
                work.stream = stream
                work.number = recorder.launch(stream, (), work.plan.name, work.line())
            number = work.number
            if stream != work.stream:  # the far end of a copy between devices
                recorder.stream_waited_for(stream, work.stream)
                number = recorder.launch(stream, (), work.plan.name, work.line())
            recorder.made(tensor, stream, number, work.plan, work.line(), filled=work.plan.fills)

    def _finish_copy(self, work: Work, arguments: Any, named: Any, result: Any) -> None:
        """The host waits for a copy across the border unless it was told not to and need not."""
        recorder, stream = self.recorder, work.stream
        source = arguments[1] if work.plan.name == "copy_" else arguments[0]
        if stream is None:
            return
        if source.is_cuda and result.is_cuda:
            index = result.device.index or 0
            if index != stream.device:
                recorder.stream_waited_for(recorder.device.current(index), stream)
            return
        if source.is_cuda == result.is_cuda:
            return
        if not _does_not_block(work.plan, arguments, named):
            recorder.host_waited_for(stream)
        elif source.is_cuda:
            # PyTorch pins what it makes for such a copy; into other memory it waits.
            pins = work.plan.name == "_to_copy" and not recorder.device.real
            if not pins and not recorder.is_pinned(result):
                recorder.host_waited_for(stream)
            elif work.plan.name == "_to_copy":
                self._host_result(work, result, stream)

    def _host_result(self, work: Work, result: Any, stream: StreamId) -> None:
        recorder = self.recorder
        use = recorder.use(result, writes=True)
        if use is None:
            return
        recorder.host_keys.add(use.key)
        work.number = recorder.launch(stream, [use], work.plan.name, work.line())
        recorder.after(stream, work.number, [use])


def _does_not_block(plan: Plan, arguments: Any, named: Any) -> bool:
    if plan.name == "copy_" and len(arguments) > 2:
        return bool(arguments[2])
    return bool(named.get("non_blocking", False))


def _index(target: Any, recorder: Recorder, source: StreamId | None = None) -> int:
    """The index of a copy's target device."""
    if target is None or target.type != "cuda":
        return source.device if source is not None else recorder.device.current_device()
    return int(target.index) if target.index is not None else recorder.device.current_device()


def dispatch_mode(operators: Operators) -> Any:
    """A dispatch mode that hands every operator to `operators`."""

    class GuardMode(watching_mode()):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for kind in types:
                if kind.__name__ in _TRACED and operators.recorder.device.real:
                    return func(*args, **(kwargs or {}))  # torch.compile looks ahead
                if hasattr(kind, "__tensor_flatten__"):
                    return NotImplemented  # it unwraps itself; its parts come here then
            return operators.call(func, args, kwargs or {})

    return GuardMode()


def push_below(mode: Any) -> None:
    """Makes a mode the outermost, so that modes entered before may leave in their order."""
    stack: Any = sys.modules["torch"]._C
    above = [
        stack._pop_torch_dispatch_stack(None) for _ in range(stack._len_torch_dispatch_stack())
    ]
    mode.__enter__()
    for other in reversed(above):
        stack._push_on_torch_dispatch_stack(other)


def remove(mode: Any) -> None:
    """Takes a mode out of this thread's stack, wherever in it."""
    stack: Any = sys.modules["torch"]._C
    above = []
    while stack._len_torch_dispatch_stack():
        top = stack._get_dispatch_stack_at(stack._len_torch_dispatch_stack() - 1)
        if top is mode:
            mode.__exit__(None, None, None)
            break
        above.append(stack._pop_torch_dispatch_stack(None))
    for other in reversed(above):
        stack._push_on_torch_dispatch_stack(other)
