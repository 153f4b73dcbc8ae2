"""Bounds of claims: settlements under way on a network, and the money that its signer may spend (contract 5.2).

A settlement is under way if it is claimed and not seen mined. The count is made in the commit that claims, so of any
number of claims in any number of processes each sees those before it; a settlement that is mined, or fails, makes room
by that alone. `hub` decides who may have how much of the room. Nor may a signer promise more fees than it can pay: a
simulation judges each transaction by itself (security A-24).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import PAYER_UNDER_WAY_MAX
from tollkeeper.storage.engine.database import unit_of_work
from tollkeeper.storage.engine.queries import load_queries

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Steps

_QUERIES: Final = load_queries("claim_bounds.sql")


@dataclass(frozen=True, slots=True)
class Funds:
    """Money that a signer may spend, and the most that one of its transactions costs.

    Transactions that it signed before `since_ms` cannot be executed any more, or have been.
    """

    signer: str
    spendable: int
    cost_max: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class ClaimBounds:
    """`total` may be under way on a network, `of_payer` of one payer; with `strangers` no stranger's is begun.

    `funds` None: nothing that is under way costs its signer anything yet, or he is asked by himself.
    """

    network: str
    total: int
    strangers: int
    of_payer: int = PAYER_UNDER_WAY_MAX
    funds: Funds | None = None


@dataclass(slots=True)
class Leeway:
    """Room that one unit has to begin settlements. `promised`: the most that those under way cost the signer."""

    bounds: ClaimBounds
    under_way: int
    promised: int = 0

    def has_room(self, *, is_trusted: bool) -> bool:
        """Is there room for one more?"""
        return self.under_way < (self.bounds.total if is_trusted else self.bounds.strangers)

    def can_pay(self, cost: int) -> bool:
        """Does the signer's money last for one more?"""
        return self.bounds.funds is None or self.promised + cost <= self.bounds.funds.spendable

    def take(self, cost: int) -> None:
        """One more is under way."""
        self.under_way += 1
        self.promised += cost


@unit_of_work
def leeway(bounds: ClaimBounds) -> Steps[Leeway]:
    """Return the room left. The exact promises are looked up only if the signer could not pay the most for each."""
    rows = yield _QUERIES.count_under_way(network=bounds.network)
    under_way, funds = rows[0]["settlements"], bounds.funds
    if funds is None:
        return Leeway(bounds, under_way)
    promised = under_way * funds.cost_max
    if promised + funds.cost_max > funds.spendable:
        rows = yield _QUERIES.read_promised(network=bounds.network, signer=funds.signer, since_ms=funds.since_ms)
        promised = rows[0]["promised"]
    return Leeway(bounds, under_way, promised)
