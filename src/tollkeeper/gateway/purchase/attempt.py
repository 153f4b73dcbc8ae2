"""An attempt to buy with a payment: terms -> verify -> claim -> settle -> grant and spend (contract 4.2, 4.3).

The payment's own, whoever waits for it (`purchase.service`) or leaves. Step 5 of the paid request, which is `flow`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.payment_offers import require_valid_now
from tollkeeper.core.purchases import Claim, Spend, Terms, attempts_exhausted, terms_for
from tollkeeper.gateway.evidence.port import ExpectedTransfer
from tollkeeper.gateway.facilitator.client import SettleMeaning
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.ledger.purchases import ClaimResult, Paid

if TYPE_CHECKING:
    from tollkeeper.core.presented_payment import PresentedPayment
    from tollkeeper.gateway.facilitator.client import SettleAnswer, SettleRequest
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.gateway.purchase.decisions import PurchaseDecisions
    from tollkeeper.gateway.purchase.refusals import Refusal
    from tollkeeper.storage.ledger.purchase_rows import Purchase


# Somebody else's claim stands, or the gate changed meanwhile: whoever asks for a credit again learns which.
ASK_AGAIN: Final = SpendResult(Spend.STALE)


_NO_REQUEST: Final = SpendRequest(0, 0, None, "")  # until it is known what is shown


class Waiter(msgspec.Struct, eq=False):
    """One request that waits for a purchase. `spend_request` asks for its credit; `wants` is False once it gave up.

    `taken`: its credit is being spent, so it must stay for the answer. `claiming`: done once its claim is written, or
    is not. `claimed`: the purchase whose claim it wrote, the one whose credit token it may be told.
    """

    spend_request: SpendRequest = _NO_REQUEST
    wants: bool = True
    taken: bool = False
    claiming: asyncio.Future[None] | None = None
    claimed: str | None = None

    async def until_claimed(self) -> None:
        """Returns once no claim of its is being written: whatever it is answered must name that one's credit token."""
        if self.claiming is not None:
            await asyncio.shield(self.claiming)


@dataclass(slots=True, eq=False)
class PurchaseAttempt:
    """5, the payment's own, whoever waits for it or leaves, in a task (`PurchaseService.buy`).

    `buyer` is the request that began it, which gets the first credit. `tenant`: whose share of the hub's gas it takes:
    the gate's owner's, or where it has none, its caller's.
    """

    decisions: PurchaseDecisions
    opened: OpenGate
    presented: PresentedPayment
    buyer: Waiter
    tenant: str
    purchase: Purchase | None = None  # once it is claimed

    # Waits for its steps; of a refusal, or of too many attempts, also for the purchase (by the reading thread), for our
    # hub's record of it (10 s, with the time that it takes to reach it) and for a commit that takes a failure back.

    async def run(self) -> SpendResult:
        """Judge, claim, settle, grant: `buyer`'s own spend, or ASK_AGAIN. Raises: the refusal; SETTLEMENT_PENDING."""
        key, buyer = self.presented.key, self.buyer
        try:
            terms, asked, refusal = await self._judge()
        except ApiError as refused:
            if await self.decisions.is_claimed(refused, self.opened, key):
                return ASK_AGAIN
            raise
        if not buyer.wants and self.opened.gate.credit_binding is CreditBinding.TOKEN:
            return ASK_AGAIN  # it was answered, and nobody would ever be told the token that this buys
        claim, request = await self._claim(terms, asked)
        if claim.outcome is Claim.ATTEMPTS_EXHAUSTED:
            if await self.decisions.is_under_way_again(claim.purchase):
                return ASK_AGAIN
            raise refusal.error if refusal else attempts_exhausted()
        if request is None or claim.purchase is None:
            return ASK_AGAIN
        self.purchase = claim.purchase
        try:
            return await self._settle(claim.purchase, request)
        except ApiError as failed:
            if refusal is None:
                raise
            raise refusal.instead_of(failed) from None

    # Terms: recipient and price, then time. Verify: waits for the facilitator's word (10 s from when it is asked, what
    # reaching it takes included; if it refuses, or it is too late, as long for its record of the payment, or 3 s for
    # what the chain shows), and, where the chain is looked at here, for the reading thread and a node (each question:
    # `Rpc.budget_seconds`).

    async def _judge(self) -> tuple[Terms, bytes, Refusal | None]:
        """The terms that it would buy, what the hub is asked, and a refusal of which the hub may think better.

        Raises: any other refusal.
        """
        decisions, opened, offered = self.decisions, self.opened, self.presented.offered
        parts = decisions.parts
        network, arrived_ms = offered.key.network, parts.clock_ms()
        taken = opened.taken_by(self.presented)
        terms = terms_for(opened.gate, opened.asset_on(network), offered, arrived_ms, taken)
        try:
            require_valid_now(self.presented.payment, arrived_ms // 1000)
        except ApiError as late:
            raise await decisions.refusals.of_own(late, offered) from None
        # A facilitator that is not ours may want the exact amount: it is asked for the value that was authorized.
        amount_micro = terms.price_micro if parts.supported().is_ours else offered.value
        asked = parts.hub.asked_of(self.presented.payment, opened.settled_by(offered, amount_micro))
        verdict, refusal = await parts.hub.verify(asked), None
        if not verdict.is_valid:
            refusal = await decisions.refusals.of(verdict, offered, opened.asset_on(network).no_wallet(terms.pay_to))
        if refusal is not None and not refusal.may_be_forgotten:
            raise refusal.error
        # Else it is claimed without having been called valid, as no other is: its nonce is used, perhaps by us before
        # the books were restored from a backup, and settling it finds that out (security F22).
        if not opened.gate.assume_valid:
            decisions.require_proof(network)
        if decisions.is_seen(network):
            await decisions.require_unused(self.presented, is_trusted=opened.gate.assume_valid)
        return terms, asked, refusal

    # Claim: waits for its commit, the loop's where disk and writing thread are free, else the thread's, or the ledger's
    # process (10 s where it went away). For each round a request to settle is signed (Ed25519) and sealed in the loop.

    async def _claim(self, terms: Terms, asked: bytes) -> tuple[ClaimResult, SettleRequest | None]:
        """Makes the payment ours to settle, by a request that is kept with the claim; None where another has it."""
        decisions, gate, offered = self.decisions, self.opened.gate, self.presented.offered
        parts = decisions.parts
        made: dict[tuple[int, bool], SettleRequest] = {}

        def request_of(purchase_id: str, attempt: int, assume_valid: bool) -> bytes:  # noqa: FBT001 - as `claim` says
            key, bought = f"{purchase_id}.{attempt}", decisions.purchase_data(gate, terms, purchase_id)
            request = parts.hub.settle_request(
                asked, key=key, confirm=not assume_valid, purchase_data=bought, tenant=self.tenant
            )
            made[attempt, assume_valid] = request
            return request.to_bytes()

        self.buyer.claiming = asyncio.get_running_loop().create_future()
        try:
            claim = await parts.purchases.claim(
                offered.key,
                terms,
                purchase_id=parts.new_id(),
                paid=Paid(offered.value, offered.valid_before, self.presented.header_hash),
                trust=decisions.trust(offered.key.network) if gate.assume_valid else None,
                request_of=request_of,
                now_ms=parts.clock_ms(),  # after the verification: the request's life begins when it is signed
            )
            if claim.outcome is not Claim.WON or claim.purchase is None:
                return claim, None
            self.buyer.claimed = claim.purchase.id
            return claim, made[claim.purchase.attempt, claim.purchase.assume_valid]
        finally:
            self.buyer.claiming.set_result(None)

    # Settle: waits for the facilitator (35 s, as above), and some 30 s for its proof where that is found here. Grant
    # and spend: waits for their commit, as the claim; anything but a success is the thread's.

    async def _settle(self, purchase: Purchase, request: SettleRequest) -> SpendResult:
        """Has the hub settle what was claimed, and grants what it buys. Raises: the refusal, or SETTLEMENT_PENDING."""
        parts = self.decisions.parts
        asking, supported = parts.hub.settle(request), parts.supported()
        if supported.is_ours:
            answer = await asking
        else:  # another facilitator's word is checked on the chain, unless it confirms, or no node is set
            senders, trusted = supported.senders_on(purchase.network), purchase.assume_valid
            expected = ExpectedTransfer.of(self.presented.offered, purchase.attempt_ms, senders)
            answer = await parts.evidence.settle(expected, asking, trusted=trusted, confirms=supported.confirms)
        if answer.outcome is not SettleMeaning.SUCCESS:
            raise await self.decisions.not_bought(purchase, answer)
        return await self._grant(purchase, answer)

    async def _grant(self, purchase: Purchase, answer: SettleAnswer) -> SpendResult:
        """Writes that it is paid; the first credit is the buyer's, in the same commit, unless he gave up."""
        buyer = self.buyer
        buyer.taken = buyer.wants
        result = await self.decisions.grant(purchase, answer, buyer.spend_request if buyer.wants else None)
        buyer.taken = result.outcome is Spend.SPENT
        return result
