"""Monitor of the payments that sales rest on, after their grant (contract 4.4; security F8, I5).

A trusted sale (`assumeValid`) is followed until its payment is final: at our hub by its key, at another facilitator on
the chain. Every other sale of our hub's is followed for as long as a reorganisation may still take its payment away
(`core.purchases.next_look_ms`), ever more rarely; what another facilitator made counted only once it was deep enough.
What has failed by proof voids the credits that are left. What is pending again has not failed, and is followed until it
is decided. A sale whose gate was deleted is followed as any other without credits, for the books and for how far its
buyer is trusted. A failure may be taken back, too: so a sale that is void for one is followed as long, and gets back
what it had, once its payment is made after all; and a claim that failed by a transaction, or by clocks alone, is a
claim again: whether its payment was made for it, its key tells (`purchase.recovery`).
What this module does not do: anything before the grant (`purchase.recovery`).
`PurchaseParts` is what buying, waiting, watching and recovering have in common.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tollkeeper.api import new_request_id
from tollkeeper.core.purchases import FIRST_LOOK_MS, SETTLEMENT_FAILED, PurchaseState, next_look_ms
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.gateway.evidence.port import EvidenceOutcome, ExpectedTransfer
from tollkeeper.gateway.facilitator.client import HubUnreachableError, Senders, SettleMeaning, SettleRequest
from tollkeeper.storage.ledger.purchase_rows import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.trust import TrustCaps
    from tollkeeper.gateway.evidence.nodes import EvidenceNodes
    from tollkeeper.gateway.facilitator.client import HubClient, SettleAnswer, Supported
    from tollkeeper.storage.ledger.purchase_rows import Purchase
    from tollkeeper.storage.ledger.purchases import Purchases


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseParts:
    """Books, facilitator, evidence, and the gateway's own names.

    `status_url`: the hub's public URL, where anybody can follow a payment. `cap`: what one payer may owe on trust.
    """

    purchases: Purchases
    hub: HubClient
    supported: Callable[[], Supported]
    evidence: EvidenceNodes
    clock_ms: Callable[[], int]
    cap: TrustCaps
    gateway_url: str
    status_url: str


_PAGE: Final = 100
_AT_ONCE: Final = 32
_UNANSWERED_MS: Final = 30_000
# So long a sale on trust waits for who knows of its payment; one that is older than this process, an hour from its
# start on.
_OPEN_MS: Final = 86_400_000
_UNTOLD_SINCE_START_MS: Final = 3_600_000
# Nobody knows any more who sent for a facilitator that is not set now: what it named is its own.
_FORMER: Final = Senders(frozenset(), are_all=False)
_LOG = structlog.get_logger("tollkeeper.gateway.purchase.monitor")


class _Fate(Enum):
    """Fates of a payment, as it is known now."""

    PAID = auto()
    FAILED = auto()  # by proof
    OPEN = auto()
    UNTOLD = auto()  # nobody can tell


class _Standing(NamedTuple):
    """A payment's fate, in which transaction, and since when (Unix milliseconds; 0 where that is not told)."""

    fate: _Fate
    transaction: str = ""
    since_ms: int = 0


_UNTOLD: Final = _Standing(_Fate.UNTOLD)
_FATES: Final = {EvidenceOutcome.PAID: _Fate.PAID, EvidenceOutcome.FAILED: _Fate.FAILED}


class SaleMonitor:
    """The monitor of one process."""

    def __init__(self, parts: PurchaseParts) -> None:
        self._parts = parts
        self._began_ms = parts.clock_ms()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._looked_ms: int | None = None

    async def finish_trust(self, purchase: Purchase, request: bytes) -> None:
        """Confirm or void a trusted sale whose payment is decided; `request` as it was sold by.

        One of which nobody tells for a day is told to the operator, and stands. Raises: HubUnreachableError,
        RpcUnavailable.
        """
        place = SettleRequest.from_bytes(request).place if request else None
        is_former = place not in {None, self._parts.hub.place}
        is_ours, standing = self._parts.supported().is_ours, _UNTOLD
        if is_ours:
            standing = await self._told_by_hub(purchase)
            if standing.fate is _Fate.OPEN:
                return
            if standing.fate is _Fate.UNTOLD and not is_former:
                await self._tell_forgotten(purchase)
        is_followed = is_ours
        if standing.fate is not _Fate.PAID and (is_former or not is_ours):
            shown = await self._shown_by_chain(purchase, is_former=is_former)
            # Anybody may bring our hub what the former one is making: it failed then because that one was faster.
            if standing.fate is not _Fate.FAILED or shown.fate is _Fate.PAID:
                standing, is_followed = shown, False
        now_ms = self._parts.clock_ms()
        if standing.fate is _Fate.PAID:
            await self._parts.purchases.confirm(purchase, now_ms, standing.transaction, is_followed=is_followed)
        elif standing.fate is _Fate.FAILED:
            _LOG.error("trusted_settlement_failed", purchase_id=purchase.id, transaction=standing.transaction)
            await self._parts.purchases.void(purchase, now_ms, is_followed=is_followed)
        elif now_ms > self._told_until_ms(purchase, standing):
            _LOG.error("trusted_sale_not_told", purchase_id=purchase.id, transaction=purchase.transaction_hash)
            await self._parts.purchases.confirm(purchase, now_ms, is_followed=is_followed)

    def _told_until_ms(self, purchase: Purchase, standing: _Standing) -> int:
        """Until when it is waited for who tells of a sale on trust. A payment may be made until its end."""
        since_ms = purchase.attempt_ms
        if standing.fate is _Fate.OPEN and purchase.valid_before_seconds is not None:
            since_ms = max(since_ms, purchase.valid_before_seconds * 1000)
        return max(since_ms + _OPEN_MS, self._began_ms + _UNTOLD_SINCE_START_MS)

    async def look_again(self) -> None:
        """Look once at every sale of our hub's that is due for it. Raises: StorageError."""
        if not self._parts.supported().is_ours:
            return
        began_ms = self._parts.clock_ms()
        if self._looked_ms is None or began_ms < self._looked_ms:  # the clock was put back, or may have been before
            await self._parts.purchases.follow_sooner(began_ms)
        self._looked_ms = began_ms
        while True:
            due = await self._parts.purchases.to_follow(_PAGE, self._parts.clock_ms())
            looks = await asyncio.gather(*(self._look(purchase, paid_ms) for purchase, paid_ms in due))
            if any(looks):
                await self._parts.purchases.follow([look for look in looks if look is not None])
            if len(due) < _PAGE:
                return

    async def _look(self, purchase: Purchase, paid_ms: int) -> Look | None:
        """Return what was seen; None where the sale ended by it, or came back."""
        known, state, standing = purchase.transaction_hash or "", purchase.state, None
        had_failed = state is PurchaseState.FAILED or purchase.failure == SETTLEMENT_FAILED
        is_due = purchase.remaining == purchase.granted  # its gate was deleted, and one call may be served yet
        is_used_up = state is PurchaseState.VOID and not (had_failed or is_due)
        paid_ms = min(paid_ms, self._parts.clock_ms())  # of before the clock was put back: its age begins anew
        try:
            async with self._room:
                standing = await self._told_by_hub(purchase)
        except HubUnreachableError as error:
            _LOG.info("sale_not_followed", purchase_id=purchase.id, error=str(error))
        except Exception:  # noqa: BLE001 - one sale's trouble holds up no other
            _LOG.exception("sale_not_followed", purchase_id=purchase.id)
        if standing is None:
            return self._seen(purchase, known, paid_ms, self._parts.clock_ms() + _UNANSWERED_MS, is_told=False)
        if standing.fate is _Fate.UNTOLD and not had_failed:
            await self._tell_forgotten(purchase)
        now_ms = self._parts.clock_ms()
        if await self._is_decided(purchase, standing, now_ms, had_failed=had_failed):
            return None
        if standing.fate is _Fate.OPEN:
            return self._seen(purchase, known, now_ms, now_ms + FIRST_LOOK_MS)
        if standing.since_ms <= now_ms:  # else its clock is ahead of ours, or was when it wrote that
            paid_ms = max(paid_ms, standing.since_ms)
        is_used_up = is_used_up or (purchase.remaining == 0 and state is not PurchaseState.FAILED)
        next_ms = next_look_ms(paid_ms, now_ms, is_used_up=is_used_up)
        # What failed here by clocks alone our hub may have sent all the same: its transaction shows it to everybody.
        transaction = standing.transaction or known
        return self._seen(purchase, transaction, paid_ms, next_ms, is_told=standing.fate is not _Fate.UNTOLD)

    async def _is_decided(self, purchase: Purchase, standing: _Standing, now_ms: int, *, had_failed: bool) -> bool:
        """Write that a sale ended by what was seen, or came back, and tell the operator; False where neither is so."""
        if had_failed and standing.fate is _Fate.PAID:
            _LOG.warning("sale_paid_after_all", purchase_id=purchase.id, transaction=standing.transaction)
            if purchase.state is PurchaseState.VOID:
                await self._parts.purchases.revive(purchase, standing.transaction, now_ms)
            else:  # a claim's outcome is found out by `purchase.recovery`, as any claim's
                await self._parts.purchases.reopen(purchase, now_ms)
        elif standing.fate is _Fate.FAILED and not had_failed:
            _LOG.error("sale_lost_its_payment", purchase_id=purchase.id, transaction=purchase.transaction_hash)
            await self._parts.purchases.void(purchase, now_ms)
        else:
            return False
        return True

    async def _tell_forgotten(self, purchase: Purchase) -> None:
        """Tell the operator, once, that our hub has no record of a payment that it made; the sale stands."""
        if await self._parts.purchases.forgotten(purchase, self._parts.clock_ms()):
            _LOG.error("hub_forgot_sale", purchase_id=purchase.id, transaction=purchase.transaction_hash)

    def _seen(
        self, purchase: Purchase, transaction: str, paid_ms: int, next_ms: int | None, *, is_told: bool = True
    ) -> Look:
        is_renamed = transaction != (purchase.transaction_hash or "")
        return Look(purchase.id, purchase.attempt, purchase.state, transaction, paid_ms, next_ms, is_told, is_renamed)

    async def _told_by_hub(self, purchase: Purchase) -> _Standing:
        """Read the payment's public status at our hub. Raises: HubUnreachableError."""
        told = await self._parts.hub.payment_status(key_of(purchase))
        if told is None:
            return _UNTOLD
        fate = {"success": _Fate.PAID, "failed": _Fate.FAILED}.get(told.status, _Fate.OPEN)
        return _Standing(fate, told.transaction, told.updated_ms)

    async def _shown_by_chain(self, purchase: Purchase, *, is_former: bool) -> _Standing:
        """Look for a trusted sale's payment on the chain. Raises: RpcUnavailable.

        `is_former`: another facilitator was asked for it than the one that is set.
        """
        if not self._parts.evidence.covers(purchase.network):
            return _UNTOLD
        senders = _FORMER if is_former else self._parts.supported().senders_on(purchase.network)
        expected = await expected_of(self._parts.purchases, purchase, senders)
        finding = await self._parts.evidence.on(purchase.network).of(expected)
        fate = _FATES.get(finding.outcome, _Fate.OPEN if finding.may_change else _Fate.UNTOLD)
        return _Standing(fate, finding.transaction)


def failure_looked_at_ms(answer: SettleAnswer, now_ms: int) -> int | None:
    """Return when a claim's failure at our hub is looked at again (Unix ms), None for never.

    Where a transaction shows it, a reorganisation may take that away, and what clocks show, two show that differ.
    """
    return now_ms + FIRST_LOOK_MS if answer.transaction or answer.outcome is SettleMeaning.REFUSED else None


def new_purchase_id() -> str:
    """Make the name of a purchase."""
    return "pur_" + new_request_id()


def key_of(purchase: Purchase) -> PaymentKey:
    """The payment's identity."""
    return PaymentKey(purchase.network, purchase.asset, purchase.payer, purchase.nonce)


async def expected_of(purchases: Purchases, purchase: Purchase, senders: Senders) -> ExpectedTransfer:
    """Return what a sale's payment transfers, in which transaction by the facilitator's word. Raises: SealError."""
    return ExpectedTransfer(
        key_of(purchase),
        await purchases.pay_to(purchase),
        purchase.value_micro,
        purchase.valid_before_seconds,
        purchase.attempt_ms,
        senders,
        purchase.transaction_hash or "",
    )
