"""A payment that reached a gate's address by another's transaction, honoured by hand, once (contract 4.3; A-08, A-09).

Granting it automatically would let a payer race two servers with one payment; whether it bought something elsewhere is
for the operator to know. The chain must show the very transfer, at the configured depth. The buyer's header is public
by then, so what is granted is spent by its credit token, which the operator hands over, or by a bearer of the payer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.payments import payments_of
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.purchases import Claim, Terms, credit_token
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.storage.purchases import Paid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.chains.evm import EvmChain
    from tollkeeper.core.paygates import PayGate
    from tollkeeper.core.reconciliation import ChainPayment
    from tollkeeper.storage.paygates import PayGates
    from tollkeeper.storage.purchases import Purchases

_WORD: Final = re.compile("0x[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Honouring:
    """`chain_of` gives the node of a network, to be opened here; None where there is none."""

    paygates: PayGates
    purchases: Purchases
    chain_of: Callable[[str], EvmChain | None]
    token_keys: Sequence[bytes]
    clock_ms: Callable[[], int]
    new_id: Callable[[], str]
    random_bytes: Callable[[int], bytes]

    async def honour(self, slug: str, transaction_hash: str, nonce: str | None) -> dict[str, Any]:
        """Grants what the payment in that transaction bought; `nonce` says which, where there are several.

        Raises: INVALID_PARAMETER for what is no hash, NOT_FOUND, PAYMENT_INVALID, CONFLICT where it was granted before;
            RpcUnavailable.
        """
        gate = await self.paygates.by_slug(slug, self.clock_ms())
        if gate is None:
            raise ApiError(Code.NOT_FOUND, f"there is no PayGate {slug}")
        if NETWORKS[gate.network].family is not Family.EVM:
            raise ApiError(Code.INVALID_NETWORK, f"payments on {gate.network} cannot be honoured by hand yet")
        transaction_hash, nonce = transaction_hash.lower(), None if nonce is None else nonce.lower()
        for text in (transaction_hash, nonce):
            if text is not None and _WORD.fullmatch(text) is None:
                raise ApiError(Code.INVALID_PARAMETER, f"{text[:80]!a} is not 0x and 64 hex digits")
        chain = self.chain_of(gate.network)
        if chain is None:
            raise ApiError(Code.INVALID_NETWORK, f"no node of {gate.network} is configured: set its rpc_url")
        try:
            await chain.open()
            found = await payments_of(chain, transaction_hash)
        finally:
            await chain.close()
        fitting = [one for one in found if nonce in {None, one.key.nonce} and await self._fits(one, gate)]
        if len(fitting) != 1:
            msg = (
                "several payments in that transaction fit: say which by its nonce"
                if fitting
                else "the chain shows no payment of at least the price to that PayGate in this transaction, or not "
                "deep enough yet"
            )
            raise ApiError(Code.PAYMENT_INVALID, msg)
        return await self._grant(fitting[0], gate)

    async def _fits(self, payment: ChainPayment, gate: PayGate) -> bool:
        """Does it pay what was claimed with it, or, if it never was, what the gate asks now?"""
        purchase = await self.purchases.by_payment(payment.key)
        if purchase is None:
            return payment.pay_to == gate.payment_address and payment.value >= gate.price_micro
        pay_to = await self.purchases.pay_to(purchase)
        return purchase.gate_id == gate.id and (payment.pay_to, payment.value) == (pay_to, purchase.value_micro)

    async def _grant(self, payment: ChainPayment, gate: PayGate) -> dict[str, Any]:
        terms = Terms(
            gate.id,
            gate.version,
            gate.price_micro,
            gate.credits,
            gate.payment_address,
            gate.network,
            gate.credits_expire_after_seconds,
        )
        honoured = await self.purchases.honour(
            payment.key,
            terms,
            purchase_id=self.new_id(),
            paid=Paid(payment.value, 0, self.random_bytes(32)),  # no header is shown by a hash of nothing
            transaction_hash=payment.transaction_hash,
            now_ms=self.clock_ms(),
        )
        purchase = honoured.purchase
        if honoured.outcome is Claim.STALE or purchase is None:
            raise ApiError(Code.CONFLICT, "the PayGate was changed meanwhile: try again")
        if honoured.outcome is not Claim.WON:
            raise ApiError(
                Code.CONFLICT, f"this payment is {purchase.state.value}: it was granted, or it is being settled"
            )
        return {
            "purchaseId": purchase.id,
            "slug": gate.slug,
            "payer": shown_address(purchase.payer),
            "paid": format_usdc(purchase.value_micro),
            "credits": purchase.granted,
            "transaction": payment.transaction_hash,
            "creditToken": credit_token(self.token_keys[0], purchase.id),
        }
