"""What became of payments that sales rest on, after their grant (contract 4.4; security F8, I5).

A trusted sale (`assumeValid`) is followed until its payment is final; every other one for as long as a reorganisation
may still take its payment away (`core.purchases.next_look_ms`): ever more rarely, and each look at a sale by its key,
at our hub, or on the chain where the facilitator is not ours. What has failed by proof voids the credits that are left.
What is pending again has not failed, and is followed until it is decided. A sale whose gate was deleted is followed as
any other without credits, for the books and for how far its buyer is trusted. A failure may be taken back, too: so a
sale that is void for one is followed as long, and gets back what it had, once its payment is made after all; and a
claim that failed by a transaction, or by clocks alone, is a claim again: whether its payment was made for it, its key
tells (`completer`). What a strange facilitator refused is looked at once its payment is over: the operator is told of
one that was made all the same, because whether it was for another server nobody can say.
What this module does not do: anything before the grant (`completer`).
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.purchases import FIRST_LOOK_MS, SETTLEMENT_FAILED, PurchaseState, late_look_ms, next_look_ms
from tollkeeper.core.wire import PaymentKey
from tollkeeper.gateway.findings import Owed, Seen
from tollkeeper.gateway.hub_client import HubUnreachableError, Settlement, SettleRequest
from tollkeeper.storage.purchase_rows import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.gateway.chain_proofs import ChainProofs
    from tollkeeper.gateway.findings import Finding
    from tollkeeper.gateway.hub_client import HubClient, SettleAnswer, Supported
    from tollkeeper.storage.purchase_rows import Purchase
    from tollkeeper.storage.purchases import Purchases

_PAGE: Final = 100
_AT_ONCE: Final = 32
_UNANSWERED_MS: Final = 30_000
# A chain of which nobody sees for so long what became of a payment shows it no more: its nodes keep no such history. So
# long, too, a sale on trust waits for who knows of it; where it is older than this process, an hour from its start on.
_OPEN_MS: Final = 86_400_000
_UNTOLD_SINCE_START_MS: Final = 3_600_000
_LOG = structlog.get_logger("tollkeeper.gateway.following")


class _Fate(Enum):
    """What is known of a payment now."""

    PAID = auto()
    FAILED = auto()  # by proof
    OPEN = auto()
    USED = auto()  # somebody used it, and no node shows who
    ELSEWHERE = auto()  # it had failed here, and was made in another transaction, perhaps for another server
    UNTOLD = auto()  # nobody knows anything of it


class _Standing(NamedTuple):
    """A payment's fate, in which transaction, and since when (Unix milliseconds; 0 where that is not told)."""

    fate: _Fate
    transaction: str = ""
    since_ms: int = 0


_UNTOLD: Final = _Standing(_Fate.UNTOLD)


class Following:
    """Of one process."""

    def __init__(
        self,
        purchases: Purchases,
        hub: HubClient,
        supported: Callable[[], Supported],
        proofs: ChainProofs,
        clock_ms: Callable[[], int],
    ) -> None:
        self._purchases = purchases
        self._hub = hub
        self._supported = supported
        self._proofs = proofs
        self._clock_ms = clock_ms
        self._began_ms = clock_ms()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._looked_ms: int | None = None

    async def finish_trust(self, purchase: Purchase, request: bytes) -> None:
        """Confirms or voids a trusted sale whose payment is decided; `request` as it was sold by.

        One of which nobody tells for a day is told to the operator, and stands. Raises: HubUnreachableError,
        RpcUnavailable.
        """
        place = SettleRequest.from_bytes(request).place if request else None
        is_elsewhere = place not in {None, self._hub.place}
        is_ours, standing = self._supported().is_ours, _UNTOLD
        if is_ours or place == self._hub.place:
            standing = await self._standing(purchase, is_paid=False)
            if is_ours and standing.fate is _Fate.OPEN:
                return
            if is_ours and standing.fate is _Fate.UNTOLD and not is_elsewhere:
                await self._tell_forgotten(purchase)
        is_followed = True
        is_doubted = is_elsewhere and standing.fate is _Fate.FAILED
        if is_doubted or standing.fate is _Fate.UNTOLD:
            former = await self._standing_of_former(purchase)
            # Anybody may bring our hub what the former one is making: it failed then because that one was faster.
            if not is_doubted or former.fate is _Fate.PAID:
                # Of what the former one made our hub tells nothing later either.
                standing, is_followed = former, not (is_ours and is_elsewhere)
        now_ms = self._clock_ms()
        if standing.fate is _Fate.PAID:
            await self._purchases.confirm(purchase, now_ms, standing.transaction, is_followed=is_followed)
        elif standing.fate is _Fate.FAILED:
            _LOG.error("trusted_settlement_failed", purchase_id=purchase.id, transaction=standing.transaction)
            await self._purchases.void(purchase, now_ms)
        elif now_ms > self._told_until_ms(purchase, standing):
            _LOG.error("trusted_sale_not_told", purchase_id=purchase.id, transaction=purchase.transaction_hash)
            await self._purchases.confirm(purchase, now_ms, is_followed=is_followed)

    def _told_until_ms(self, purchase: Purchase, standing: _Standing) -> int:
        """Until when it is waited for who tells of a sale on trust. A payment may be made until its end."""
        since_ms = purchase.attempt_ms
        if standing.fate is _Fate.OPEN and purchase.valid_before_seconds is not None:
            since_ms = max(since_ms, purchase.valid_before_seconds * 1000)
        return max(since_ms + _OPEN_MS, self._began_ms + _UNTOLD_SINCE_START_MS)

    async def look_again(self) -> None:
        """One look at every sale that is due for one. Raises: StorageError."""
        began_ms = self._clock_ms()
        if self._looked_ms is None or began_ms < self._looked_ms:  # the clock was put back, or may have been before
            await self._purchases.follow_sooner(began_ms)
        self._looked_ms = began_ms
        while True:
            due = await self._purchases.to_follow(_PAGE, self._clock_ms())
            looks = await asyncio.gather(*(self._look(purchase, paid_ms) for purchase, paid_ms in due))
            if any(looks):
                await self._purchases.follow([look for look in looks if look is not None])
            if len(due) < _PAGE:
                return

    async def _look(self, purchase: Purchase, paid_ms: int) -> Look | None:
        """What was seen; None where the sale ended by it, or came back."""
        known, state, standing = purchase.transaction_hash or "", purchase.state, None
        had_failed = state is PurchaseState.FAILED or purchase.failure == SETTLEMENT_FAILED
        is_due = purchase.remaining == purchase.granted  # its gate was deleted, and one call may be served yet
        is_used_up = state is PurchaseState.VOID and not (had_failed or is_due)
        paid_ms = min(paid_ms, self._clock_ms())  # of before the clock was put back: its age begins anew
        try:
            async with self._room:
                standing = await self._standing(purchase, is_paid=not had_failed)
        except (HubUnreachableError, RpcUnavailable) as error:
            _LOG.info("sale_not_followed", purchase_id=purchase.id, error=str(error))
        except Exception:  # noqa: BLE001 - one sale's trouble holds up no other
            _LOG.exception("sale_not_followed", purchase_id=purchase.id)
        if standing is None:
            return self._seen(purchase, known, paid_ms, self._clock_ms() + _UNANSWERED_MS, is_told=False)
        now_ms = self._clock_ms()
        if await self._is_decided(purchase, standing, now_ms, had_failed=had_failed):
            return None
        is_ours = self._supported().is_ours
        if state is PurchaseState.FAILED and not known and not is_ours:  # what a stranger refused
            may_come = standing.fate is _Fate.OPEN and now_ms <= purchase.attempt_ms + _OPEN_MS
            next_ms = late_look_ms(purchase.valid_before_seconds, now_ms) if may_come else None
            return self._seen(purchase, known, paid_ms, next_ms)
        if standing.fate is _Fate.OPEN:
            if is_ours or now_ms <= purchase.attempt_ms + _OPEN_MS:
                return self._seen(purchase, known, now_ms, now_ms + FIRST_LOOK_MS)
            _LOG.error("payment_not_shown", purchase_id=purchase.id, transaction=known)
        if standing.since_ms <= now_ms:  # else its clock is ahead of ours, or was when it wrote that
            paid_ms = max(paid_ms, standing.since_ms)
        is_used_up = is_used_up or (purchase.remaining == 0 and state is not PurchaseState.FAILED)
        next_ms = next_look_ms(paid_ms, now_ms, is_used_up=is_used_up)
        # What failed here by clocks alone our hub may have sent all the same: its transaction shows it to everybody.
        is_kept = state is PurchaseState.FAILED and not is_ours
        transaction = known if is_kept else standing.transaction or known
        return self._seen(purchase, transaction, paid_ms, next_ms, is_told=standing.fate is not _Fate.UNTOLD)

    async def _is_decided(self, purchase: Purchase, standing: _Standing, now_ms: int, *, had_failed: bool) -> bool:
        """Did the sale end by what was seen, or come back? That is written, and told to the operator.

        So is what was made all the same after it had failed here: whether it bought something elsewhere, he knows.
        """
        has_failed = purchase.state is PurchaseState.FAILED
        if had_failed and standing.fate is _Fate.PAID:
            _LOG.warning("sale_paid_after_all", purchase_id=purchase.id, transaction=standing.transaction)
            await self._take_back(purchase, standing.transaction, now_ms)
        elif has_failed and standing.fate is _Fate.USED:  # perhaps for it: the claim is parked then
            _LOG.error("payment_used_and_not_shown", purchase_id=purchase.id)
            await self._take_back(purchase, "", now_ms)
        elif standing.fate is _Fate.FAILED and not had_failed:
            _LOG.error("sale_lost_its_payment", purchase_id=purchase.id, transaction=purchase.transaction_hash)
            await self._purchases.void(purchase, now_ms)
        else:
            if standing.fate is _Fate.ELSEWHERE:
                _LOG.error("failed_payment_was_made", purchase_id=purchase.id, transaction=standing.transaction)
            return False
        return True

    async def _take_back(self, purchase: Purchase, transaction: str, now_ms: int) -> None:
        """A failure was none in the end. A claim's outcome is found out by `completer`, as any claim's."""
        if purchase.state is PurchaseState.VOID:
            await self._purchases.revive(purchase, transaction, now_ms)
        else:
            await self._purchases.reopen(purchase, now_ms)

    async def _tell_forgotten(self, purchase: Purchase) -> None:
        """Our hub made its payment, and has no record of it any more: the sale stands, and its operator is told."""
        if await self._purchases.forgotten(purchase, self._clock_ms()):
            _LOG.error("hub_forgot_sale", purchase_id=purchase.id, transaction=purchase.transaction_hash)

    def _seen(
        self, purchase: Purchase, transaction: str, paid_ms: int, next_ms: int | None, *, is_told: bool = True
    ) -> Look:
        is_renamed = transaction != (purchase.transaction_hash or "")
        return Look(purchase.id, purchase.attempt, purchase.state, transaction, paid_ms, next_ms, is_told, is_renamed)

    async def _standing(self, purchase: Purchase, *, is_paid: bool) -> _Standing:
        """What is known of its payment now; `is_paid`: it was known to be paid before.

        Raises: HubUnreachableError, RpcUnavailable.
        """
        if not self._supported().is_ours:
            return await self._standing_on_chain(purchase, is_paid=is_paid)
        told = await self._hub.payment_status(key_of(purchase))
        if told is None:
            if is_paid:
                await self._tell_forgotten(purchase)
            return _UNTOLD
        fate = {"success": _Fate.PAID, "failed": _Fate.FAILED}.get(told.status, _Fate.OPEN)
        return _Standing(fate, told.transaction, told.updated_ms)

    async def _standing_of_former(self, purchase: Purchase) -> _Standing:
        """What the chain shows of a sale on trust for which another facilitator was asked than is set now.

        That one named the transaction when it was sold for, and nobody knows its signers any more. So another's
        transaction says nothing here. Raises: RpcUnavailable.
        """
        finding, is_named = await self._seen_on_chain(purchase)
        if finding is None:
            return _UNTOLD
        if finding.seen is Seen.FAILED:
            return _Standing(_Fate.FAILED, finding.transaction)
        if finding.seen is Seen.PAID or (finding.is_made and is_named):
            return _Standing(_Fate.PAID, finding.transaction)
        return _Standing(_Fate.OPEN if finding.seen is Seen.NOTHING else _Fate.UNTOLD)

    async def _standing_on_chain(self, purchase: Purchase, *, is_paid: bool) -> _Standing:
        """What the chain shows of a sale whose facilitator is a stranger's. Raises: RpcUnavailable."""
        finding, is_named = await self._seen_on_chain(purchase)
        if finding is None:
            return _UNTOLD
        if purchase.state is PurchaseState.FAILED and not is_named:
            return _Standing(_Fate.ELSEWHERE if finding.is_made else _Fate.FAILED, finding.transaction)
        # Whose transaction it was, was judged when it was sold for: a facilitator may have other signers by now.
        is_the_same = is_paid and finding.seen is Seen.FOREIGN and is_named
        if finding.seen is Seen.PAID or is_the_same:
            return _Standing(_Fate.PAID, finding.transaction)
        if finding.transaction or finding.seen is Seen.FAILED:
            return _Standing(_Fate.FAILED, finding.transaction)
        return _Standing(_Fate.OPEN if finding.seen is Seen.NOTHING else _Fate.USED)

    async def _seen_on_chain(self, purchase: Purchase) -> tuple[Finding | None, bool]:
        """What a node shows of its payment, and whether in the very transaction that the sale names, be it none.

        None where there is no node for its network. Raises: RpcUnavailable.
        """
        if not self._proofs.covers(purchase.network):
            return None, False
        named = purchase.transaction_hash or ""
        senders = self._supported().senders_on(purchase.network)
        finding = await self._proofs.find(await owed_by(self._purchases, purchase), named, senders)
        return finding, finding.transaction in {named, named.lower()}


def failure_looked_at_ms(purchase: Purchase, answer: SettleAnswer, now_ms: int, *, is_seen: bool) -> int | None:
    """When a claim's failure is looked at again (Unix ms), None for never. `is_seen`: on the chain, by ourselves.

    Where a transaction shows it, a reorganisation may take that away, and what clocks show, two show that differ. What
    a stranger refused he may have sent all the same.
    """
    if answer.transaction or answer.outcome is Settlement.REFUSED:
        return now_ms + FIRST_LOOK_MS
    return late_look_ms(purchase.valid_before_seconds, now_ms) if is_seen else None


def key_of(purchase: Purchase) -> PaymentKey:
    """The payment's identity."""
    return PaymentKey(purchase.network, purchase.asset, purchase.payer, purchase.nonce)


async def owed_by(purchases: Purchases, purchase: Purchase) -> Owed:
    """What its payment is to transfer. Raises: SealError."""
    pay_to = await purchases.pay_to(purchase)
    return Owed(key_of(purchase), pay_to, purchase.value_micro, purchase.valid_before_seconds, purchase.attempt_ms)
