"""From an order that the chain would take to a transaction on its way (contract 5.2; security 5, A-24, A-25, F15).

Claim, budget, nonce, signature and raw transaction are one commit; only then is anything sent, at once and without
waiting for a block. Today every order has a transaction of its own. Where several share one, this is the place: gather
wishes for one relayer, let `claim_and_sign` claim them all, sign one call for what was won, and give all of them the
same `sent`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tollkeeper.api import new_request_id
from tollkeeper.chains.evm import Submission
from tollkeeper.core.evm import Transaction, transfer_calldata
from tollkeeper.core.wire import payment_body, requirements_body
from tollkeeper.hub.requests import canonical_json
from tollkeeper.storage.claims import Claim, Claimed, NewSettlement, Wish, adopt_and_sign, claim_and_sign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.chains.evm import Fees
    from tollkeeper.core.signed_transactions import SignedTransaction
    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.orders import Order
    from tollkeeper.hub.signer_pool import Relayer
    from tollkeeper.storage.database import Database
    from tollkeeper.storage.settlements import Settlement
    from tollkeeper.storage.transactions import RawTransaction

_LOG = structlog.get_logger("tollkeeper.hub")


@dataclass(frozen=True, slots=True)
class Signed:
    """What became of an order. Where it was won: `sent` ends with what the node said, for all that share it."""

    claim: Claim
    relayer: Relayer
    sent: asyncio.Task[Submission] | None = None


class Signing:
    """Of one process."""

    def __init__(self, database: Database, clock_ms: Callable[[], int], membership: Membership) -> None:
        self._database = database
        self._clock_ms = clock_ms
        self._membership = membership
        self._sending: set[asyncio.Task[Submission]] = set()

    def settlement_id(self, known: Settlement | None) -> str:
        """The row that an order will have, so that it is known to be carried before it is written."""
        return new_request_id() if known is None else known.id

    async def sign(self, order: Order, known: Settlement | None, row_id: str, fees: Fees) -> Signed:
        """Claims and signs for an order, and begins to send. Raises: UNAVAILABLE, StorageError."""
        account = order.account
        relayer = account.signers.pick()
        chain = account.chain
        calldata = transfer_calldata(order.payload.authorization, order.payload.signature)

        def sign(nonce: int, _won: Sequence[NewSettlement]) -> tuple[bytes, str]:
            transaction = Transaction(
                chain_id=relayer.policy.chain_id,
                nonce=nonce,
                max_priority_fee_per_gas=fees.max_priority_fee_per_gas,
                max_fee_per_gas=fees.max_fee_per_gas,
                gas=chain.config.gas_limit,
                to=order.key.asset,
                value=0,
                data=calldata,
            )
            return relayer.signer.sign(transaction, relayer.policy)

        wish = self._wish(order, known, row_id, relayer.signer.address)
        relayer.in_flight += 1
        try:
            (claim,) = await self._database.run(claim_and_sign([wish], sign, account.gas.budget()))
        except BaseException:
            relayer.in_flight -= 1
            raise
        if claim.outcome is not Claimed.WON or claim.raw is None:
            relayer.in_flight -= 1
            return Signed(claim, relayer)
        sent = asyncio.get_running_loop().create_task(self._send(order, claim.raw))
        self._sending.add(sent)
        sent.add_done_callback(self._sending.discard)
        return Signed(claim, relayer, sent)

    async def adopt(self, order: Order, known: Settlement | None, found: SignedTransaction) -> Claim:
        """Claims an order for a transaction of one of our signers that the database does not remember.

        Raises: StorageError.
        """
        wish = self._wish(order, known, self.settlement_id(known), found.sender)
        unit = adopt_and_sign(wish, found.raw, found.hash, found.transaction.nonce)
        return await self._database.run(unit)

    async def _send(self, order: Order, raw: RawTransaction) -> Submission:
        if not self._membership.is_current():
            _LOG.error("not_sent_by_a_process_whose_lease_ended", transaction=raw.hash)
            return Submission.UNCLEAR
        return await order.account.chain.submit(raw.raw, raw.hash)

    def _wish(self, order: Order, known: Settlement | None, row_id: str, signer: str) -> Wish:
        new = NewSettlement(
            id=row_id,
            key=order.key,
            kind=order.kind,
            pay_to=order.payload.authorization.pay_to,
            value=order.payload.authorization.value,
            payment=json.dumps(payment_body(order.payment), separators=(",", ":")),
            requirements=canonical_json(requirements_body(order.requirements)),
            requirements_hash=order.requirements_hash,
            confirm=order.options.confirm,
            purchase_data=None if order.purchase_data is None else canonical_json(order.purchase_data),
            signer=signer,
            holder=self._membership.id,
            now_ms=self._clock_ms(),
        )
        gas = order.account.chain.config.gas_limit
        return Wish(new, known, order.idempotency, is_trusted=order.is_trusted, gas=gas)
