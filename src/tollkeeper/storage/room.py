"""How many settlements may be under way on a network, and how many there are (contract 5.2; security A-24).

Under way is what is claimed and not seen mined. It is counted in the commit that claims, so of any number of claims in
any number of processes each sees those before it; what is mined, or fails, makes room by that alone. Who may have how
much of the room is decided in `hub`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import PAYER_UNDER_WAY_MAX
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from tollkeeper.storage.database import Unit

_QUERIES: Final = load_queries("room.sql")


@dataclass(frozen=True, slots=True)
class Room:
    """`total` may be under way on a network, `of_payer` of one payer; with `strangers` no stranger's is begun."""

    network: str
    total: int
    strangers: int
    of_payer: int = PAYER_UNDER_WAY_MAX


@dataclass(slots=True)
class RoomLeft:
    """What one unit may still begin."""

    room: Room
    under_way: int

    def has_any(self, *, is_trusted: bool) -> bool:
        """Is there room for one more?"""
        return self.under_way < (self.room.total if is_trusted else self.room.strangers)


def room_left(room: Room) -> Unit[RoomLeft]:
    """What is under way now."""
    rows = yield _QUERIES.count_under_way(network=room.network)
    return RoomLeft(room, rows[0]["settlements"])
