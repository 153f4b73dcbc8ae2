"""The port of a chain's family: the verbs by which a settlement is carried out, in their order (contract 5.2).

`flow` and `recovery` ask for them and know no chain. `hub.evm.family` and `hub.solana.family` implement them, with the
same names in the same order. What a verb raises beside RpcUnavailable and StorageError is said at it.
`SettlementParts` is what everything in a hub process that settles has in common.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Expected, Submission
from tollkeeper.core.settlement.states import State
from tollkeeper.core.x402.version1 import payment_body, requirements_body
from tollkeeper.hub.settlement.orders import AccountT, AccountT_contra, PayloadT
from tollkeeper.hub.settlement.requests import canonical_json
from tollkeeper.storage.hub.claims import NewSettlement, SettlementRequest
from tollkeeper.storage.hub.settlements import Move, reopen_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.core.settlement.states import Depths
    from tollkeeper.core.x402.verification import Reason
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.hub.settlement.orders import Order, PriorOutcome, SettlingAccount
    from tollkeeper.hub.signer_pool import NamedSigner, Relayer
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.hub.claims import SettlementClaim
    from tollkeeper.storage.hub.payers import Overdrawn
    from tollkeeper.storage.hub.settlements import Settlement
    from tollkeeper.storage.hub.transactions import RawTransaction


_LOG: Final = structlog.get_logger("tollkeeper.hub")


# Transitions of a settlement that are proven, and how a sighting becomes one (contract 5.2; security 5).


class Contradiction(Exception):  # noqa: N818 - what the chain shows, not a fault of ours
    """Our own transaction used the payment and moved nothing: a node that lies, or a token that is no USDC."""


class Unexplained(RpcUnavailable):
    """The payment is used, and a node does not show by which transaction: one without old logs, or that lies.

    As where a node does not answer, the next one is asked.
    """


@dataclass(frozen=True, slots=True)
class ProvenTransition:
    """The row, perhaps under another of its transactions, and the transition that is proven, if any."""

    settlement: Settlement
    move: Move | None = None


def transferred(row: Settlement, sighting: Sighting, now_ms: int) -> ProvenTransition:
    """Return the transition that a sighted transfer proves."""
    to = State.CONFIRMED if sighting.deep else State.MINED
    if to is row.state:
        return ProvenTransition(row)
    return ProvenTransition(row, Move(to, now_ms, block_number=sighting.block_number, block_hash=sighting.block_hash))


def expected_transfer(row: Settlement, depths: Depths, transaction_hash: str = "") -> Expected:
    """Return the transfer that the row's transaction (or that one) must show on the chain, and how deep."""
    key = row.key
    named = transaction_hash or row.transaction_hash
    return Expected(named, key.asset, key.payer, row.pay_to, row.value, key.nonce, depths.of(row.value))


@dataclass(slots=True, eq=False)
class Outgoing:
    """A stored transaction, and the node's answer to it: sent once for all settlements that it carries."""

    raw: RawTransaction
    sent: asyncio.Future[Submission] | None = None


class Sender:
    """Hands stored transactions to the nodes, in tasks that no caller's leaving ends (security F15)."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._sending: set[asyncio.Task[Submission]] = set()

    def send(self, account: SettlingAccount, outgoing: Outgoing) -> asyncio.Future[Submission]:
        """Begin to send, once for all settlements of the transaction; the result is the node's answer."""
        if outgoing.sent is None:
            task = asyncio.get_running_loop().create_task(self._send(account, outgoing.raw))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            outgoing.sent = task
        return outgoing.sent

    async def _send(self, account: SettlingAccount, raw: RawTransaction) -> Submission:
        if not self._membership.is_current():
            _LOG.error("not_sent_by_a_process_whose_lease_ended", transaction=raw.hash)
            return Submission.UNCLEAR
        return await account.chain.submit(raw.raw, raw.hash)


@dataclass(frozen=True, slots=True)
class SettlementParts:
    """Database, clock, this process among those that share the database, metrics, and who sends."""

    database: Database
    clock_ms: Callable[[], int]
    membership: Membership
    metrics: HubMetrics
    sender: Sender

    def claim_of(
        self,
        order: Order[AccountT, PayloadT],
        known: Settlement | None,
        row_id: str,
        *,
        pay_to: str,
        value: int,
        signer: str,
        gas: int,
        alias: str = "",
        **kept: int,
    ) -> SettlementRequest:
        """Return the claim of an order. `kept`: what its family keeps beside the payment."""
        request = order.request
        new = NewSettlement(
            id=row_id,
            key=order.key,
            kind=order.kind,
            pay_to=pay_to,
            value=value,
            payment=json.dumps({**payment_body(order.payment), **kept}, separators=(",", ":")),
            requirements=canonical_json(requirements_body(order.requirements)),
            requirements_hash=order.requirements_hash,
            confirm=request.options.confirm,
            purchase_data=None if order.purchase_data is None else canonical_json(order.purchase_data),
            signer=signer,
            holder=self.membership.id,
            now_ms=self.clock_ms(),
            alias=alias,
            tenant=request.asker.tenant,
        )
        return SettlementRequest(new, known, request.idempotency, is_trusted=request.asker.is_trusted, gas=gas)

    async def reopen(self, rows: Sequence[Settlement], detail: str) -> int:
        """Make rows pending again whose block is gone, in one commit; how many. Raises: StorageError."""
        return await self.database.run(reopen_all(rows, self.membership.id, self.clock_ms(), detail))


@dataclass(frozen=True, slots=True)
class Claimed:
    """Result of a claim. `outgoing`: the transaction of the settlement, where the claim was won."""

    claim: SettlementClaim
    relayer: Relayer[NamedSigner]
    outgoing: Outgoing | None = None

    def let_go(self) -> None:
        """Count the settlement no more among those that requests carry."""
        self.relayer.in_flight -= 1


TermsT = TypeVar("TermsT")


class ChainFamily(Protocol[AccountT, PayloadT, TermsT]):
    """The verbs. `TermsT`: what a simulation found that a claim needs."""

    async def open(self, account: AccountT) -> None:
        """Make the signers of a network ready to sign, before it is used."""

    async def simulate(self, order: Order[AccountT, PayloadT], *, with_balance: bool) -> TermsT | Reason:
        """Ask whether the chain would take the payment now: on which terms, or why not.

        `with_balance`: the payer's balance is read too, because other payments of the payer may be under way.
        """

    async def claim(
        self, order: Order[AccountT, PayloadT], known: Settlement | None, row_id: str, terms: TermsT
    ) -> Claimed:
        """Claim the payment, sign, and store the transaction, in one commit. Raises: UNAVAILABLE; GivenUpError."""

    async def find_out(self, account: AccountT, row: Settlement) -> ProvenTransition:
        """Return what became of a row whose transaction is not seen, or failed: made, failed by proof, or expired.

        Raises: Unexplained, Contradiction.
        """

    async def prior(self, account: AccountT, payment: Payment, reason: Reason) -> PriorOutcome | None:
        """Return the earlier use of a payment that a verification refuses for this reason; None for none.

        Raises: UNAVAILABLE.
        """

    async def forgotten(self, order: Order[AccountT, PayloadT], reason: Reason) -> TermsT | PriorOutcome | None:
        """Return the earlier use of a payment that is not in our books, and that a settlement is refused for.

        Terms, where one of our signers made the payment: the database, restored from a backup, forgot it, and by these
        terms a claim adopts the transaction. None where it was not used.
        """

    async def balance_now(self, order: Order[AccountT, PayloadT], terms: TermsT, overdrawn: Overdrawn) -> TermsT:
        """Return the terms with the payer's balance of now. Raises: UNAVAILABLE where it seems not to last."""

    def same_payment(self, order: Order[AccountT, PayloadT], row: Settlement) -> bool:
        """Say whether the order pays whom the row names, and as much."""


@dataclass(slots=True)
class PoolView:
    """Stored transactions that are not on the chain: their hashes, and those of them that a node has.

    `chain_seconds`: the latest block's time.
    """

    waiting: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    chain_seconds: int = 0


class NetworkWatch(Protocol[AccountT_contra]):
    """Work of recovery on a network beside looking at rows."""

    async def look(self, account: AccountT_contra, *, thoroughly: bool) -> PoolView:
        """Watch what was told already, and keep the signers' transactions moving."""

    def is_overdue(self, row: Settlement, view: PoolView) -> bool:
        """Say whether an unseen transaction is worth finding out about. Raises: ValueError, KeyError, TypeError."""
