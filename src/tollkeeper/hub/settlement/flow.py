"""Settling a payment once and handing its success out once (contract 5.2; security A-01, A-05, A-25, F1-F5).

`SettlementFlow.settle` is the only way to settle, on every chain. Of any number of callers with one payment, in any
number of processes, the claim's commit picks the one that settles it; the others wait for the outcome and learn that it
is a duplicate. The one goes, in `_attempt`, through the verbs of its family (`settlement.family`):

1. simulate: nothing is written for a payment that the chain would refuse;
2. claim, nonce, signature and raw transaction in one commit;
3. send: only what is on the disk;
4. observe and record, by `settlement.pipeline`, until the outcome is proven or the caller's time is up.

What a crash cuts short, `settlement.recovery` finishes by the same verbs.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeAlias

import structlog

from tollkeeper.api import new_request_id
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.settlement.states import State
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.refusals import unavailable
from tollkeeper.hub.settlement.concurrent_payers import ConcurrentPayers
from tollkeeper.hub.settlement.family import TermsT
from tollkeeper.hub.settlement.orders import AccountT, GivenUpError, PayloadT, PriorOutcome, SettleOutcome, refusal
from tollkeeper.hub.settlement.outcomes import failed, has_outcome, success
from tollkeeper.hub.settlement.pipeline import Pipeline
from tollkeeper.storage.engine.database import NotTakenError, StorageError
from tollkeeper.storage.hub.claims import ClaimedSettlement
from tollkeeper.storage.hub.payers import Overdrawn, Suspended
from tollkeeper.storage.hub.settlements import Settlement, find_settlement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.hub.settlement.family import ChainFamily, Claimed, SettlementParts
    from tollkeeper.hub.settlement.orders import Order
    from tollkeeper.hub.settlement.outcomes import SettlementRecords

_LOG = structlog.get_logger("tollkeeper.hub")
# The hash of no requirements: by it nobody is given a success.
_NOTHING: Final = ""


class _KeyTaken(Exception):  # noqa: N818 - undoes nothing and is no fault
    """The caller's key was bound to another request in the meantime: nothing was written."""


# What the request that settles a payment learned, for those that wait for it: None is "look for yourself".
Shared: TypeAlias = "SettleOutcome | ApiError | None"


class SettlementFlow(Generic[AccountT, PayloadT, TermsT]):
    """Settles orders of one family, one instance in a process; other processes may share the database."""

    def __init__(
        self,
        family: ChainFamily[AccountT, PayloadT, TermsT],
        parts: SettlementParts,
        records: SettlementRecords,
    ) -> None:
        self.family = family
        self.pipeline = Pipeline(parts, family)
        self._parts = parts
        self._records = records
        self._leading: dict[PaymentKey, asyncio.Future[Shared]] = {}
        self._active: set[str] = set()  # rows that requests of this process carry forward
        self._payers = ConcurrentPayers()

    def is_active(self, settlement_id: str) -> bool:
        """Say whether a request of this process carries that row forward."""
        return settlement_id in self._active

    async def settle(self, order: Order[AccountT, PayloadT]) -> SettleOutcome:
        """Settle the order, or tell how its payment was settled before.

        Raises: SETTLEMENT_PENDING where nobody knows the outcome in time; CONFLICT for a key of another request;
        UNAVAILABLE where node or database cannot be asked (nothing was started).
        """
        while True:
            leading = self._leading.get(order.key)
            if leading is not None:
                outcome = await self._follow(order, leading)
                if outcome is not None:
                    return await self._kept(order, outcome)
            known = await self._records.of_key(order.request)
            if known is not None:
                return known
            row = await find_settlement(self._parts.database, order.key)
            if row is not None and not self._may_be_tried(order, row):
                return await self._known_payment(order, row)
            if order.key in self._leading:
                continue
            order.request.caller.look()
            late = order.given_up(self._parts.clock_ms())
            if late is not None:
                raise late
            try:
                return await self._lead(order, row)
            except _KeyTaken:
                continue

    async def _follow(self, order: Order[AccountT, PayloadT], leading: asyncio.Future[Shared]) -> SettleOutcome | None:
        """Wait for the request of this process that settles the payment; return its outcome if that is a failure.

        Raises: SETTLEMENT_PENDING; UNAVAILABLE where that request could not start anything.
        """
        try:
            async with asyncio.timeout_at(order.request.deadline):
                shared = await asyncio.shield(leading)
        except TimeoutError:
            row = await find_settlement(self._parts.database, order.key)
            raise self._records.pending(order.key, "" if row is None else row.transaction_hash) from None
        if isinstance(shared, ApiError):
            raise shared
        return None if shared is None or shared.success else shared

    async def _lead(self, order: Order[AccountT, PayloadT], row: Settlement | None) -> SettleOutcome:
        """Settle the payment for all callers of this process; they see the outcome through `_leading`."""
        done: asyncio.Future[Shared] = asyncio.get_running_loop().create_future()
        self._leading[order.key] = done
        shared: Shared = None
        try:
            with self._payers.carrying(order.key):
                shared = outcome = await self._attempt(order, row)
        except GivenUpError:
            raise  # this request alone was given up: those that wait for it look for themselves
        except ApiError as error:
            if error.code is Code.UNAVAILABLE:
                shared = error
            raise
        else:
            return outcome
        finally:
            del self._leading[order.key]
            done.set_result(shared)

    async def _attempt(self, order: Order[AccountT, PayloadT], known: Settlement | None) -> SettleOutcome:
        """Simulate, then carry the order out. `known`: its failed row, which this attempt tries again."""
        try:
            terms = await self.family.simulate(order, with_balance=self._payers.has_others(order.key))
            if isinstance(terms, Reason):
                return await self._refused(order, known, terms)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        return await self._carry(order, known, terms)

    async def _carry(
        self, order: Order[AccountT, PayloadT], known: Settlement | None, terms: TermsT, *, is_adopted: bool = False
    ) -> SettleOutcome:
        """Claim, send, observe. `is_adopted`: our own transaction is on the chain already. Raises: as `settle`."""
        with self._carried(new_request_id() if known is None else known.id) as row_id:
            claimed = await self._claim(order, known, row_id, terms)
            row, outgoing = claimed.claim.settlement, claimed.outgoing
            if row is None or outgoing is None:
                return await self._not_won(order, known, claimed)
            if is_adopted:
                _LOG.warning("transaction_adopted", settlement=row.id, transaction=row.transaction_hash)
                self._parts.metrics.adopted.labels(row.key.network).inc()
            try:
                advance = await self.pipeline.advance(order, row, self._parts.sender.send(order.account, outgoing))
            except StorageError as error:  # sent, and not recorded
                raise self._records.pending(order.key, outgoing.raw.hash) from error
            finally:
                claimed.let_go()
        row = advance.settlement
        if advance.handed_out:
            return success(row)
        if row.state is State.FAILED:
            return failed(row)
        if has_outcome(row, confirm=order.request.options.confirm):  # another process moved it first
            return await self._known_payment(order, row)
        raise self._records.pending(row.key, row.transaction_hash)

    @contextmanager
    def _carried(self, row_id: str) -> Iterator[str]:
        """Keep recovery from a row, from before the row is written."""
        self._active.add(row_id)
        try:
            yield row_id
        finally:
            self._active.discard(row_id)

    async def _claim(
        self, order: Order[AccountT, PayloadT], known: Settlement | None, row_id: str, terms: TermsT
    ) -> Claimed:
        """Claim until it is known whether the payer's money lasts. Raises: UNAVAILABLE, SETTLEMENT_PENDING."""
        judged = set[str]()
        try:
            claimed = await self.family.claim(order, known, row_id, terms)
            # What was signed for the payer since the balance was read may be paid by what the payer has got since.
            while isinstance(short := claimed.claim.obstacle, Overdrawn) and not judged.issuperset(short.under_way):
                judged.update(short.under_way)
                self._payers.note_others(order.key)
                terms = await self.family.balance_now(order, terms, short)
                claimed = await self.family.claim(order, known, row_id, terms)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        except NotTakenError:
            raise
        except StorageError as error:
            # The commit may be on the disk all the same, but nothing was sent: no hash is named, because where it is
            # not there another transaction gets the nonce, and this one never is.
            raise self._records.pending(order.key, "") from error
        return claimed

    async def _not_won(
        self, order: Order[AccountT, PayloadT], known: Settlement | None, claimed: Claimed
    ) -> SettleOutcome:
        """Answer a claim that was not made. Raises: UNAVAILABLE for budget, money, queue or payer; _KeyTaken."""
        claim, account = claimed.claim, order.account
        if claim.outcome is ClaimedSettlement.OVER_BUDGET:
            raise account.gas_budget.used_up()
        if claim.outcome is ClaimedSettlement.OVER_SHARE:
            raise account.gas_budget.share_used_up(order.request.asker.tenant)
        if claim.outcome is ClaimedSettlement.NO_FUNDS:
            account.gas_budget.promised(claimed.relayer.signer.address)
            raise account.without_money()
        if claim.outcome is ClaimedSettlement.NO_ROOM:
            raise account.admission.is_full()
        if isinstance(claim.obstacle, Suspended):
            raise account.gas_budget.suspended(order.key.payer, claim.obstacle)
        if claim.obstacle is not None:
            return await self._kept(order, refusal(Reason.FUNDS.value), known)
        if claim.settlement is None:
            raise _KeyTaken
        return await self._known_payment(order, claim.settlement)

    async def _refused(
        self, order: Order[AccountT, PayloadT], known: Settlement | None, reason: Reason
    ) -> SettleOutcome:
        """Answer for a payment that the chain would not take; no row is written for it.

        But for one that was carried out by us, and that the database, restored from a backup, does not remember: that
        is adopted. Raises: RpcUnavailable; as `settle`.
        """
        row = await find_settlement(self._parts.database, order.key)
        # Another process was faster, or this one just before: the payment's row answers, not the chain's refusal.
        if row is not None and not self._may_be_tried(order, row):
            return await self._known_payment(order, row)
        found = await self.family.forgotten(order, reason)
        if found is None:
            return await self._kept(order, refusal(reason.value), row)
        if isinstance(found, PriorOutcome):
            return await self._kept(order, refusal(found.reason.value, found.transaction), row)
        return await self._carry(order, known, found, is_adopted=True)

    def _may_be_tried(self, order: Order[AccountT, PayloadT], row: Settlement) -> bool:
        """Say whether this order would start another attempt."""
        return row.may_be_claimed_again(order.purchase_data) and self.family.same_payment(order, row)

    async def _known_payment(self, order: Order[AccountT, PayloadT], row: Settlement) -> SettleOutcome:
        """Answer by a row that is there. Raises: SETTLEMENT_PENDING, CONFLICT."""
        # A gateway's next attempt at one purchase asks for what its last one asked for, whatever the gate says by now.
        is_same = row.is_of_purchase(order.purchase_data)
        required = row.requirements_hash if is_same else order.requirements_hash
        if not self.family.same_payment(order, row):
            is_same, required = False, _NOTHING  # what moved is not what this caller asks for
        return await self._records.of_payment(row, required, order.request, is_same=is_same)

    async def _kept(
        self, order: Order[AccountT, PayloadT], outcome: SettleOutcome, known: Settlement | None = None
    ) -> SettleOutcome:
        """Return the outcome, kept with the caller's key. `known`: the row that the order would have tried again."""
        is_same = known is not None and known.state is State.FAILED and known.is_of_purchase(order.purchase_data)
        return await self._records.kept(order.request, outcome, known if is_same else None)
