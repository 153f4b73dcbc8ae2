"""Turning a payment into a purchase, exactly once: verify, claim, settle, grant (contract 4.2 to 4.4).

The work belongs to the payment and not to the request: a buyer who goes away while it settles finds the credits when
the same payment is presented again. Concurrent requests with one payment share one attempt; across processes the claim
row decides. What a crash or a lost answer leaves behind is finished by `completer`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.paygate_fields import CreditBinding
from tollkeeper.core.purchases import (
    FIRST_LOOK_MS,
    NOT_ATTEMPTED,
    Claim,
    PurchaseState,
    Spend,
    Terms,
    attempts_exhausted,
    terms_for,
)
from tollkeeper.core.tenders import Tender, require_valid_now
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wire import Payment, PaymentKey
from tollkeeper.gateway.findings import Owed
from tollkeeper.gateway.following import failure_looked_at_ms, key_of
from tollkeeper.gateway.hub_client import (
    HubUnreachableError,
    SettleAnswer,
    Settlement,
    asked_of,
    unavailable,
    unheard,
)
from tollkeeper.gateway.refusals import Refusal, Refusals, not_settled
from tollkeeper.gateway.waiting import Waiting
from tollkeeper.storage.purchase_rows import SpendResult
from tollkeeper.storage.purchases import WITHOUT_LIMIT, ClaimResult, Exposure, Paid, TrustCaps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.paygates import PayGate
    from tollkeeper.gateway.chain_proofs import ChainProofs
    from tollkeeper.gateway.gates import OpenGate
    from tollkeeper.gateway.hub_client import HubClient, SettleRequest, Supported
    from tollkeeper.storage.purchase_rows import Purchase, SpendRequest
    from tollkeeper.storage.purchases import Purchases

_LOG = structlog.get_logger("tollkeeper.gateway.buying")
# Somebody else's claim stands, or the gate changed meanwhile: whoever asks for a credit again learns which.
_ASK_AGAIN: Final = SpendResult(Spend.STALE)

# What one payer may owe on trust (`assumeValid: true`) unless the settings say otherwise.
DEFAULT_EXPOSURE: Final = TrustCaps(Exposure(20, 20_000_000), Exposure(200, 200_000_000))


@dataclass(slots=True, eq=False)
class Buyer:
    """One request that waits for a purchase. `wants` is False once it gave up.

    `taken`: its credit is being spent, so it must stay for the answer. `claiming`: done once its claim is written, or
    is not. `claimed`: the purchase whose claim it wrote, the one whose credit token it may be told. `on_left` is told
    what its attempt came to where the request was cancelled before.
    """

    wish: SpendRequest
    on_left: Callable[[asyncio.Future[SpendResult]], None]
    wants: bool = True
    taken: bool = False
    claiming: asyncio.Future[None] | None = None
    claimed: str | None = None

    async def until_claimed(self) -> None:
        """Returns once no claim of its is being written: whatever it is answered must name that one's credit token."""
        if self.claiming is not None:
            await asyncio.shield(self.claiming)


# The signature too: nobody may learn or spoil the outcome of a payment by naming it without having signed it.
_Slot: TypeAlias = "tuple[PaymentKey, bytes, int, int]"


@dataclass(slots=True)
class _Attempt:
    """One payment being bought at one gate version, and who waits for it."""

    task: asyncio.Task[SpendResult]
    buyer: Buyer
    purchase: Purchase | None = None


@dataclass(frozen=True, slots=True)
class Presented:
    """A payment whose form was checked, as it came with one request; on EVM its signature may still be anything."""

    payment: Payment
    tender: Tender
    header: bytes = field(repr=False)
    header_hash: bytes = field(repr=False)

    @property
    def key(self) -> PaymentKey:
        """The payment's identity."""
        return self.tender.key


class Buying:
    """Buys with payments. One per process; `aclose` waits for what is under way: the hub's time bounds how much."""

    def __init__(  # noqa: PLR0913 - its parts; the gateway alone calls it
        self,
        purchases: Purchases,
        hub: HubClient,
        supported: Callable[[], Supported],
        proofs: ChainProofs,
        *,
        cap: TrustCaps,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
        gateway_url: str,
        status_url: str,
    ) -> None:
        """`status_url` is the hub's public URL, where anybody can follow a payment."""
        self._purchases = purchases
        self._hub = hub
        self._supported = supported
        self._refusals = Refusals(hub, supported, proofs, status_url=status_url, clock_ms=clock_ms)
        self._proofs = proofs
        self._cap = cap
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._gateway_url = gateway_url
        self.waiting = Waiting(purchases, hub, status_url)
        self._attempts: dict[_Slot, _Attempt] = {}  # as many as payments are being bought, with or without requests

    def is_under_way(self, key: PaymentKey) -> bool:
        """Is an attempt of this process buying with this payment? True from before its claim is written."""
        return any(slot[0] == key for slot in self._attempts)

    async def buy(self, opened: OpenGate, presented: Presented, buyer: Buyer, deadline: float) -> SpendResult | None:
        """Buys with the payment, or waits for the attempt that already does.

        The result is this request's own spend; None means that something was decided and the caller should ask for a
        credit again. Raises: the refusal; SETTLEMENT_PENDING when `deadline` (loop time) passes first;
        UNAVAILABLE where it has passed before anything was begun.
        """
        gate = opened.gate
        slot = (presented.key, presented.tender.signature, gate.id, gate.version)
        attempt = self._attempts.get(slot)
        if attempt is None:
            if asyncio.get_running_loop().time() >= deadline:
                message = "this request came to its turn too late; nothing was charged, send the same payment again"
                raise ApiError(Code.UNAVAILABLE, message)
            task = asyncio.create_task(self._attempt(slot, opened, presented, buyer))
            attempt = self._attempts[slot] = _Attempt(task, buyer)
            task.add_done_callback(lambda done: self._finished(slot, done))
        mine = attempt.buyer is buyer
        try:
            result = await self._outcome(presented.key, attempt, buyer, deadline)
        except asyncio.CancelledError:
            try:
                await buyer.until_claimed()
            finally:
                buyer.wants = buyer.taken
                if mine:
                    attempt.task.add_done_callback(buyer.on_left)
            raise
        return result if mine and result.outcome is Spend.SPENT else None

    async def _outcome(self, key: PaymentKey, attempt: _Attempt, buyer: Buyer, deadline: float) -> SpendResult:
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(attempt.task)
        except TimeoutError:
            await buyer.until_claimed()
            if not (buyer.taken or attempt.task.done()):
                buyer.wants = False
                raise await self.waiting.pending_now(key, attempt.purchase) from None
        return await asyncio.shield(attempt.task)

    async def _attempt(self, slot: _Slot, opened: OpenGate, presented: Presented, buyer: Buyer) -> SpendResult:
        """Verify, claim, settle, grant: one payment at one version of its gate, whoever waits for it or leaves.

        Waits for the facilitator's verdict (10 s to reach it and 10 s for its answer at most; where that is a refusal
        for what it says of the payment, too, and 3 s for what the chain shows), for a node where another's settlement
        is looked for (`_require_unused`), the claim's commit, the settlement (35 s and 35 s at most, and some 30 s for
        its proof where that is found here) and the grant's commit; the hub (10 s and 10 s) where its attempts are used
        up. These commits are the loop's where the disk is quick, else the writing thread's
        (`SqliteDatabase.run_short`); those of a refusal (`conclude`, `reopen`) are the thread's. What is looked up is
        read by the reading thread. Returns `buyer`'s own spend, or _ASK_AGAIN.
        Raises: the refusal; SETTLEMENT_PENDING.
        """
        try:
            terms, asked, refusal = await self._judge(opened, presented)
        except ApiError as refused:
            if await self._is_claimed(refused, opened, presented.key):
                return _ASK_AGAIN
            raise
        if not buyer.wants and opened.gate.credit_binding is CreditBinding.TOKEN:
            return _ASK_AGAIN  # it was answered, and nobody would ever be told the token that this buys
        claim, request = await self._claim(opened, presented, buyer, terms, asked)
        if claim.outcome is Claim.ATTEMPTS_EXHAUSTED:
            if await self._is_under_way_again(claim.purchase, presented.key):
                return _ASK_AGAIN
            raise refusal.error if refusal else attempts_exhausted()
        if request is None or claim.purchase is None:
            return _ASK_AGAIN
        self._attempts[slot].purchase = claim.purchase
        try:
            return await self._settle(claim.purchase, request, presented, buyer)
        except ApiError as failed:
            if refusal is None:
                raise
            raise refusal.instead_of(failed) from None

    async def _judge(self, opened: OpenGate, presented: Presented) -> tuple[Terms, bytes, Refusal | None]:
        """The terms that it would buy, what the hub is asked, and a refusal of which the hub may think better.

        Recipient and price, then its time, then the facilitator's word; a node's, where the chain is looked at here.
        Raises: any other refusal.
        """
        arrived_ms = self._clock_ms()
        tender, network = presented.tender, presented.key.network
        terms = terms_for(opened.gate, opened.asset_on(network), tender, arrived_ms)
        try:
            require_valid_now(presented.payment, arrived_ms // 1000)
        except ApiError as late:
            raise await self._refusals.of_own(late, tender) from None
        asked = asked_of(presented.payment, opened.settled_by(tender, terms.price_micro))
        verdict = await self._hub.verify(asked)
        refusal = None
        if not verdict.is_valid:
            no_wallet = opened.asset_on(network).no_wallet(terms.pay_to)
            refusal = await self._refusals.of(verdict, tender, no_wallet)
        if refusal is not None and not refusal.may_be_forgotten:
            raise refusal.error
        # Else it is claimed without having been called valid, as no other is: its nonce is used, perhaps by us before
        # the books were restored from a backup, and settling it finds that out (security F22).
        if not opened.gate.assume_valid:
            self._require_proof(network)
        if self._is_seen(network):
            await self._require_unused(presented, is_trusted=opened.gate.assume_valid)
        return terms, asked, refusal

    def _require_proof(self, network: str) -> None:
        """Raises: UNAVAILABLE where nobody can tell now whether a payment is final."""
        if self._supported().confirms:
            return
        if not self._proofs.covers(network):
            raise ApiError(
                Code.UNAVAILABLE,
                "the payment hub cannot confirm on chain: set assumeValid, the URL of a node, or a hub that "
                "advertises confirm",
            )
        if problem := self._proofs.problem(network):
            _LOG.warning("node_unusable", network=network, reason=problem)
            raise unavailable()

    def _is_seen(self, network: str) -> bool:
        """Does this gateway look at the chain itself?"""
        return not self._supported().is_ours and self._proofs.covers(network)

    async def _require_unused(self, presented: Presented, *, is_trusted: bool) -> None:
        """What the facilitator made for another server buys nothing here: who may look for it later sees no difference.

        Nor does what is so old that nobody looks so far back.

        A payment that is claimed here is ours to look for. One that had failed here is not: whoever made it since, may
        have done so for another server, unless it is in the very transaction that it failed by.
        Raises: NONCE_ALREADY_USED, PAYMENT_EXPIRED; UNAVAILABLE where no node says so, unless the facilitator
        `is_trusted` to know.
        """
        tender = presented.tender
        known = await self._purchases.by_payment(tender.key)
        if known is not None and known.state is not PurchaseState.FAILED:
            return
        failed_by = "" if known is None else known.transaction_hash or ""
        try:
            used = await self._refusals.of_used(presented.payment, tender, failed_by)
        except RpcUnavailable as error:
            _LOG.warning("node_unusable", network=tender.key.network, reason=str(error))
            if is_trusted:
                return
            raise unavailable() from error
        if used is not None:
            raise used

    async def _is_claimed(self, refused: ApiError, opened: OpenGate, key: PaymentKey) -> bool:
        """Has somebody bought with it meanwhile, or does? Then that is why it is refused.

        Where it is used and had failed here, its failure may have been taken back: it is claimed again, only while that
        may be (`following`), and only once our hub has seen it, whose word for its key decides.
        """
        purchase = await self._purchases.by_payment(key)
        if purchase is None or purchase.state is not PurchaseState.FAILED:
            return purchase is not None
        is_used = refused.code is Code.NONCE_ALREADY_USED and purchase.gate_id == opened.gate.id
        return is_used and await self._is_under_way_again(purchase, key)

    async def _is_under_way_again(self, purchase: Purchase | None, key: PaymentKey) -> bool:
        """Takes its last failure back where our hub does: nobody is to sign another while this one may be made."""
        if purchase is None or not self._supported().is_ours:
            return False
        try:
            told = await self._hub.payment_status(key)
        except HubUnreachableError:
            raise self.waiting.pending(key, purchase) from None
        is_over = told is None or told.status == "failed"
        return not is_over and await self._purchases.reopen(purchase, self._clock_ms())

    async def _claim(
        self, opened: OpenGate, presented: Presented, buyer: Buyer, terms: Terms, asked: bytes
    ) -> tuple[ClaimResult, SettleRequest | None]:
        """Makes the payment ours to settle, by a request that is kept with the claim; None where another has it."""
        made: dict[tuple[int, bool], SettleRequest] = {}

        def request_of(purchase_id: str, attempt: int, assume_valid: bool) -> bytes:  # noqa: FBT001 - as `claim` says
            request = made[attempt, assume_valid] = self._hub.settle_request(
                asked,
                key=f"{purchase_id}.{attempt}",
                confirm=not assume_valid,
                purchase_data=self._purchase_data(opened.gate, terms, purchase_id),
            )
            return request.to_bytes()

        tender = presented.tender
        buyer.claiming = asyncio.get_running_loop().create_future()
        try:
            claim = await self._purchases.claim(
                presented.key,
                terms,
                purchase_id=self._new_id(),
                paid=Paid(tender.value, tender.valid_before, presented.header_hash),
                trust=self._trust(presented.key.network) if opened.gate.assume_valid else None,
                request_of=request_of,
                now_ms=self._clock_ms(),  # after the verification: the request's life begins when it is signed
            )
            if claim.outcome is not Claim.WON or claim.purchase is None:
                return claim, None
            buyer.claimed = claim.purchase.id
            return claim, made[claim.purchase.attempt, claim.purchase.assume_valid]
        finally:
            buyer.claiming.set_result(None)

    def _trust(self, network: str) -> TrustCaps:
        """The caps on trusted payments. Where none can be followed, a cap could never be lifted again."""
        return self._cap if self._is_followed(network) else WITHOUT_LIMIT

    def _is_followed(self, network: str) -> bool:
        """Can somebody tell whether a trusted payment became final?"""
        return self._supported().is_ours or self._proofs.covers(network)

    def _purchase_data(self, gate: PayGate, terms: Terms, purchase_id: str) -> dict[str, Any]:
        """What the hub's history says of the purchase."""
        return {
            "gateway": self._gateway_url,
            "paygateId": gate.id,
            "slug": gate.slug,
            "title": gate.title,
            "price": format_usdc(terms.price_micro),
            "credits": terms.credits,
            "purchaseId": purchase_id,
        }

    async def _settle(
        self, purchase: Purchase, request: SettleRequest, presented: Presented, buyer: Buyer | None
    ) -> SpendResult:
        """Has the hub settle what was claimed, and writes down what it says, or what the chain shows."""
        asking, supported = self._hub.settle(request), self._supported()
        if supported.is_ours:
            answer = await asking
        else:
            tender = presented.tender
            owed = Owed(tender.key, tender.recipient, tender.value, tender.valid_before, purchase.attempt_ms)
            senders, trusted = supported.senders_on(purchase.network), purchase.assume_valid
            answer = await self._proofs.settle(owed, asking, senders, trusted=trusted, confirms=supported.confirms)
        return await self.conclude(purchase, answer, buyer)

    async def conclude(
        self, purchase: Purchase, answer: SettleAnswer, buyer: Buyer | None, *, is_failed: bool = False
    ) -> SpendResult:
        """Writes what a settle answer decided. Raises: the refusal, or SETTLEMENT_PENDING.

        `is_failed`: of a failure, that it is the payment's, and not only this attempt's.
        """
        now_ms = self._clock_ms()
        if answer.outcome is Settlement.SUCCESS:
            wish = None
            if buyer is not None and buyer.wants:
                buyer.taken = True
                wish = buyer.wish
            result = await self._purchases.grant(
                purchase,
                answer.transaction,
                confirmed=not (purchase.assume_valid and self._is_followed(purchase.network)),
                wish=wish,
                now_ms=now_ms,
            )
            if buyer is not None:
                buyer.taken = result.outcome is Spend.SPENT
            self.waiting.announce(purchase.id)
            return result
        if answer.outcome is Settlement.PENDING:
            raise self.waiting.pending(key_of(purchase), purchase, answer.transaction)
        if answer.outcome is Settlement.UNPROVABLE:
            _LOG.error("claim_parked", purchase_id=purchase.id, reason=answer.reason, transaction=answer.transaction)
            await self._purchases.park(purchase, answer.reason, now_ms)
            self.waiting.announce(purchase.id)
            raise self.waiting.pending(key_of(purchase), purchase, answer.transaction)
        if answer.outcome is Settlement.UNHEARD:
            await self._purchases.fail(
                purchase, NOT_ATTEMPTED, None, now_ms, follow_ms=await self._look_for_former(purchase, now_ms)
            )
            self.waiting.announce(purchase.id)
            raise unheard()
        follow_ms = failure_looked_at_ms(purchase, answer, now_ms, is_seen=self._is_seen(purchase.network))
        is_written = await self._purchases.fail(
            purchase,
            answer.reason,
            answer.transaction or None,
            now_ms,
            follow_ms=follow_ms or await self._look_for_former(purchase, now_ms),
            is_followed_anew=is_failed,
        )
        self.waiting.announce(purchase.id)
        if not is_written:  # nobody is told to pay again for credits that another process granted meanwhile
            known = await self._purchases.by_id(purchase.id)
            if known is not None and known.state is not PurchaseState.FAILED:
                raise self.waiting.pending(key_of(purchase), known)
        _LOG.info("settlement_failed", purchase_id=purchase.id, reason=answer.reason)
        raise not_settled(answer, purchase.network)

    async def _look_for_former(self, purchase: Purchase, now_ms: int) -> int | None:
        """When to look whether an earlier attempt's failure was taken back, of one that sent nothing itself."""
        was_sent = self._supported().is_ours and await self._purchases.shown_in(purchase) is not None
        return now_ms + FIRST_LOOK_MS if was_sent else None

    def _finished(self, slot: _Slot, task: asyncio.Task[SpendResult]) -> None:
        self._attempts.pop(slot, None)
        if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, ApiError):
            _LOG.error("purchase_broke_off", fault=repr(fault))

    async def aclose(self) -> None:
        """Waits until no settlement is under way, so that an accepted payment is not left to the completer."""
        while self._attempts:
            await asyncio.wait([attempt.task for attempt in self._attempts.values()])
