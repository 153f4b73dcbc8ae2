"""Attempts to buy, and which requests wait for which of them (contract 4.2 to 4.4).

An attempt (`PurchaseAttempt`, step 5 of `call.flow`) goes from terms over verify, claim and settle to grant and spend.
It belongs to the payment and not to the request: a buyer who goes away while it settles finds the credits when the same
payment is presented again. Concurrent requests with one payment share one attempt; across processes the claim row
decides. What a crash or a lost answer leaves behind is finished by `purchase.recovery`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import structlog

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.fields import CreditBinding
from tollkeeper.core.payment_offers import require_valid_now
from tollkeeper.core.purchases import Claim, Spend, Terms, attempts_exhausted, terms_for
from tollkeeper.gateway.evidence.port import ExpectedTransfer
from tollkeeper.gateway.facilitator.client import SettleMeaning
from tollkeeper.gateway.purchase.monitor import key_of, new_purchase_id
from tollkeeper.gateway.purchase.payer_proofs import PayerProofs
from tollkeeper.storage.engine.database import NotTakenError
from tollkeeper.storage.ledger.first_purchase import Paid
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.ledger.purchases import ClaimResult

if TYPE_CHECKING:
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.gateway.facilitator.client import SettleAnswer, SettleRequest
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.gateway.purchase.decisions import PurchaseDecisions
    from tollkeeper.gateway.purchase.refusals import Refusal
    from tollkeeper.storage.ledger.payer_proofs import ShownPayments
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
        """Return once no claim of its is being written: whatever it is answered must name that one's credit token."""
        if self.claiming is not None:
            await asyncio.shield(self.claiming)


@dataclass(slots=True, eq=False)
class PurchaseAttempt:
    """An attempt to buy: the payment's own, whoever waits for it or leaves, in a task (`PurchaseService.buy`).

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
        except NotTakenError as failed:  # what came of the payment is not in the books, and the recovery finds it
            raise self.decisions.pending.pending(key, claim.purchase) from failed
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
        """Make the payment ours to settle, by a request that is kept with the claim; None where another has it."""
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
                purchase_id=new_purchase_id(),
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
        """Have the hub settle what was claimed, and grant what it buys. Raises: the refusal, or SETTLEMENT_PENDING."""
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
        """Write that it is paid; the first credit is the buyer's, in the same commit, unless he gave up."""
        buyer = self.buyer
        buyer.taken = buyer.wants
        result = await self.decisions.grant(purchase, answer, buyer.spend_request if buyer.wants else None)
        buyer.taken = result.outcome is Spend.SPENT
        return result


_LOG = structlog.get_logger("tollkeeper.gateway.purchase.service")

# The signature too: nobody may learn or spoil the outcome of a payment by naming it without having signed it.
Slot: TypeAlias = "tuple[PaymentKey, bytes, int, int]"


def _slot_of(attempt: PurchaseAttempt) -> Slot:
    """Return what no two attempts at a time are alike in."""
    presented, gate = attempt.presented, attempt.opened.gate
    return presented.key, presented.offered.signature, gate.id, gate.version


@dataclass(frozen=True, slots=True)
class _Running:
    attempt: PurchaseAttempt
    task: asyncio.Task[SpendResult]


class PurchaseService:
    """One per process; `aclose` waits for what is under way: the hub's time bounds how much."""

    def __init__(self, decisions: PurchaseDecisions, shown: ShownPayments) -> None:
        self.decisions = decisions
        self.pending = decisions.pending
        self.proofs = PayerProofs(decisions, shown)
        self._running: dict[Slot, _Running] = {}  # as many as payments are being bought with, with or without requests

    def under_way(self) -> set[PaymentKey]:
        """With which payments attempts of this process are buying now, from before their claims are written."""
        return {key for key, *_ in self._running}

    async def buy(self, attempt: PurchaseAttempt, deadline: float) -> SpendResult:
        """Make this attempt, or wait for the one that is made with the same payment at the same gate already.

        Return this request's own spend, or `ASK_AGAIN` where something was decided and the caller should ask for a
        credit again. A request that is cancelled while its credit is taken learns all the same that it was. Raises: the
        refusal; SETTLEMENT_PENDING when `deadline` (loop time) passes first; UNAVAILABLE where it has passed before
        anything was begun.
        """
        slot, buyer = _slot_of(attempt), attempt.buyer
        running = self._running.get(slot)
        if running is None:
            if asyncio.get_running_loop().time() >= deadline:
                message = "this request came to its turn too late; nothing was charged, send the same payment again"
                raise ApiError(Code.UNAVAILABLE, message)
            running = self._running[slot] = _Running(attempt, asyncio.create_task(attempt.run()))
            self.proofs.begun(attempt.opened, attempt.presented)
            running.task.add_done_callback(lambda done: self._finished(slot, attempt, done))
        is_own = running.attempt.buyer is buyer
        try:
            result = await self._outcome(running, buyer, deadline)
        except asyncio.CancelledError:
            await buyer.until_claimed()
            buyer.wants = buyer.taken
            if not (is_own and buyer.taken):
                raise
            result = await asyncio.shield(running.task)
        return result if is_own and result.outcome is Spend.SPENT else ASK_AGAIN

    async def _outcome(self, running: _Running, buyer: Waiter, deadline: float) -> SpendResult:
        attempt, task = running.attempt, running.task
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(task)
        except TimeoutError:
            await buyer.until_claimed()
            if not (buyer.taken or task.done()):
                buyer.wants = False
                raise await self.pending.pending_now(attempt.presented.key, attempt.purchase) from None
        return await asyncio.shield(task)

    def _finished(self, slot: Slot, attempt: PurchaseAttempt, task: asyncio.Task[SpendResult]) -> None:
        self._running.pop(slot, None)
        self.proofs.ended(attempt.opened, attempt.presented)
        if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, ApiError):
            _LOG.error("purchase_broke_off", fault=repr(fault))

    async def is_to_be_asked_again(self, result: SpendResult, deadline: float, *, may_spend: bool) -> bool:
        """Wait for whoever decides a purchase that was found and gave no credit; False where it is used up.

        `may_spend`: what was shown counts for the credits that it buys. For every outcome but STALE and WITHHELD, which
        are for who asked. Raises: SETTLEMENT_PENDING; NONCE_ALREADY_USED for a payment that was claimed elsewhere.
        """
        purchase = result.found
        if result.outcome is Spend.IN_FLIGHT:
            await self.pending.until_decided(purchase, deadline, may_spend=may_spend)
            return True
        if result.outcome is Spend.EXHAUSTED:
            return await self.decisions.is_paid_after_all(purchase, deadline)
        if result.outcome is Spend.PARKED:
            raise self.pending.pending(key_of(purchase), purchase)
        raise await self.decisions.refusals.of_claimed_elsewhere(purchase)  # FOREIGN

    async def aclose(self) -> None:
        """Wait until no settlement is under way, so that an accepted payment is not left to recovery."""
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()])
