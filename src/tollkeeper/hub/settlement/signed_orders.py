"""From an order that the chain would take to a transaction on its way (contract 5.2; security 5, A-24, A-25, F15).

Claim, budget, nonce, signature and raw transaction are one commit; only then is anything sent, at once and without
waiting for a block. Orders that come while many are under way share a transaction, where the network has a contract
that carries several: one commit claims them all, and what was won is one call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from tollkeeper.api import new_request_id
from tollkeeper.chains.evm.chain import Submission
from tollkeeper.core.x402.version1 import requirements_body
from tollkeeper.hub.api.requests import canonical_json
from tollkeeper.hub.evm.batch_window import Gathering
from tollkeeper.hub.settlement.orders import GivenUpError, payment_text
from tollkeeper.storage.hub.claims import (
    ClaimedSettlement,
    NewSettlement,
    Overtaken,
    SettlementClaim,
    SettlementRequest,
    adopt_and_sign,
    claim_and_sign,
    sign_again,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tollkeeper.chains.evm.batcher import Carrier
    from tollkeeper.chains.evm.chain import Fees
    from tollkeeper.core.evm.signed_transactions import SignedTransaction
    from tollkeeper.core.x402.version1 import EvmPayload
    from tollkeeper.hub.accounts import SettlingAccount
    from tollkeeper.hub.evm.signer_pool import Relayer
    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.hub.settlements import Settlement
    from tollkeeper.storage.hub.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")


@dataclass(frozen=True, slots=True)
class SignedOrder:
    """Result of an order. If it was won, `sent` ends with the node's answer, for all that share it."""

    claim: SettlementClaim
    relayer: Relayer
    sent: asyncio.Task[Submission] | None = None


@dataclass(frozen=True, slots=True)
class FeeTerms:
    """Fees that a transaction may pay per gas, and the payer's balance.

    Its authorizations in `used` took part of that.
    """

    fees: Fees
    balance: int
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Ready:
    """An order that the chain would take, and the row that it will have."""

    order: Order
    known: Settlement | None
    row_id: str
    terms: FeeTerms


class Signing:
    """Signing of one process."""

    def __init__(self, database: Database, clock_ms: Callable[[], int], membership: Membership) -> None:
        self._database = database
        self._clock_ms = clock_ms
        self._membership = membership
        self._sending: set[asyncio.Task[Submission]] = set()
        self._gatherings: dict[str, Gathering[_Ready, SignedOrder]] = {}

    def settlement_id(self, known: Settlement | None) -> str:
        """The row that an order will have, so that it is known to be carried before it is written."""
        return new_request_id() if known is None else known.id

    async def sign(self, order: Order, known: Settlement | None, row_id: str, terms: FeeTerms) -> SignedOrder:
        """Claims and signs for an order, and begins to send, perhaps with others. Raises: UNAVAILABLE, StorageError."""
        ready = _Ready(order, known, row_id, terms)
        if not order.account.company.takes(order.payload):
            (signed,) = await self._together(order.account, [ready], None)
            return signed
        return await self._gathering(order.account).join(ready)

    def _gathering(self, account: SettlingAccount) -> Gathering[_Ready, SignedOrder]:
        config = account.chain.config
        gathering = self._gatherings.get(config.network.name)
        if gathering is None:
            gathering = Gathering(
                config.batch_queue_depth,
                config.batch_items_max,
                lambda: sum(relayer.in_flight for relayer in account.signers.relayers),
                lambda party: self._set_out(account, party),
                _let_go,
            )
            self._gatherings[config.network.name] = gathering
        return gathering

    async def _set_out(self, account: SettlingAccount, party: list[_Ready]) -> list[SignedOrder | Exception]:
        """Those whose accounts have no code share a transaction; each of the others has its own."""
        if len(party) == 1:
            return [*await self._together(account, party, None)]
        carrier = account.company.carrier
        plain = [False] * len(party)
        if carrier is not None:
            plain = await account.company.plain(account.chain, [ready.order.payload for ready in party])
        groups = [[ready] for ready, is_plain in zip(party, plain, strict=True) if not is_plain]
        together = [ready for ready, is_plain in zip(party, plain, strict=True) if is_plain]
        # Where no signer's money lasts for all of them, it may last for some.
        is_affordable = account.signers.can_pay(len(together))
        groups += [together] if together and is_affordable else [[ready] for ready in together]
        outcomes: dict[str, SignedOrder | Exception] = {}

        async def go(group: list[_Ready]) -> None:
            try:
                signed: Sequence[SignedOrder | Exception] = await self._together(account, group, carrier)
            except GivenUpError as late:  # the others go without them
                outcomes.update((ready.row_id, late) for ready in group if ready.row_id in late.rows)
                if left := [ready for ready in group if ready.row_id not in late.rows]:
                    await go(left)
                return
            except Exception as error:  # noqa: BLE001 - told to those whom it concerns
                signed = [error] * len(group)
            outcomes.update(zip((ready.row_id for ready in group), signed, strict=True))

        await asyncio.gather(*(go(group) for group in groups))
        return [outcomes[ready.row_id] for ready in party]

    async def _together(
        self, account: SettlingAccount, party: Sequence[_Ready], carrier: Carrier | None, but: Collection[Relayer] = ()
    ) -> list[SignedOrder]:
        """One transaction for all of them that are won, by none of some signers.

        Raises: UNAVAILABLE, StorageError; GivenUpError.
        """
        gas = account.company.gas_of_each(carrier, [ready.order.payload for ready in party])
        # Money is counted in settlements: one that deploys its payer's wallet costs as much as several.
        count = len(party) * -(-gas // account.chain.config.gas_limit)
        relayer = account.signers.pick(count, but)
        fees = max((ready.terms.fees for ready in party), key=lambda fees: fees.max_fee_per_gas)
        orders = {ready.row_id: ready.order for ready in party}
        for order in orders.values():
            order.caller.look()

        def sign(nonce: int, won: Sequence[NewSettlement]) -> tuple[bytes, str]:
            require_awaited({new.id: orders[new.id] for new in won}, self._clock_ms())
            called = account.company.call(carrier, won[0].key.asset, [orders[new.id].payload for new in won])
            return relayer.signer.sign(called.transaction(relayer.policy.chain_id, nonce, fees), relayer.policy)

        signer = relayer.signer.address
        wishes = [
            replace(
                self._wish(ready.order, ready.known, ready.row_id, signer, gas),
                balance=ready.terms.balance,
                used=ready.terms.used,
            )
            for ready in party
        ]
        relayer.in_flight += len(party)
        try:
            run = self._database.run_short if len(wishes) == 1 else self._database.run
            config = account.chain.config
            bounds = account.queue.bounds(relayer.purse.funds(config.gas_of(deploys=bool(config.wallet_factories))))
            claims = await run(claim_and_sign(wishes, sign, account.gas.budget(), bounds))
        except BaseException:
            relayer.in_flight -= len(party)
            raise
        promised = [*but, relayer]
        if all(claim.outcome is ClaimedSettlement.NO_FUNDS for claim in claims) and account.signers.can_pay(
            count, promised
        ):
            relayer.in_flight -= len(party)
            return await self._together(account, party, carrier, promised)
        sent: asyncio.Task[Submission] | None = None
        signed: list[SignedOrder] = []
        for claim in claims:
            if claim.outcome is not ClaimedSettlement.WON or claim.raw is None:
                relayer.in_flight -= 1
                signed.append(SignedOrder(claim, relayer))
                continue
            sent = sent or self._send_soon(account, claim.raw)
            signed.append(SignedOrder(claim, relayer, sent))
        return signed

    async def sign_alone(
        self, account: SettlingAccount, row: Settlement, payload: EvmPayload, fees: Fees
    ) -> Settlement | None:
        """Signs another transaction for a row, which carries its transfer alone, and begins to send it.

        None where the hour's gas is used up, or somebody else has moved the row. Raises: UNAVAILABLE, StorageError.
        """
        relayer = account.signers.pick()
        called = account.company.call(None, row.key.asset, [payload])

        def sign(nonce: int) -> tuple[bytes, str]:
            return relayer.signer.sign(called.transaction(relayer.policy.chain_id, nonce, fees), relayer.policy)

        unit = sign_again(row, relayer.signer.address, sign, account.gas.budget(), gas=called.gas)
        try:
            again = await self._database.run(unit)
        except Overtaken:
            return None
        if again is None:
            return None
        self._send_soon(account, again.raw)
        return again.settlement

    def _send_soon(self, account: SettlingAccount, raw: RawTransaction) -> asyncio.Task[Submission]:
        sent = asyncio.get_running_loop().create_task(self._send(account, raw))
        self._sending.add(sent)
        sent.add_done_callback(self._sending.discard)
        return sent

    async def adopt(self, order: Order, known: Settlement | None, found: SignedTransaction) -> SettlementClaim:
        """Claims an order for a transaction of one of our signers that the database does not remember.

        Raises: StorageError.
        """
        wish = self._wish(order, known, self.settlement_id(known), found.sender, gas=0)
        unit = adopt_and_sign(wish, found.raw, found.hash, found.transaction.nonce)
        return await self._database.run(unit)

    async def _send(self, account: SettlingAccount, raw: RawTransaction) -> Submission:
        if not self._membership.is_current():
            _LOG.error("not_sent_by_a_process_whose_lease_ended", transaction=raw.hash)
            return Submission.UNCLEAR
        return await account.chain.submit(raw.raw, raw.hash)

    def _wish(self, order: Order, known: Settlement | None, row_id: str, signer: str, gas: int) -> SettlementRequest:
        new = NewSettlement(
            id=row_id,
            key=order.key,
            kind=order.kind,
            pay_to=order.payload.authorization.pay_to,
            value=order.payload.authorization.value,
            payment=payment_text(order.payment),
            requirements=canonical_json(requirements_body(order.requirements)),
            requirements_hash=order.requirements_hash,
            confirm=order.options.confirm,
            purchase_data=None if order.purchase_data is None else canonical_json(order.purchase_data),
            signer=signer,
            holder=self._membership.id,
            tenant=order.asker.tenant,
            now_ms=self._clock_ms(),
        )
        return SettlementRequest(new, known, order.options.idempotency, is_trusted=order.asker.is_trusted, gas=gas)


def require_awaited(orders: Mapping[str, Order], now_ms: int) -> None:
    """Right before the signature: a node or a disk may have taken long. Raises: GivenUpError, naming those rows."""
    late = {row_id: error for row_id, order in orders.items() if (error := order.given_up(now_ms)) is not None}
    for error in late.values():
        # Those for another reason are found once the rest goes without these.
        error.rows = frozenset(row_id for row_id, other in late.items() if type(other) is type(error))
        raise error


def _let_go(signed: SignedOrder) -> None:
    """Nobody follows what was signed; the completer will."""
    if signed.sent is not None:
        signed.relayer.in_flight -= 1
