"""How many settlements may be under way on a network, and how many there are (contract 5.2; security A-24).

Under way is what is claimed and not seen mined. It is counted in the commit that claims, so of any number of claims in
any number of processes each sees those before it; what is mined, or fails, makes room by that alone. Who may have how
much of the room is decided in `hub`. Nor may a signer promise more fees than it can pay: a simulation judges each
transaction by itself.
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
class Funds:
    """What a signer may spend, and what one of its transactions costs at most.

    What it signed before `since_ms` cannot be executed any more, or has been.
    """

    signer: str
    spendable: int
    cost_max: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Room:
    """`total` may be under way on a network, `of_payer` of one payer; with `strangers` no stranger's is begun.

    `funds` None: nothing that is under way costs its signer anything yet, or he is asked by himself.
    """

    network: str
    total: int
    strangers: int
    of_payer: int = PAYER_UNDER_WAY_MAX
    funds: Funds | None = None


@dataclass(slots=True)
class RoomLeft:
    """What one unit may still begin. `promised`: what is under way costs the signer at most."""

    room: Room
    under_way: int
    promised: int = 0

    def has_any(self, *, is_trusted: bool) -> bool:
        """Is there room for one more?"""
        return self.under_way < (self.room.total if is_trusted else self.room.strangers)

    def can_pay(self, cost: int) -> bool:
        """Does the signer's money last for one more?"""
        return self.room.funds is None or self.promised + cost <= self.room.funds.spendable

    def take(self, cost: int) -> None:
        """One more is under way."""
        self.under_way += 1
        self.promised += cost


def room_left(room: Room) -> Unit[RoomLeft]:
    """What is under way now. What exactly it costs is looked up where the signer could not pay the most for each."""
    rows = yield _QUERIES.count_under_way(network=room.network)
    under_way, funds = rows[0]["settlements"], room.funds
    if funds is None:
        return RoomLeft(room, under_way)
    promised = under_way * funds.cost_max
    if promised + funds.cost_max > funds.spendable:
        rows = yield _QUERIES.read_promised(network=room.network, signer=funds.signer, since_ms=funds.since_ms)
        promised = rows[0]["promised"]
    return RoomLeft(room, under_way, promised)
