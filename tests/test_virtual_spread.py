"""Virtual GPU: how far the peaks move if what was guessed is otherwise."""

from __future__ import annotations

from tenure.cards import card_named
from tenure.settings import AllocatorSettings
from tenure.virtual.memory import Memory
from tenure.virtual.spread import peak_ranges

MIB = 1 << 20


def memory_after(*, guessed: bool, size: int) -> Memory:
    """Of a run in which a workspace leaves a block that the next tensors do or do not fit."""
    memory = Memory(card_named("h200"), AllocatorSettings)
    for step in range(6):
        workspace = memory.allocate(size + step * 24 * MIB, guess=guessed)
        memory.free(workspace)
        memory.allocate(size + step * 24 * MIB)
    return memory


def test_what_is_sure_does_not_move() -> None:
    ranges = peak_ranges(memory_after(guessed=False, size=100 * MIB))
    assert ranges == {"allocated": (1.0, 1.0), "reserved": (1.0, 1.0)}


def test_guesses_that_make_room_for_others_move_the_peak() -> None:
    least, most = peak_ranges(memory_after(guessed=True, size=100 * MIB))["reserved"]
    assert least <= 1.0 < most < 2.0


def test_a_guess_that_was_live_at_the_peak_moves_what_is_allocated() -> None:
    memory = Memory(card_named("h200"), AllocatorSettings)
    memory.allocate(500 * MIB)
    for size in range(400, 408):
        memory.free(memory.allocate(size * MIB, guess=True))
    least, most = peak_ranges(memory)["allocated"]
    assert least < 1.0 < most < 1.02


def test_small_guesses_move_nothing() -> None:
    memory = Memory(card_named("h200"), AllocatorSettings)
    for size in range(1000, 100_000, 1000):
        memory.allocate(size, guess=True)
    assert peak_ranges(memory)["reserved"] == (1.0, 1.0)
