"""Claiming payments and signing what settles them, in one commit (contract 5.2; security 5, A-05, A-24, A-25).

Claim, idempotency key, gas of the hour, signer nonce, raw transaction and the slot that ties it to the settlements are
one unit: on disk before anything is sent. Several settlements may share the transaction. What is signed, and whether it
may be, is decided in `hub`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from tollkeeper.core.json_types import JsonObject
from tollkeeper.core.limits import PAYER_UNDER_WAY_MAX, PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.settlement.states import Proof, SettlementKind, State
from tollkeeper.core.x402.verification import Reason
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import counted_together, load_queries, unit_of_work
from tollkeeper.storage.hub.idempotency import IdempotencyKey, bind_key, free_key
from tollkeeper.storage.hub.payers import Overdrawn, Suspended, payer_obstacle
from tollkeeper.storage.hub.settlements import (
    Move,
    Settlement,
    event,
    find_statement,
    hand_out_statement,
    move,
    name_transaction,
    read_row,
)
from tollkeeper.storage.hub.transactions import (
    GasBudget,
    GasLeft,
    RawTransaction,
    add_gas,
    add_signed,
    adopt_transaction,
    gas_left,
    take_nonce,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.storage.engine.database import Steps

# Bounds of claims: settlements under way on a network, and the money that its signer may spend (contract 5.2). A
# settlement is under way if it is claimed and not seen mined. The count is made in the commit that claims, so of any
# number of claims in any number of processes each sees those before it; a settlement that is mined, or fails, makes
# room by that alone. `hub` decides who may have how much of the room. Nor may a signer promise more fees than it can
# pay: a simulation judges each transaction by itself (security A-24).

_BOUND_QUERIES: Final = load_queries("claim_bounds.sql")


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
        """Tell whether there is room for one more."""
        return self.under_way < (self.bounds.total if is_trusted else self.bounds.strangers)

    def can_pay(self, cost: int) -> bool:
        """Tell whether the signer's money lasts for one more."""
        return self.bounds.funds is None or self.promised + cost <= self.bounds.funds.spendable

    def take(self, cost: int) -> None:
        """One more is under way."""
        self.under_way += 1
        self.promised += cost


@unit_of_work
def leeway(bounds: ClaimBounds) -> Steps[Leeway]:
    """Return the room left. The exact promises are looked up only if the signer could not pay the most for each."""
    rows = yield _BOUND_QUERIES.count_under_way(network=bounds.network)
    under_way, funds = rows[0]["settlements"], bounds.funds
    if funds is None:
        return Leeway(bounds, under_way)
    promised = under_way * funds.cost_max
    if promised + funds.cost_max > funds.spendable:
        rows = yield _BOUND_QUERIES.read_promised(network=bounds.network, signer=funds.signer, since_ms=funds.since_ms)
        promised = rows[0]["promised"]
    return Leeway(bounds, under_way, promised)


_QUERIES: Final = load_queries("settlements.sql")


@dataclass(frozen=True, slots=True)
class NewSettlement:
    """Settlement that a claim writes. `payment` and `requirements` are canonical JSON texts, `signer` will settle it.

    `holder` is the process that carries it forward; `alias` is another name of the payment, if it has one. `tenant`:
    for whom it is settled.
    """

    id: str
    key: PaymentKey
    kind: SettlementKind
    pay_to: str
    value: int
    payment: str
    requirements: str
    requirements_hash: str
    confirm: bool
    purchase_data: str | None
    signer: str
    holder: str
    now_ms: int
    alias: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SettlementRequest:
    """One settlement that somebody asks for: the failed row that it would try again, where there is one.

    `gas` counts against the hour's budget, and its tenant's share of it. `balance`: what the payer held when the
    payment was simulated; `used`: nonces of its authorizations that were used by then.
    """

    new: NewSettlement
    known: Settlement | None = None
    key: IdempotencyKey | None = None
    is_trusted: bool = False
    gas: int = 0
    balance: int | None = None
    used: frozenset[str] = frozenset()


class ClaimedSettlement(Enum):
    """Outcomes of a claim."""

    WON = auto()  # claimed and signed by this unit
    LOST = auto()  # somebody else was first: their row
    KEY_TAKEN = auto()  # the key was bound to another request in the meantime; nothing was written
    OVER_BUDGET = auto()  # the hour's gas is used up; nothing was written
    OVER_SHARE = auto()  # the tenant's share of it is; nothing was written
    NO_ROOM = auto()  # too many are under way; nothing was written
    OBSTRUCTED = auto()  # the payer may have nothing more signed now; nothing was written
    NO_FUNDS = auto()  # the signer could not pay for it beside what is under way; nothing was written


@dataclass(frozen=True, slots=True)
class SettlementClaim:
    """`settlement` is the row, also of who was first; `raw` is what to send, where this unit won.

    `obstacle` says what about the payer obstructed it.
    """

    outcome: ClaimedSettlement
    settlement: Settlement | None = None
    raw: RawTransaction | None = None
    obstacle: Overdrawn | Suspended | None = None


@unit_of_work
def claim_and_sign(
    requests: Sequence[SettlementRequest],
    sign: Callable[[int, Sequence[NewSettlement]], tuple[bytes, str]],
    budget: GasBudget,
    bounds: ClaimBounds,
) -> Steps[list[SettlementClaim]]:
    """Claim payments that nobody has claimed, and sign one transaction for all that were won, with the next nonce.

    All requests are of one network and signer; a claim answers the request in its place. `sign` is given the nonce and
    what was won, and is not called where nothing was. Raises: what `sign` raises, with the unit undone.
    """
    yield counted_together(f"claims:{bounds.network}")
    left = yield from gas_left(budget, dict.fromkeys(request.new.tenant for request in requests))
    within = yield from leeway(bounds)
    claims: list[SettlementClaim] = []
    won: list[tuple[NewSettlement, Settlement]] = []
    for request in requests:
        claim = yield from _claim_within(request, within, left)
        claims.append(claim)
        if claim.outcome is ClaimedSettlement.WON and claim.settlement is not None:
            won.append((request.new, claim.settlement))
    if not won:
        return claims
    first = won[0][0]
    nonce = yield from take_nonce(first.key.network, first.signer)
    raw, transaction_hash = sign(nonce, [new for new, _ in won])
    signed = RawTransaction(raw, transaction_hash, first.key.network, first.signer, nonce, first.now_ms)
    attempts = [(row.id, row.attempt) for _, row in won]
    yield from add_signed(signed, attempts, sum(left.taken.values()), left.taken[True])
    rows = {}
    for new, row in won:
        rows[row.id] = yield from _set_signed(new, row, transaction_hash)
    yield from add_gas(budget, left)
    return [
        SettlementClaim(ClaimedSettlement.WON, rows[claim.settlement.id], signed)
        if claim.outcome is ClaimedSettlement.WON and claim.settlement is not None
        else claim
        for claim in claims
    ]


@unit_of_work
def _claim_within(request: SettlementRequest, within: Leeway, left: GasLeft) -> Steps[SettlementClaim]:
    """Claim a payment within the bounds and the budget, and count it in both."""
    gas, is_trusted, tenant = request.gas, request.is_trusted, request.new.tenant
    if not within.has_room(is_trusted=is_trusted):
        return SettlementClaim(ClaimedSettlement.NO_ROOM)
    if not within.can_pay(gas):
        return SettlementClaim(ClaimedSettlement.NO_FUNDS)
    if not left.has(gas, is_trusted=is_trusted):
        return SettlementClaim(ClaimedSettlement.OVER_BUDGET)
    if not left.take(gas, is_trusted=is_trusted, tenant=tenant):
        return SettlementClaim(ClaimedSettlement.OVER_SHARE)
    claim = (yield from _obstructed(request, within.bounds.of_payer)) or (yield from _claim(request))
    if claim.outcome is ClaimedSettlement.WON:
        within.take(gas)
    else:
        left.give_back(gas, is_trusted=is_trusted, tenant=tenant)
    return claim


@unit_of_work
def adopt_and_sign(
    request: SettlementRequest, raw: bytes, transaction_hash: str, signer_nonce: int
) -> Steps[SettlementClaim]:
    """Claim a payment for a transaction that its signer made, and that this database does not remember."""
    claim = yield from _claim(request)
    if claim.outcome is not ClaimedSettlement.WON or claim.settlement is None:
        return claim
    new, row = request.new, claim.settlement
    found = RawTransaction(raw, transaction_hash, new.key.network, new.signer, signer_nonce, new.now_ms)
    yield from adopt_transaction(found, row)
    return SettlementClaim(ClaimedSettlement.WON, (yield from _set_signed(new, row, transaction_hash)), found)


class Overtaken(Exception):  # noqa: N818 - undoes a unit, is no fault
    """Somebody else moved the row in the meantime; the unit was undone."""


@dataclass(frozen=True, slots=True)
class Again:
    """The row as it names its new transaction, and that transaction."""

    settlement: Settlement
    raw: RawTransaction


@unit_of_work
def sign_again(
    known: Settlement, signer: str, sign: Callable[[int], tuple[bytes, str]], budget: GasBudget, *, gas: int
) -> Steps[Again | None]:
    """Sign another transaction for the row's attempt, with the signer's next nonce; the row names it from then on.

    To be used where every transaction of the attempt has lost its nonce without carrying the transfer out, or is of a
    key that is gone and cannot be mined now. None where
    the budget has no room. Raises: Overtaken; what `sign` raises. Either undoes the unit.
    """
    yield counted_together(f"claims:{known.key.network}")
    left = yield from gas_left(budget)
    # Only a trusted gateway's request has purchase data.
    is_trusted = known.purchase_data is not None
    if not left.has(gas, is_trusted=is_trusted):
        return None
    left.go_on(gas, is_trusted=is_trusted)
    nonce = yield from take_nonce(known.key.network, signer)
    raw, transaction_hash = sign(nonce)
    signed = RawTransaction(raw, transaction_hash, known.key.network, signer, nonce, budget.now_ms)
    yield from add_signed(signed, [(known.id, known.attempt)], gas)
    row = yield from name_transaction(known, transaction_hash, budget.now_ms)
    if row is None:
        raise Overtaken
    yield from add_gas(budget, left)
    return Again(row, signed)


@unit_of_work
def withdraw(key: PaymentKey, discard: Callable[[], None], now_ms: int) -> Steps[Settlement | None]:
    """Refuse an order of a payment that nothing is signed for; the row where something is.

    `discard` is called within this unit: what another one signs for the order behind it, is to be undone there.
    """
    row = next((read_row(row) for row in (yield find_statement(key))), None)
    if row is not None and row.state is State.CLAIMED:
        to = Move(State.FAILED, now_ms, proof=Proof.NEVER_SENT, error=Reason.STATE.value)
        moved = yield from move(row, to)
        row = None if moved is None else moved.settlement
    if row is not None and row.state is not State.FAILED:
        return row
    discard()
    return None


@unit_of_work
def hand_out(known: Settlement, key: IdempotencyKey | None, now_ms: int) -> Steps[bool]:
    """Give the row's success to this caller, if nobody has it yet; the caller's key then shows it again.

    Not where the key shows something already: what a caller is told, and what its key shows, is one thing.
    """
    if key is not None and not (yield bind_key(key, known.id, known.attempt, now_ms)):
        return False
    handed = yield hand_out_statement(known, now_ms)
    if key is not None and not handed:
        yield free_key(key)
    return bool(handed)


@unit_of_work
def _obstructed(request: SettlementRequest, most: int) -> Steps[SettlementClaim | None]:
    """The answer to a request whose payer may have nothing more signed; or whose payment somebody else has."""
    new, known = request.new, request.known
    obstacle = yield from payer_obstacle(new.key, new.value, request.balance, request.used, new.now_ms, most)
    if obstacle is None:
        return None
    row = next((read_row(row) for row in (yield find_statement(new.key))), None)
    if row is not None and (known is None or row.version != known.version):
        return SettlementClaim(ClaimedSettlement.LOST, row)
    return SettlementClaim(ClaimedSettlement.OBSTRUCTED, obstacle=obstacle)


@unit_of_work
def _claim(request: SettlementRequest) -> Steps[SettlementClaim]:
    """The row of one request; the key is bound first, because what it binds can be taken back and a claim cannot."""
    new, known, key = request.new, request.known, request.key
    row_id, attempt = (new.id, 1) if known is None else (known.id, known.attempt + 1)
    if key is not None:
        bound = yield bind_key(key, row_id, attempt, new.now_ms)
        if not bound:
            return SettlementClaim(ClaimedSettlement.KEY_TAKEN)
    if known is None:
        rows = yield _QUERIES.insert_settlement(
            id=new.id,
            **new.key.columns,
            pay_to=new.pay_to,
            value=str(new.value),
            alias=new.alias,
            **_terms(new),
        )
    else:
        rows = yield _QUERIES.reclaim_settlement(
            id=known.id, version=known.version, attempts_max=PAYMENT_ATTEMPTS_MAX, **_terms(new)
        )
    if rows:
        row = read_row(rows[0])
        yield event(row, None if known is None else State.FAILED, new.now_ms)
        return SettlementClaim(ClaimedSettlement.WON, row)
    if key is not None:
        yield free_key(key)
    rows = yield find_statement(new.key)
    return SettlementClaim(ClaimedSettlement.LOST, read_row(rows[0]))


@unit_of_work
def _set_signed(new: NewSettlement, row: Settlement, transaction_hash: str) -> Steps[Settlement]:
    rows = yield _QUERIES.set_signed(
        id=row.id,
        version=row.version,
        signer=new.signer,
        transaction_hash=transaction_hash,
        now_ms=new.now_ms,
    )
    signed = read_row(rows[0])
    yield event(signed, State.CLAIMED, new.now_ms, transaction_hash)
    return signed


def _terms(new: NewSettlement) -> JsonObject:
    return {
        "kind": new.kind.value,
        "payment": new.payment,
        "requirements": new.requirements,
        "requirements_hash": new.requirements_hash,
        "confirm": int(new.confirm),
        "purchase_data": new.purchase_data,
        "signer": new.signer,
        "holder": new.holder,
        "tenant": new.tenant,
        "now_ms": new.now_ms,
    }
