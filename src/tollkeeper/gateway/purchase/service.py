"""The service of purchases: who waits for which attempt, and what an answer decides (contract 4.2 to 4.4).

An attempt (`attempt.PurchaseAttempt`) belongs to the payment and not to the request: a buyer who goes away while it
settles finds the credits when the same payment is presented again. Concurrent requests with one payment share one
attempt; across processes the claim row decides. What a crash or a lost answer leaves behind is finished by
`purchase.recovery`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import structlog

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.purchases import Spend
from tollkeeper.gateway.purchase.attempt import ASK_AGAIN
from tollkeeper.gateway.purchase.monitor import key_of
from tollkeeper.gateway.purchase.payer_proofs import PayerProofs
from tollkeeper.storage.ledger.purchase_rows import SpendResult

if TYPE_CHECKING:
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.gateway.purchase.attempt import PurchaseAttempt, Waiter
    from tollkeeper.gateway.purchase.decisions import PurchaseDecisions
    from tollkeeper.storage.ledger.payer_proofs import ShownPayments

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
        """Waits until no settlement is under way, so that an accepted payment is not left to recovery."""
        while self._running:
            await asyncio.wait([running.task for running in self._running.values()])
