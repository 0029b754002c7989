"""What was on the device when a request failed, where the record has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.cards import CARDS
from tenure.traces import Action
from tenure.units import GIB

if TYPE_CHECKING:
    from tenure.replays import Replay

MOST_OUTSIDE = 3 * GIB  # bytes of context, libraries and small neighbours, to tell a card by


@dataclass(frozen=True)
class DeviceUse:
    """The device's memory at one moment, in bytes.

    Attributes:
        reserved: What PyTorch had got from the driver.
        free: What the driver said was free.
        total: All of the card; None if it cannot be told.
        card: Its name; None likewise. Told by its size alone.
    """

    reserved: int
    free: int
    total: int | None
    card: str | None

    @property
    def outside(self) -> int | None:
        """Context, libraries and other processes; None if the total is unknown."""
        return None if self.total is None else self.total - self.reserved - self.free


def device_use(replay: Replay, reserved: int) -> DeviceUse | None:
    """The device at the first recorded out-of-memory; None if the record has none.

    Args:
        replay: The recording, replayed.
        reserved: Bytes reserved just before the request failed.
    """
    failed, events = replay.first_oom, replay.trace.events
    if failed is None or not replay.compared or events.action[failed.event] != Action.OOM:
        return None
    free = int(events.address[failed.event])
    known = reserved + free
    card = next((c for c in CARDS if known <= c.total <= known + MOST_OUTSIDE), None)
    return DeviceUse(reserved, free, card.total if card else None, card.title if card else None)
