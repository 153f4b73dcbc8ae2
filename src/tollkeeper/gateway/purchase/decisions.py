"""Rules that judge an attempt to buy, and decisions that an answer of the facilitator brings (contract 4.3, 4.4).

Each decision is a conditional statement of `storage.ledger.purchases`; who waits for it is told (`PendingPurchases`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.purchases import FIRST_LOOK_MS, NOT_ATTEMPTED, SETTLEMENT_FAILED, PurchaseState
from tollkeeper.core.trust import WITHOUT_LIMIT, TrustCaps
from tollkeeper.core.usdc import format_usdc
from tollkeeper.gateway.facilitator.client import HubUnreachableError, SettleMeaning, unavailable, unheard
from tollkeeper.gateway.purchase.monitor import failure_looked_at_ms, key_of
from tollkeeper.gateway.purchase.refusals import Refusals, not_settled

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.core.purchases import Terms
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.gateway.facilitator.client import PaymentStatus, SettleAnswer
    from tollkeeper.gateway.open_gate import OpenGate
    from tollkeeper.gateway.purchase.monitor import PurchaseParts
    from tollkeeper.storage.ledger.purchase_rows import Purchase, SpendRequest, SpendResult

_LOOK_SECONDS: Final = 1.0  # for another process may decide it


@dataclass(slots=True)
class _AwaitedPurchase:
    """How many wait for a purchase, and how many of them may spend of it; what tells them that it was decided."""

    waiting: int = 0
    spending: int = 0
    decided: asyncio.Event = field(default_factory=asyncio.Event)


class PendingPurchases:
    """Purchases of one process that requests wait for and somebody else decides: another request, recovery, a process.

    Who waits holds nothing; each looks the purchase up when it is told that something was decided, and once a second
    besides. What it is told when that takes too long is here, too (contract 4.3, 4.5).
    """

    def __init__(self, parts: PurchaseParts) -> None:
        self._parts = parts
        self._awaited: dict[str, _AwaitedPurchase] = {}

    def has_one_for(self, purchase_id: str) -> bool:
        """Tell whether somebody waits right now for this purchase and may spend of it."""
        awaited = self._awaited.get(purchase_id)
        return awaited is not None and bool(awaited.spending)

    async def until_decided(self, purchase: Purchase, deadline: float, *, may_spend: bool) -> None:
        """Return once this attempt is decided. Raises: SETTLEMENT_PENDING where `deadline` (loop time) comes first.

        `may_spend`: what was shown counts for the credits that it buys, so that it is worth buying them now.
        """
        awaited = self._awaited.setdefault(purchase.id, _AwaitedPurchase())
        awaited.waiting += 1
        awaited.spending += may_spend
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    decided = awaited.decided  # what is decided from here on, be it while this looks
                    current = await self._parts.purchases.by_id(purchase.id)  # by the loop
                    if current is None or current.state is not purchase.state or current.attempt != purchase.attempt:
                        return
                    with suppress(TimeoutError):  # not `wait_for`, which forgets that its task was cancelled
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await decided.wait()
        except TimeoutError:
            raise await self.pending_now(key_of(purchase), purchase) from None
        finally:
            awaited.waiting -= 1
            awaited.spending -= may_spend
            if not awaited.waiting:
                del self._awaited[purchase.id]

    def announce(self, purchase_id: str) -> None:
        """Wake who waits for this purchase."""
        if (awaited := self._awaited.get(purchase_id)) is not None:
            awaited.decided.set()
            awaited.decided = asyncio.Event()

    def pending(self, key: PaymentKey, purchase: Purchase | None, transaction: str = "") -> ApiError:
        """503 for an outcome that nobody knows yet: the same payment must be sent again, never a new one."""
        known = "" if purchase is None else purchase.transaction_hash or ""
        details: JsonObject = {
            "retry": "send the same payment again",
            "statusUrl": self._parts.status_url + key.status_path,
            "transaction": transaction or known,
        }
        if purchase is not None:
            details["purchaseId"] = purchase.id
        return ApiError(
            Code.SETTLEMENT_PENDING,
            "the payment is being settled; send the same payment again, do not sign a new one",
            details=details,
        )

    async def pending_now(self, key: PaymentKey, purchase: Purchase | None) -> ApiError:
        """Make `pending` with the transaction that our hub names by now: what it told nobody yet is known there.

        It is not asked about a payment that nobody claimed here.
        """
        return self.pending(key, purchase, "" if purchase is None else await self._parts.hub.transaction_of(key))


_LOG = structlog.get_logger("tollkeeper.gateway.purchase.decisions")


class PurchaseDecisions:
    """Rules of an attempt to buy, and the decisions that answers of the facilitator bring; one per process."""

    def __init__(self, parts: PurchaseParts) -> None:
        self.parts = parts
        self.refusals = Refusals(parts)
        self.pending = PendingPurchases(parts)

    def require_proof(self, network: str) -> None:
        """Raises: UNAVAILABLE where nobody can tell now whether a payment is final."""
        if self.parts.supported().confirms:
            return
        if not self.parts.evidence.covers(network):
            raise ApiError(
                Code.UNAVAILABLE,
                "the payment hub cannot confirm on chain: set assumeValid, the URL of a node, or a hub that "
                "advertises confirm",
            )
        if problem := self.parts.evidence.problem(network):
            _LOG.warning("node_unusable", network=network, reason=problem)
            raise unavailable()

    def is_seen(self, network: str) -> bool:
        """Tell whether this gateway looks at the chain itself."""
        return not self.parts.supported().is_ours and self.parts.evidence.covers(network)

    async def require_unused(self, presented: PresentedPayment, *, is_trusted: bool) -> None:
        """Refuse a payment that is already used on the chain, or can be made no more, before it is claimed.

        It may have paid another server, and later looks could not tell the two apart. What is claimed here is ours to
        look for; what had failed here may have been made for another server since. Raises: the refusal; UNAVAILABLE
        where no node says so, unless the facilitator `is_trusted` to know.
        """
        offered = presented.offered
        known = await self.parts.purchases.by_payment(offered.key)
        if known is not None and known.state is not PurchaseState.FAILED:
            return
        try:
            refused = await self.refusals.of_used(presented.payment, offered)
        except RpcUnavailable as error:
            _LOG.warning("node_unusable", network=offered.key.network, reason=str(error))
            if is_trusted:
                return
            raise unavailable() from error
        if refused is not None:
            raise refused

    async def is_claimed(self, refused: ApiError, opened: OpenGate, key: PaymentKey) -> bool:
        """Tell whether somebody has bought with it meanwhile, or does: then that is why it is refused.

        Where it had failed here, its failure may have been taken back, however it is refused: as used, or because its
        gate asks for something else by now. Then it is claimed again, only while that may be (`purchase.monitor`), and
        only once our hub has seen it, whose word for its key decides.
        """
        purchase = await self.parts.purchases.by_payment(key)
        if purchase is None or purchase.state is not PurchaseState.FAILED:
            return purchase is not None
        if refused.code is Code.UNAVAILABLE or purchase.gate_id != opened.gate.id:
            return False
        return await self.is_under_way_again(purchase)

    async def is_under_way_again(self, purchase: Purchase | None, deadline: float | None = None) -> bool:
        """Take its last failure back where our hub does: nobody is to sign another while this one may be made.

        Raises: SETTLEMENT_PENDING where the hub does not say, by `deadline` (loop time) at the latest.
        """
        if purchase is None or not self.parts.supported().is_ours:
            return False
        told = await self._told_of(purchase, deadline)
        if told is None or told.status == "failed":
            return False
        if await self.parts.purchases.reopen(purchase, self.parts.clock_ms()):
            return True
        now = await self.parts.purchases.by_id(purchase.id)  # somebody else may have taken it back meanwhile
        return now is not None and now.state is not PurchaseState.FAILED

    async def is_paid_after_all(self, purchase: Purchase, deadline: float) -> bool:
        """Is a sale, void because its payment failed, good again? Nobody is to pay anew for what our hub makes yet.

        Raises: SETTLEMENT_PENDING while it makes it, or where it does not say, by `deadline` (loop time) at the latest.
        """
        is_unpaid = purchase.state is PurchaseState.VOID and purchase.failure == SETTLEMENT_FAILED
        if not is_unpaid or not self.parts.supported().is_ours:
            return False
        told = await self._told_of(purchase, deadline)
        if told is None or told.status == "failed":
            return False
        if told.status != "success":
            raise self.pending.pending(key_of(purchase), purchase, told.transaction)
        _LOG.warning("sale_paid_after_all", purchase_id=purchase.id, transaction=told.transaction)
        await self.parts.purchases.revive(purchase, told.transaction, self.parts.clock_ms())
        return True

    async def _told_of(self, purchase: Purchase, deadline: float | None) -> PaymentStatus | None:
        """Our hub's word on its payment. Raises: SETTLEMENT_PENDING where none comes by `deadline`."""
        key = key_of(purchase)
        try:
            async with asyncio.timeout_at(deadline):
                return await self.parts.hub.payment_status(key)
        except (HubUnreachableError, TimeoutError):
            raise self.pending.pending(key, purchase) from None

    def trust(self, network: str) -> TrustCaps:
        """The caps on trusted payments. Where none can be followed, a cap could never be lifted again."""
        return self.parts.cap if self._is_followed(network) else WITHOUT_LIMIT

    def _is_followed(self, network: str) -> bool:
        """Tell whether anybody can see that a trusted payment became final."""
        return self.parts.supported().is_ours or self.parts.evidence.covers(network)

    def purchase_data(self, gate: PayGate, terms: Terms, purchase_id: str) -> JsonObject:
        """Return what the hub's history says of the purchase."""
        return {
            "gateway": self.parts.gateway_url,
            "paygateId": gate.id,
            "slug": gate.slug,
            "title": gate.title,
            "price": format_usdc(terms.price_micro),
            "credits": terms.credits,
            "purchaseId": purchase_id,
        }

    # What an answer decides. These commits are the writing thread's, but for a grant's, which is the loop's where the
    # disk is quick.

    async def conclude(self, purchase: Purchase, answer: SettleAnswer, *, is_failed: bool = False) -> None:
        """Write what a settle answer decided of a claim that no request carries. Raises: as `not_bought` returns."""
        if answer.outcome is not SettleMeaning.SUCCESS:
            raise await self.not_bought(purchase, answer, is_failed=is_failed)
        await self.grant(purchase, answer, None)

    async def grant(self, purchase: Purchase, answer: SettleAnswer, spend_request: SpendRequest | None) -> SpendResult:
        """Grant what was paid for, once, and spend the first credit for `spend_request`, where there is one."""
        result = await self.parts.purchases.grant(
            purchase,
            answer.transaction,
            confirmed=not (purchase.assume_valid and self._is_followed(purchase.network)),
            is_followed=self.parts.supported().is_ours,
            spend_request=spend_request,
            now_ms=self.parts.clock_ms(),
        )
        self.pending.announce(purchase.id)
        return result

    async def not_bought(self, purchase: Purchase, answer: SettleAnswer, *, is_failed: bool = False) -> ApiError:
        """Write what another answer than a success decided: the refusal, or SETTLEMENT_PENDING.

        `is_failed`: of a failure, that it is the payment's, and not only this attempt's.
        """
        now_ms = self.parts.clock_ms()
        is_ours = self.parts.supported().is_ours
        if answer.outcome is SettleMeaning.PENDING:
            if answer.transaction and not is_ours:  # where the recovery looks for it
                await self.parts.purchases.name(purchase, answer.transaction)
            return self.pending.pending(key_of(purchase), purchase, answer.transaction)
        if answer.outcome is SettleMeaning.UNHEARD:
            await self.parts.purchases.fail(
                purchase, NOT_ATTEMPTED, None, now_ms, follow_ms=await self._look_for_former(purchase, now_ms)
            )
            self.pending.announce(purchase.id)
            return unheard()
        follow_ms = failure_looked_at_ms(answer, now_ms) if is_ours else None
        is_written = await self.parts.purchases.fail(
            purchase,
            answer.reason,
            answer.transaction or None,
            now_ms,
            follow_ms=follow_ms or await self._look_for_former(purchase, now_ms),
            is_followed_anew=is_failed,
        )
        self.pending.announce(purchase.id)
        if not is_written:  # nobody is told to pay again for credits that another process granted meanwhile
            known = await self.parts.purchases.by_id(purchase.id)
            if known is not None and known.state is not PurchaseState.FAILED:
                return self.pending.pending(key_of(purchase), known)
        _LOG.info("settlement_failed", purchase_id=purchase.id, reason=answer.reason)
        return not_settled(answer, purchase.network)

    async def _look_for_former(self, purchase: Purchase, now_ms: int) -> int | None:
        """Return when to look whether an earlier attempt's failure was taken back, of one that sent nothing itself."""
        was_sent = self.parts.supported().is_ours and await self.parts.purchases.shown_in(purchase) is not None
        return now_ms + FIRST_LOOK_MS if was_sent else None
