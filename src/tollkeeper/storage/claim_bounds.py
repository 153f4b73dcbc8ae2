"""What claims are held to: how much may be under way on a network, and what its signer may spend (contract 5.2).

Under way is what is claimed and not seen mined. It is counted in the commit that claims, so of any number of claims in
any number of processes each sees those before it; what is mined, or fails, makes room by that alone. Who may have how
much of the room is decided in `hub`. Nor may a signer promise more fees than it can pay: a simulation judges each
transaction by itself (security A-24).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.core.limits import PAYER_UNDER_WAY_MAX
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from tollkeeper.storage.database import Unit

_QUERIES: Final = load_queries("claim_bounds.sql")


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
    """What one unit may still begin. `promised`: what is under way costs the signer at most."""

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


def leeway(bounds: ClaimBounds) -> Unit[Leeway]:
    """What is left of them. What exactly is promised is looked up where the signer could not pay the most for each."""
    rows = yield _QUERIES.count_under_way(network=bounds.network)
    under_way, funds = rows[0]["settlements"], bounds.funds
    if funds is None:
        return Leeway(bounds, under_way)
    promised = under_way * funds.cost_max
    if promised + funds.cost_max > funds.spendable:
        rows = yield _QUERIES.read_promised(network=bounds.network, signer=funds.signer, since_ms=funds.since_ms)
        promised = rows[0]["promised"]
    return Leeway(bounds, under_way, promised)
