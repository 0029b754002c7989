"""The memory of a virtual card: what it records is a run that PyTorch's rules lead to again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.cards import card_named
from tenure.replays import replay
from tenure.virtual import recording
from tenure.virtual.memory import FREE_COMPLETED, FREE_REQUESTED, Memory
from tenure.virtual.running import virtual_settings

MIB = 1 << 20


def memory_of(conf: str = "") -> Memory:
    card = card_named("4GiB")
    return Memory(card, lambda: virtual_settings(card, conf, (2, 11)))


def test_a_free_is_completed_when_no_other_stream_uses_the_block() -> None:
    memory = memory_of()
    address = memory.allocate(32 * MIB)
    memory.record_stream(address, 7)
    memory.free(address)
    assert list(memory.actions)[-1] == FREE_REQUESTED
    memory.allocate(MIB)
    assert FREE_COMPLETED not in memory.actions
    memory.finish(7)
    memory.allocate(MIB)
    assert list(memory.actions).count(FREE_COMPLETED) == 1


def test_blocks_without_other_users_do_not_wait_beside_one_that_does() -> None:
    memory = memory_of()
    lent, own = memory.allocate(32 * MIB), memory.allocate(32 * MIB)
    memory.record_stream(lent, 7)
    memory.free(lent)
    memory.free(own)
    done = [a for a, x in zip(memory.addresses, memory.actions, strict=True) if x == FREE_COMPLETED]
    assert done == [own]


STEP = st.tuples(
    st.sampled_from(["allocate", "allocate", "lend", "free", "free", "finish", "empty"]),
    st.integers(0, 2),  # stream
    st.sampled_from([600, 300_000, 3 * MIB, 14 * MIB, 40 * MIB]),
    st.integers(0, 30),  # which live block
)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, min_size=1, max_size=60))
def test_the_record_replays_to_the_last_address(
    conf: str, steps: list[tuple[str, int, int, int]]
) -> None:
    memory = memory_of(conf)
    live: list[int] = []
    for what, stream, size, which in steps:
        if what == "allocate":
            live.append(memory.allocate(size, stream))
        elif what == "finish":
            memory.finish(0, 1, 2)
        elif what == "empty":
            memory.empty_cache()
        elif live and what == "lend":
            memory.record_stream(live[which % len(live)], stream)
        elif live:
            memory.free(live.pop(which % len(live)))
    if not memory.actions:
        return
    result = replay(recording.trace(memory))
    assert result.compared
    assert (result.address_mismatches, result.segment_mismatches) == (0, 0)
    assert result.end_state_mismatches == 0
