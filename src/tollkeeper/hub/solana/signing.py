"""From an order that the chain would take to a stored transaction, on Solana (contract 5.2; security A-24, A-26).

Claim, budget, co-signature and raw transaction are one commit. What a transaction pays with stands in it: nothing is
chosen here, and none carries two payments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from tollkeeper.chains.solana.blockhashes import Lifetime
from tollkeeper.chains.solana.config import fee_lamports
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.solana.base58 import encode
from tollkeeper.hub.settlement.family import Claimed, Outgoing
from tollkeeper.hub.settlement.orders import require_awaited
from tollkeeper.storage.hub.claims import ClaimedSettlement, Funds, NewSettlement, claim_and_sign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.solana.rules import SolanaTransfer
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.hub.solana.account import SolanaAccount
    from tollkeeper.storage.hub.settlements import Settlement

SolanaOrder: TypeAlias = "Order[SolanaAccount, SolanaTransfer]"
# Kept beside the payment, as the other family's end is kept in it: where the chain can hold the transaction.
_FIRST_SLOT: Final = "firstSlot"
_LAST_HEIGHT: Final = "lastValidBlockHeight"


@dataclass(frozen=True, slots=True)
class SolanaTerms:
    """Bounds of where the chain can hold a transaction, and its payer's balance. Payments in `used` took part of that.

    `balance` None: it was carried out already, so what is left covers it or not. `fee_money`: what the fee payer may
    spend, in lamports; None as before.
    """

    lifetime: Lifetime
    balance: int | None
    fee_money: int | None
    used: frozenset[str] = frozenset()


def lifetime_of(row: Settlement) -> Lifetime:
    """Return the bounds within which the chain can hold the row's transaction.

    Raises: ValueError, KeyError, TypeError for no such row.
    """
    payment = json.loads(row.payment)
    return Lifetime(int(payment[_FIRST_SLOT]), int(payment[_LAST_HEIGHT]))


async def claim_and_co_sign(
    parts: SettlementParts, order: SolanaOrder, known: Settlement | None, row_id: str, terms: SolanaTerms
) -> Claimed:
    """Claim and co-sign for an order. Raises: UNAVAILABLE, StorageError; GivenUpError."""
    account, transfer = order.account, order.payload
    relayer = account.signers.of(transfer.fee_payer)
    order.request.caller.look()

    def sign(_number: int, _won: Sequence[NewSettlement]) -> tuple[bytes, str]:
        require_awaited({row_id: order}, parts.clock_ms())
        return relayer.signer.co_sign(transfer.payload, account.asset, account.policy)

    request = parts.claim_of(
        order,
        known,
        row_id,
        pay_to=order.requirements.pay_to,
        value=transfer.value,
        signer=transfer.fee_payer,
        gas=fee_lamports(transfer),
        alias=encode(transfer.transaction.signatures[1]),
        **{_FIRST_SLOT: terms.lifetime.first_slot, _LAST_HEIGHT: terms.lifetime.last_height},
    )
    request = replace(request, balance=terms.balance, used=terms.used)
    bounds = account.admission.bounds(_funds(parts, account, transfer, terms))
    relayer.in_flight += 1
    try:
        (claim,) = await parts.database.run(
            claim_and_sign([request], sign, account.gas_budget.budget(), bounds), is_short=True
        )
    except BaseException:
        relayer.in_flight -= 1
        raise
    if claim.outcome is not ClaimedSettlement.WON or claim.raw is None:
        relayer.in_flight -= 1
        return Claimed(claim, relayer)
    return Claimed(claim, relayer, Outgoing(claim.raw))


def _funds(
    parts: SettlementParts, account: SolanaAccount, transfer: SolanaTransfer, terms: SolanaTerms
) -> Funds | None:
    if terms.fee_money is None:
        return None
    since_ms = parts.clock_ms() - LIFETIME_DOUBTED_SECONDS * 1000
    return Funds(transfer.fee_payer, terms.fee_money, account.chain.config.fee_max_lamports, since_ms)
