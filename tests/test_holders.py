"""Who holds a tensor: every kind of holder, on the CPU, without keeping or changing anything."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: holders need tensors")

from tenure import holders  # noqa: E402
from tenure.errors import UsageError  # noqa: E402

GLOBAL: list[Any] = []


def held(x: object) -> tuple[str, str]:
    """Heading and chain of the one holder of a tensor."""
    (one,) = holders(x).holders
    return one.heading.value, one.chain


def test_a_local_variable_is_named_with_its_function_and_line() -> None:
    mine = torch.ones(100)
    heading, chain = held(mine)
    assert heading == "variables"
    assert chain.startswith("local mine of test_a_local_variable")
    assert "test_holders.py:" in chain


def test_parameters_gradients_and_optimizer_state_are_told_apart() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    weight = net[0].weight
    assert held(weight)[0] == "parameters"
    assert held(weight)[1].endswith(".0.weight")
    assert held(weight.grad)[0] == "gradients"
    state = optimizer.state[weight]["exp_avg"]
    del weight
    assert held(state)[0] == "optimizer state"


def test_a_container_is_written_as_python_writes_it() -> None:
    history = [{"loss": torch.ones(100)}]
    heading, chain = held(history[0]["loss"].untyped_storage())
    assert heading == "containers"
    assert chain.endswith("[0]['loss']")


def test_what_only_the_graph_holds_is_named_by_its_node() -> None:
    w = torch.ones(64, requires_grad=True)
    middle = torch.tanh(w)
    storage = middle.untyped_storage()
    total = (middle * middle).sum()
    del middle
    heading, chain = held(storage)
    assert heading == "autograd graph"
    assert "local total of" in chain
    assert "MulBackward0 -> saved" in chain
    del total


def test_a_tensor_set_on_ctx_is_found_after_backward() -> None:
    class OnCtx(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Any, big: Any) -> Any:
            ctx.big = big
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.big, None

    big = torch.ones(1000)
    storage = big.untyped_storage()
    loss = OnCtx.apply(torch.ones(1000, requires_grad=True), big)
    del big
    loss.backward()
    heading, chain = held(storage)
    assert heading == "ctx attributes"
    assert ".big (set on ctx)" in chain


def test_what_a_hook_stores_is_the_hooks() -> None:
    net = torch.nn.Linear(8, 8)
    seen: list[Any] = []
    net.register_forward_hook(lambda _m, _i, output: seen.append(output))
    net(torch.ones(4, 8))
    assert held(seen[0].untyped_storage())[0] == "hooks"


def test_an_exceptions_frames_are_named() -> None:
    def fail() -> None:
        lost = torch.ones(1000)
        GLOBAL.append(lost.untyped_storage())
        raise ValueError

    saved: BaseException | None = None
    try:
        fail()
    except ValueError as error:
        saved = error
    heading, chain = held(GLOBAL.pop())
    assert heading == "exceptions"
    assert "__traceback__ -> local lost of fail" in chain
    del saved


def test_a_dropped_cycle_is_found_and_left_to_the_collector() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self
            self.data = torch.ones(1000)

    gc.disable()
    try:
        node = Node()
        storage = node.data.untyped_storage()
        alive = weakref.ref(node)
        del node
        heading, chain = held(storage)
        assert heading == "reference cycles"
        assert chain == "Node.me = itself"
        assert alive() is not None
    finally:
        gc.enable()
    gc.collect()
    assert alive() is None


def test_a_gradient_made_with_create_graph_leads_back_to_its_parameter() -> None:
    w = torch.ones(1000, requires_grad=True)
    with pytest.warns(UserWarning, match="create_graph"):
        (w**3).sum().backward(create_graph=True)
    found = holders(device="cpu")
    assert any(cycle.through_graph for _, _, cycle in found.live_cycles)
    w.grad = None


def test_every_live_byte_is_under_one_heading() -> None:
    kept = [torch.ones(1000), torch.ones(1000)[:10]]
    found = holders(device="cpu")
    assert len({h.storage for h in found.holders}) == len(found.holders)
    assert sum(row.bytes for row in found.rows) == found.live
    view = next(h for h in found.holders if h.storage == kept[1].untyped_storage()._cdata)
    assert (view.bytes, view.visible) == (4000, 40)


def test_looking_keeps_nothing_alive_and_runs_nothing_of_the_users() -> None:
    class Trap:
        def __init__(self) -> None:
            self.data = torch.ones(1000)

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        @property
        def loud(self) -> Any:
            raise AssertionError

    trap = Trap()
    before = sys.getrefcount(trap.data)
    gone = weakref.ref(trap.data)
    holders(device="cpu")
    after = sys.getrefcount(trap.data)
    assert after == before
    trap.__dict__.clear()
    assert gone() is None


def test_no_pack_hook_is_run() -> None:
    ran: list[Any] = []
    w = torch.ones(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, ran.append):
        out = torch.tanh(w * 2).sum()
    holders(device="cpu")
    assert not ran
    del out


def test_a_list_that_is_being_filled_is_named_as_such() -> None:
    first: list[int] = []
    seen: list[Any] = []

    def piece(number: int) -> Any:
        made = torch.ones(1000)
        if number == 0:
            first.append(made.untyped_storage()._cdata)
        if number == 3:
            seen.extend(h for h in holders(device="cpu").holders if h.storage == first[0])
        return made

    assert len([piece(number) for number in range(5)]) == 5
    (one,) = seen
    assert one.heading.value == "the running operation"
    assert one.chain.startswith("a list that is being filled")


def test_an_address_on_a_gpu_finds_the_storage_it_lies_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = torch.ones(1000)
    where = {mine.untyped_storage()._cdata: 1 << 40}
    monkeypatch.setattr(
        "tenure.lifetimes.walking.device_address",
        lambda tensor, _place: where.get(tensor.untyped_storage()._cdata, 0),
    )
    (one,) = holders((1 << 40) + 3999, device="cpu").holders
    assert one.chain.startswith("local mine of")
    assert holders((1 << 40) + 4000, device="cpu").holders == ()


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a tensor, a storage nor an address"):
        holders("text")
