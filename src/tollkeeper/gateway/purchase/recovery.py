"""Finishes what a crash or a lost answer left of the gateway's claims, without the buyer (contract 4.3, 4.4).

A claim is never forgotten and never guessed at: the very request that was first sent is sent again under its key, and
our hub answers with that attempt's outcome or, once the request has expired, that it never was. At a facilitator that
knows no keys the claim is looked for on the chain, or, without a node, parked for the operator. What became of payments
after the grant is looked at in its passes too; how, is in `purchase.monitor`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.limits import SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway.evidence.port import EvidenceOutcome
from tollkeeper.gateway.facilitator.client import AWAY, HubUnreachableError, SettleAnswer, SettleMeaning, SettleRequest
from tollkeeper.gateway.purchase.monitor import SaleMonitor, expected_of, key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.gateway.facilitator.client import PaymentStatus, Supported
    from tollkeeper.gateway.purchase.service import PurchaseService
    from tollkeeper.storage.ledger.purchase_rows import Purchase

INTERVAL_SECONDS = 2.0
CLAIMS_MAX: Final = 10_000
AT_ONCE: Final = 32
# So long a claim waits for the facilitator that was asked, where another one is set by now, or for the key that its
# request is sealed under; of one that is older than this process, from its start on: before that nobody was told.
_ELSEWHERE_MS: Final = 3_600_000
# The same where it is our hub, which has decided the payment and does not say for whom: since it first did not.
_NOT_TOLD_MS: Final = 86_400_000
# And where it is away each time that it is asked for whom, though it shows the payment: since the claim.
_AWAY_MS: Final = 7 * _NOT_TOLD_MS
# What the clocks of gateway and hub may differ by, and a claim may wait for its commit.
_EXPIRY_MARGIN_SECONDS: Final = 30
_OUTCOME_UNKNOWN: Final = "outcome_unknown"
_LOG = structlog.get_logger("tollkeeper.gateway.purchase.recovery")


class PurchaseRecovery:
    """One pass over the open claims every `interval_seconds`."""

    interval_seconds = INTERVAL_SECONDS

    def __init__(self, buying: PurchaseService) -> None:
        self._buying = buying
        self._parts = parts = buying.decisions.parts
        self._began_ms = parts.clock_ms()
        self._monitor = SaleMonitor(parts)
        self._working: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def aclose(self) -> None:
        """Stop what is under way: every claim stands as it is, and the next start goes on with it."""
        tasks = list(self._working.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Run until cancelled. A failed pass is logged and tried again."""
        while True:
            try:
                await self.complete_once()
            except (ApiError, HubUnreachableError) as error:
                _LOG.warning("pass_failed", error=str(error))
            except Exception:  # noqa: BLE001 - logged; the next pass tries again
                _LOG.exception("pass_failed")
            await asyncio.sleep(self.interval_seconds)

    async def complete_once(self) -> None:
        """One pass: every open claim of nobody's request, then what became of sales' payments.

        Nothing is decided before the facilitator has said what it is. One claim's trouble holds up no other.
        """
        supported = self._parts.supported()
        has_said = supported.is_ours or supported.assets  # a hub of ours knows what it settled on networks of before
        if not has_said:
            return
        claims = await self._parts.purchases.in_flight(CLAIMS_MAX)
        under_way = self._buying.under_way()
        for purchase, request in claims:
            if key_of(purchase) not in under_way:
                self._begin(purchase.id, partial(self._finish, purchase, request))
        for purchase, request in await self._parts.purchases.unconfirmed(CLAIMS_MAX):
            self._begin(purchase.id, partial(self._monitor.finish_trust, purchase, request))
        self._begin("confirmed sales", self._monitor.look_again)

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` unless it goes on since an earlier pass; at most AT_ONCE at a time. A purchase's id names its."""
        if name in self._working:
            return
        task = asyncio.create_task(self._one(work))
        self._working[name] = task
        task.add_done_callback(lambda _: self._working.pop(name, None))

    async def _one(self, work: Callable[[], Awaitable[None]]) -> None:
        async with self._room:
            try:
                await work()
            except (ApiError, HubUnreachableError, RpcUnavailable) as error:
                _LOG.info("claim_waits", error=str(error))
            except Exception:  # noqa: BLE001 - logged; the next pass tries this claim again
                _LOG.exception("claim_failed")

    async def _finish(self, purchase: Purchase, request: bytes) -> None:
        supported = self._parts.supported()
        if not supported.is_ours:
            await self._finish_foreign(purchase, supported)
            return
        if not request:
            # Its key is not in the ring: of a backup from before that was replaced, which the operator may put back.
            await self._wait_or_park(purchase, "claim_waits_for_its_key")
            return
        stored = SettleRequest.from_bytes(request)
        if stored.place not in {None, self._parts.hub.place}:
            await self._finish_elsewhere(purchase, stored)
        else:
            await self._finish_here(purchase, stored)

    async def _finish_foreign(self, purchase: Purchase, supported: Supported) -> None:
        """Look for the payment on the chain, and leave to the operator what it does not show (contract 4.3)."""
        is_over = _is_request_expired(purchase, self._parts.clock_ms())  # else an answer may still come
        if not self._parts.evidence.covers(purchase.network):
            if is_over:
                await self._park(purchase)
            return
        expected = await expected_of(self._parts.purchases, purchase, supported.senders_on(purchase.network))
        finding = await self._parts.evidence.on(purchase.network).of(expected)
        if finding.outcome is not EvidenceOutcome.UNKNOWN:
            await self._conclude(purchase, finding.answer)
        elif is_over and not finding.may_change:
            failure = "not_of_the_facilitators_signers" if finding.transaction else _OUTCOME_UNKNOWN
            await self._park(purchase, failure, finding.transaction)

    async def _finish_here(self, purchase: Purchase, request: SettleRequest) -> None:
        """Our hub was asked, and says what it knows."""
        # Before the question, lest the answer be older.
        is_expired = _is_request_expired(purchase, self._parts.clock_ms())
        status = await self._parts.hub.payment_status(key_of(purchase))
        if status is not None or (not is_expired and self._buying.pending.has_one_for(purchase.id)):
            # Known to the hub, but perhaps for somebody else: only our key tells whether the success is ours. Unknown
            # there, and the buyer is back and waits: the request never arrived, and now it shall.
            answer = await self._parts.hub.settle(request)
            if status is not None:
                answer = await self._by_earlier_keys(purchase, request, status, answer)
                if await self._is_not_told(purchase, answer, status):
                    return
            if answer.outcome is SettleMeaning.UNHEARD and status is None:
                if not _is_of_later(purchase, self._parts.clock_ms()):
                    return  # it may be heard yet: the clock by which it is of a time to come goes on
                # By our clock, too, which was put back: no copy of it is under way for so long.
            elif answer.outcome is SettleMeaning.UNHEARD:
                # It may have been heard before and have failed: then the hub keeps that under this attempt's number.
                answer = SettleAnswer(SettleMeaning.REFUSED, "", "refused_by_hub")
            if answer.outcome is SettleMeaning.REFUSED and status is not None:
                answer = replace(answer, transaction=status.transaction)  # it shows the payment to everybody
        elif is_expired:
            unknown = await self._of_unknown(purchase, request)
            if unknown is None:
                return
            answer = unknown
        else:
            return  # it may still be on its way to the hub; it expires soon
        await self._conclude_here(purchase, answer, status)

    async def _of_unknown(self, purchase: Purchase, request: SettleRequest) -> SettleAnswer | None:
        """Find out about an expired request whose payment our hub has no record of: it never came there.

        But for a hub that was put back to a backup of before, which may have made the payment: that shows it as used.
        Then it has it settled, which can only find that out, and starts nothing (security F22). None where it does not
        take that: the operator has a day. So where another facilitator was asked at its place, under no key that it
        knows, and at once. Raises: UNAVAILABLE.
        """
        verdict = await self._parts.hub.verify(request.members)
        is_used = verdict.reason in FAMILIES[NETWORKS[purchase.network].family].shown_by_used
        if verdict.is_valid or not is_used:
            return SettleAnswer(SettleMeaning.REFUSED, "", "never_sent")
        if not request.has_key:
            await self._park(purchase)
            return None
        answer = await self._parts.hub.settle(self._parts.hub.signed_anew(request))
        if answer.outcome is not SettleMeaning.UNHEARD:
            return answer
        if self._parts.clock_ms() > purchase.attempt_ms + _NOT_TOLD_MS:
            await self._park(purchase)
        return None

    async def _conclude_here(self, purchase: Purchase, answer: SettleAnswer, before: PaymentStatus | None) -> None:
        """Write what our hub said, which showed `before` when it was asked.

        A failure is the key's, and perhaps not the payment's, which may be made for another. Where it is shown
        otherwise by now, its failure may have been taken back behind its key's answer: the next pass asks again.
        """
        is_failed = answer.outcome is SettleMeaning.REFUSED and before is not None
        if answer.outcome is SettleMeaning.FAILED:
            status = await self._parts.hub.payment_status(key_of(purchase))
            is_failed = status is not None and status.status == "failed"
            if not is_failed and status != before:
                return
        await self._conclude(purchase, answer, is_failed=is_failed)

    async def _by_earlier_keys(
        self, purchase: Purchase, request: SettleRequest, status: PaymentStatus, answer: SettleAnswer
    ) -> SettleAnswer:
        """Find what an earlier attempt came to, if this one failed and the payment did not; else the answer itself.

        A hub that trusts no gateway knows of no two requests that they are for one purchase: it keeps with this one's
        key that it was refused, though an earlier one's failure is taken back. Where it does not say of all of them
        now, or refuses to, because an earlier one asked for something else, it has not told.
        """
        if answer.outcome is not SettleMeaning.FAILED or status.status == "failed":
            return answer
        untold: SettleAnswer | None = None
        for attempt in range(1, purchase.attempt):
            earlier = await self._parts.hub.settle(request.under(f"{purchase.id}.{attempt}"))
            if earlier.outcome is SettleMeaning.SUCCESS:
                return earlier
            if earlier.outcome is not SettleMeaning.FAILED:
                untold = untold or earlier
        return untold or answer

    async def _is_not_told(self, purchase: Purchase, answer: SettleAnswer, status: PaymentStatus) -> bool:
        """Tell whether our hub has the payment on record, and does not say whether for this claim.

        Nothing is started by such an answer, and what was started before, for whomever, is not taken back by it. The
        operator has a day to have it told, and then the claim: the payment is decided, so that waiting ends nothing.
        A hub that is away says nothing, and no day passes by that; but one that shows the payment and is away whenever
        it is asked for whom, is not waited for longer than a week.
        """
        is_refused = answer.outcome in {SettleMeaning.REFUSED, SettleMeaning.UNHEARD}
        if not (is_refused or answer.outcome is SettleMeaning.PENDING) or (is_refused and status.status == "failed"):
            return False
        is_decided, is_away = status.status in {"success", "failed"}, answer.reason in AWAY
        now_ms = self._parts.clock_ms()
        is_long = is_decided and (
            now_ms > max(purchase.attempt_ms + _AWAY_MS, self._began_ms + _ELSEWHERE_MS)
            if is_away
            else now_ms > await self._parts.purchases.untold_since(purchase, now_ms) + _NOT_TOLD_MS
        )
        is_told_of = not is_away or now_ms > purchase.attempt_ms + _NOT_TOLD_MS
        if is_long:
            await self._park(purchase)
        elif is_refused or (status.status == "success" and is_told_of):
            _LOG.error("claim_not_told", purchase_id=purchase.id, status=status.status)
        return True

    async def _finish_elsewhere(self, purchase: Purchase, request: SettleRequest) -> None:
        """Another facilitator was asked than is set now, which may be the same at another URL, or know nothing of it.

        So only its success for the claim's key counts. The operator has an hour to set the former one again.
        """
        if not _is_request_expired(purchase, self._parts.clock_ms()):
            return
        if await self._parts.hub.payment_status(key_of(purchase)) is not None:
            answer = await self._parts.hub.settle(request)
            if answer.outcome is SettleMeaning.SUCCESS:
                await self._conclude(purchase, answer)
                return
        await self._wait_or_park(purchase, "claim_waits_for_its_facilitator", asked=request.place or "this one")

    async def _wait_or_park(self, purchase: Purchase, event: str, **told: str) -> None:
        """The operator has an hour to set what it waits for; he is told by that event."""
        if self._parts.clock_ms() > max(purchase.attempt_ms, self._began_ms) + _ELSEWHERE_MS:
            await self._park(purchase)
        else:
            _LOG.warning(event, purchase_id=purchase.id, **told)

    async def _park(self, purchase: Purchase, failure: str = _OUTCOME_UNKNOWN, transaction: str = "") -> None:
        known = {"payer": purchase.payer, "nonce": purchase.nonce, "transaction": transaction}
        _LOG.error("claim_parked", purchase_id=purchase.id, reason=failure, **known)
        await self._parts.purchases.park(purchase, failure, self._parts.clock_ms())

    async def _conclude(self, purchase: Purchase, answer: SettleAnswer, *, is_failed: bool = False) -> None:
        try:
            await self._buying.decisions.conclude(purchase, answer, is_failed=is_failed)
        except ApiError as decided:
            if decided.code is not Code.SETTLEMENT_PENDING:  # else the next pass asks again
                _LOG.info("claim_completed", purchase_id=purchase.id, code=decided.code.value)


def _is_request_expired(purchase: Purchase, now_ms: int) -> bool:
    """May our hub no longer start this attempt? Its signature has expired (contract 4.3), with a margin for clocks."""
    return now_ms > purchase.attempt_ms + (SETTLE_REQUEST_LIFETIME_SECONDS + _EXPIRY_MARGIN_SECONDS) * 1000


def _is_of_later(purchase: Purchase, now_ms: int) -> bool:
    """Is this attempt, by its time, yet to be made? Then our clock was put back since, with a margin for clocks."""
    return purchase.attempt_ms > now_ms + _EXPIRY_MARGIN_SECONDS * 1000
