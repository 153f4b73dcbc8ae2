"""Settling a payment once and handing its success out once (contract 5.2; security A-01, A-05, A-25, F1-F5).

Of any number of callers with one payment, in any number of processes, the claim's commit picks the one that settles it;
the others wait for the outcome and learn that it is a duplicate. The order for the one: simulate, then claim, nonce,
signature and raw transaction in one commit, then send. Nothing is written for a payment that the chain would refuse.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import structlog

from tollkeeper.chains.evm.chain import Submission
from tollkeeper.chains.evm.receipts import FAILURES, Expected, Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.signed_transactions import asks_for
from tollkeeper.core.settlement.states import State
from tollkeeper.core.x402.verification import Reason, chain_checks, signature_check, time_checks
from tollkeeper.hub.accounts import RETRY_AFTER_SECONDS, unavailable
from tollkeeper.hub.evm.concurrent_payers import UNREAD, Crowds
from tollkeeper.hub.evm.signer_pool import without_gas_money
from tollkeeper.hub.settlement.findings import expected_transfer
from tollkeeper.hub.settlement.orders import Before, GivenUpError, Order, SettleOutcome, refusal
from tollkeeper.hub.settlement.outcomes import failed, has_outcome, success
from tollkeeper.hub.settlement.pipeline import Pipeline
from tollkeeper.hub.settlement.retry_alone import SecondTry
from tollkeeper.hub.settlement.signed_orders import FeeTerms, SignedOrder, Signing
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.hub.claims import ClaimedSettlement, SettlementClaim
from tollkeeper.storage.hub.payers import Overdrawn, Suspended
from tollkeeper.storage.hub.settlements import Settlement, find_settlement
from tollkeeper.storage.hub.transactions import next_nonce_of, open_lane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.chain import EvmChain
    from tollkeeper.core.evm.signed_transactions import SignedTransaction
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.hub.settlement.outcomes import Records
    from tollkeeper.storage.engine.database import Database

_LOG = structlog.get_logger("tollkeeper.hub")
# So many of a payer's payments under way are looked up at once, where its money seems not to last for one more.
_LOOKED_UP_AT_ONCE: Final = 99
# The hash of no requirements: nobody is given a success for them.
_NOTHING: Final = ""


class _KeyTaken(Exception):  # noqa: N818 - undoes nothing and is no fault
    """The caller's key was bound to another request in the meantime: nothing was written."""


# What one request of this process learned, for those that wait for it: None is "look for yourself".
Shared: TypeAlias = "SettleOutcome | ApiError | None"


class Settlements:
    """Settles orders. One instance per process; other processes may share the database."""

    # What a node says of a payment that was carried out.
    _how_used_looks: ClassVar[frozenset[Reason]] = frozenset({Reason.NONCE_USED})

    def __init__(
        self,
        database: Database,
        clock_ms: Callable[[], int],
        records: Records,
        membership: Membership,
        metrics: HubMetrics,
    ) -> None:
        self._database = database
        self._clock_ms = clock_ms
        self._records = records
        self._metrics = metrics
        self._signing = Signing(database, clock_ms, membership)
        self.pipeline = Pipeline(database, clock_ms, metrics, SecondTry(self._signing))
        self._leading: dict[PaymentKey, asyncio.Future[Shared]] = {}
        self._active: set[str] = set()
        self._crowds = Crowds()

    def is_active(self, settlement_id: str) -> bool:
        """Is a request of this process carrying that row forward?"""
        return settlement_id in self._active

    async def open_lanes(self, account: Any) -> None:  # noqa: ANN401 - of its family
        """Makes the signers' nonces start where chain and database agree. Raises: RpcUnavailable, StorageError."""
        network = account.chain.network.name
        for address in account.signers.addresses:
            pending = await account.chain.pending_nonce(address)
            if pending > await next_nonce_of(self._database, network, address):
                pending = await _agreed_nonce(account.chain, address)
            next_nonce = await self._database.run(open_lane(network, address, pending))
            if next_nonce > pending:
                _LOG.info("nonces_ahead_of_chain", network=network, next_nonce=next_nonce, chain_nonce=pending)

    async def settle(self, order: Order) -> SettleOutcome:
        """The outcome for this caller.

        Raises: SETTLEMENT_PENDING where nobody knows it in time; CONFLICT for a key of another request; UNAVAILABLE
        where node or database cannot be asked (nothing was started).
        """
        while True:
            leading = self._leading.get(order.key)
            if leading is not None:
                told = await self._follow(order, leading)
                if told is not None:
                    return await self._recorded_with_key(order, told)
            known = await self._records.of_key(order.options, order.deadline)
            if known is not None:
                return known
            row = await find_settlement(self._database, order.key)
            if row is not None and not self._may_be_tried(order, row):
                return await self._known_payment(order, row)
            if order.key in self._leading:
                continue
            order.caller.look()
            late = order.given_up(self._clock_ms())
            if late is not None:
                raise late
            try:
                return await self._lead(order, row)
            except _KeyTaken:
                continue

    async def before(self, account: Any, payment: Payment, reason: Reason) -> Before | None:  # noqa: ANN401 - of its family
        """Return the earlier use of a payment that a node refuses for this reason; None if it was not carried out."""
        return Before(reason, await account.used_by(payment)) if reason is Reason.NONCE_USED else None

    async def _follow(self, order: Order, leading: asyncio.Future[Shared]) -> SettleOutcome | None:
        """Waits for the request of this process that settles the payment; its outcome where that is a failure.

        Raises: SETTLEMENT_PENDING; UNAVAILABLE where that request could not start anything.
        """
        try:
            async with asyncio.timeout_at(order.deadline):
                shared = await asyncio.shield(leading)
        except TimeoutError:
            row = await find_settlement(self._database, order.key)
            raise self._records.pending(order.key, "" if row is None else row.transaction_hash) from None
        if isinstance(shared, ApiError):
            raise shared
        return None if shared is None or shared.success else shared

    def _may_be_tried(self, order: Order, row: Settlement) -> bool:
        """Would this order start another attempt?"""
        return row.may_be_claimed_again(order.purchase_data) and self._is_the_row_s(order, row)

    def _is_the_row_s(self, order: Order, row: Settlement) -> bool:
        """Does it pay whom the row names, and as much?

        A payer can sign something else under the same nonce. Whoever was told of the row was told of its payee and
        value, so the payment that it names stays the one that failed.
        """
        authorization = order.payload.authorization
        return (authorization.pay_to, authorization.value) == (row.pay_to, row.value)

    async def _known_payment(self, order: Order, row: Settlement) -> SettleOutcome:
        # A gateway's next attempt at one purchase asks for what its last one asked for, whatever the gate says by now.
        is_same = row.is_of_purchase(order.purchase_data)
        asked = row.requirements_hash if is_same else order.requirements_hash
        if not self._is_the_row_s(order, row):
            is_same, asked = False, _NOTHING  # what moved is not what this caller asks for
        return await self._records.of_payment(row, asked, order.options, order.deadline, order.caller, is_same=is_same)

    async def _lead(self, order: Order, row: Settlement | None) -> SettleOutcome:
        """Settles the payment for all callers of this process; they see the outcome through `_leading`."""
        done: asyncio.Future[Shared] = asyncio.get_running_loop().create_future()
        self._leading[order.key] = done
        shared: Shared = None
        try:
            with self._crowds.with_one_of(order.key):
                shared = outcome = await self._attempt(order, row)
        except GivenUpError:
            raise  # it alone was: whoever else waits looks for itself
        except ApiError as error:
            if error.code is Code.UNAVAILABLE:
                shared = error
            raise
        else:
            return outcome
        finally:
            del self._leading[order.key]
            done.set_result(shared)

    async def _attempt(self, order: Order, known: Settlement | None) -> SettleOutcome:
        try:
            order = replace(order, payload=await order.account.ready(order.payload))
            reason, terms = await self._simulate(order)
            if reason is not None:
                return await self._refused(order, known, reason)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        row_id = self._signing.settlement_id(known)
        self._active.add(row_id)  # before it is written, so that the completer leaves it to this request
        try:
            return await self._carry(order, known, row_id, terms)
        finally:
            self._active.discard(row_id)

    async def _carry(self, order: Order, known: Settlement | None, row_id: str, terms: Any) -> SettleOutcome:  # noqa: ANN401 - what the family signs with
        """Signs, sends and follows the transaction of an order. Raises: as `settle`; _KeyTaken."""
        try:
            signed, judged = await self._signing.sign(order, known, row_id, terms), set[str]()
            # What was signed for the payer since his money was read may be paid by what he has got since.
            while isinstance(short := signed.claim.obstacle, Overdrawn) and not judged.issuperset(short.under_way):
                judged.update(short.under_way)
                self._crowds.seen(order.key)
                terms = await self._terms_now(order, terms, short)
                signed = await self._signing.sign(order, known, row_id, terms)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        except StorageError as error:
            # The commit may be on the disk all the same, but nothing was sent: no hash is named, because where it is
            # not there another transaction gets the nonce, and this one never is.
            raise self._records.pending(order.key, "") from error
        claimed, raw, sent = signed.claim.settlement, signed.claim.raw, signed.sent
        if claimed is None or raw is None or sent is None:
            return await self._not_won(order, known, signed)
        try:
            advance = await self.pipeline.advance(order, claimed, sent)
        except StorageError as error:  # sent, and not recorded
            raise self._records.pending(order.key, raw.hash) from error
        finally:
            signed.relayer.in_flight -= 1
        row = advance.settlement
        if advance.handed_out:
            return success(row)
        if row.state is State.FAILED:
            return failed(row)
        if has_outcome(row, confirm=order.options.confirm):  # another process moved it first
            return await self._known_payment(order, row)
        raise self._records.pending(row.key, row.transaction_hash)

    async def _terms_now(self, order: Order, terms: Any, overdrawn: Overdrawn) -> Any:  # noqa: ANN401 - as `_carry`
        """The terms, with what the payer holds now. Raises: as `terms_now`."""
        reader, value = order.account.chain.authorizations, order.payload.authorization.value
        return await terms_now(order, value, terms, overdrawn, partial(reader.holding, order.key.payer))

    async def _not_won(self, order: Order, known: Settlement | None, signed: SignedOrder) -> SettleOutcome:
        """The answer to a claim that was not made. Raises: UNAVAILABLE for budget, money, queue or payer; _KeyTaken."""
        obstacle = signed.claim.obstacle
        if signed.claim.outcome is ClaimedSettlement.OVER_BUDGET:
            raise order.account.gas.used_up()
        if signed.claim.outcome is ClaimedSettlement.OVER_SHARE:
            raise order.account.gas.share_used_up(order.asker.tenant)
        if signed.claim.outcome is ClaimedSettlement.NO_FUNDS:
            order.account.gas.promised(signed.relayer.signer.address)
            raise self._without_money()
        if signed.claim.outcome is ClaimedSettlement.NO_ROOM:
            raise order.account.queue.is_full()
        if isinstance(obstacle, Suspended):
            raise order.account.gas.suspended(order.key.payer, obstacle)
        if obstacle is not None:
            return await self._recorded_with_key(order, refusal(Reason.FUNDS.value), known)
        if signed.claim.settlement is None:
            raise _KeyTaken
        return await self._known_payment(order, signed.claim.settlement)

    def _without_money(self) -> ApiError:
        """The refusal of what no signer could pay for."""
        return without_gas_money()

    async def _simulate(self, order: Order) -> tuple[Reason | None, Any]:
        """Would the chain take the payment now, and on which terms? Raises: RpcUnavailable."""
        account, payload = order.account, order.payload
        if payload.authorization.valid_before <= self._clock_ms() // 1000:
            return Reason.VALID_BEFORE, None
        is_of_crowd = self._crowds.may_have(order.key)
        simulated = await account.chain.simulate(payload, account.caller, with_balance=is_of_crowd)
        block = simulated.block
        now_seconds = max(block.timestamp_seconds, self._clock_ms() // 1000)
        for check in time_checks(payload, now_seconds):
            if not check.ok:
                return check.reason, None
        if simulated.revert is not None:
            asset = account.chain.asset
            if asset is None:  # disabled this moment
                raise RpcUnavailable(account.chain.problem)
            by_key = signature_check(payload, asset)
            facts, block = await account.chain.state(payload, asset, account.caller, is_signed_by_key=by_key.ok)
            for check in chain_checks(payload, by_key, facts):
                if not check.ok:
                    return check.reason, None
        fees = await account.fees(block.base_fee_wei)
        return None, FeeTerms(fees, UNREAD if simulated.balance is None else simulated.balance)

    async def _refused(self, order: Order, known: Settlement | None, reason: Reason) -> SettleOutcome:
        """The answer to a payment that the chain would not take; no row is written for it.

        But for one that was carried out by us, and that the database, restored from a backup, does not remember.
        Raises: SETTLEMENT_PENDING, UNAVAILABLE.
        """
        row = await find_settlement(self._database, order.key)
        # Another process was faster, or this one just before: what is on its way is refused for no reason.
        if row is not None and not self._may_be_tried(order, row):
            return await self._known_payment(order, row)
        if reason not in self._how_used_looks:
            return await self._recorded_with_key(order, refusal(reason.value), row)
        return await self._forgotten(order, known, reason)

    async def _forgotten(self, order: Order, known: Settlement | None, reason: Reason) -> SettleOutcome:
        """The answer to a payment that may have been carried out, and not for a row that we have.

        What a transaction of our own signers carried out is adopted. Raises: as `_refused`.
        """
        authorizations = order.account.chain.authorizations
        use = await authorizations.find_use(order.key.payer, order.key.nonce)
        found = None if use is None else await authorizations.signed(use.transaction_hash)
        is_ours = found is not None and order.account.signers.holds(found.sender)
        if found is not None and is_ours and await self._was_to_make(order, found):
            claim = await self._signing.adopt(order, known, found)
            return await self._adopted(order, claim)
        refused = refusal(reason.value, "" if use is None else use.transaction_hash)
        return await self._recorded_with_key(order, refused, known)

    async def _was_to_make(self, order: Order, found: SignedTransaction) -> bool:
        """Did this transaction of ours, which used the nonce, make the order's transfer? Raises: RpcUnavailable.

        Not where it made another one that was signed under the same nonce. What nodes do not show yet, its own bytes
        say: whatever is adopted wrongly would be told to no buyer.
        """
        chain, authorization = order.account.chain, order.payload.authorization
        wanted = Expected(
            found.hash,
            order.key.asset,
            order.key.payer,
            authorization.pay_to,
            authorization.value,
            order.key.nonce,
            chain.config.depths.of(authorization.value),
        )
        (sighting,) = await chain.look([wanted])
        is_shown = sighting.verdict not in {Verdict.ABSENT, Verdict.DOUBTED}
        if not is_shown and not asks_for(found.transaction, wanted.transfer):
            msg = "it is not shown yet what our transaction made of the authorization"
            raise RpcUnavailable(msg)
        return sighting.verdict not in FAILURES

    async def _adopted(self, order: Order, claim: SettlementClaim) -> SettleOutcome:
        """The answer to a payment that one of our signers carried out before. Raises: SETTLEMENT_PENDING."""
        row = claim.settlement
        if row is None:
            raise _KeyTaken
        if claim.outcome is not ClaimedSettlement.WON:
            return await self._known_payment(order, row)
        _LOG.warning("transaction_adopted", settlement=row.id, transaction=row.transaction_hash)
        self._metrics.adopted.labels(row.key.network).inc()
        sighting = await order.account.chain.wait(
            expected_transfer(row, order.account.chain.config.depths), order.deadline
        )
        if sighting.verdict is not Verdict.TRANSFERRED:
            raise self._records.pending(order.key, row.transaction_hash)
        advance = await self.pipeline.record(order.account, row, Submission.UNCLEAR, sighting, order.caller)
        if advance.handed_out:
            return success(advance.settlement)
        return await self._known_payment(order, advance.settlement)

    async def _recorded_with_key(
        self, order: Order, outcome: SettleOutcome, known: Settlement | None = None
    ) -> SettleOutcome:
        """`known`: the row that the order would have tried again."""
        is_same = known is not None and known.state is State.FAILED and known.is_of_purchase(order.purchase_data)
        return await self._records.kept(order.options, outcome, order.deadline, known if is_same else None)


async def terms_now(
    order: Order,
    value: int,
    terms: Any,  # noqa: ANN401 - what the family signs with
    overdrawn: Overdrawn,
    holding: Callable[[Sequence[str]], Awaitable[tuple[int, Sequence[bool]]]],
) -> Any:  # noqa: ANN401 - of the same kind
    """The terms of a payment of this value, with what its payer holds now, and what under way took its part of it.

    `holding` reads both of some nonces. Some may be mined that are not known to be, the oldest first: they are looked
    up until the money lasts, or none of so many was. Raises: RpcUnavailable; UNAVAILABLE where it seems not to last,
    and not all were looked up.
    """
    left, used = dict(overdrawn.under_way), frozenset[str]()
    waiting = list(left)
    while True:
        some, waiting = waiting[:_LOOKED_UP_AT_ONCE], waiting[_LOOKED_UP_AT_ONCE:]
        # Read with each look: what was used by an earlier one has left it, too.
        balance, are_used = await holding(some)
        found = frozenset(nonce for nonce, is_used in zip(some, are_used, strict=True) if is_used)
        used |= found
        lasts = sum(left[nonce] for nonce in left if nonce not in used) + value <= balance
        if lasts or not waiting:
            return replace(terms, balance=balance, used=used)
        if not found:
            raise order.account.gas.suspended(order.key.payer, Suspended(0, len(left), RETRY_AFTER_SECONDS))


async def _agreed_nonce(chain: EvmChain, signer: str) -> int:
    """Return the first nonce of a lane of which the database knows nothing, or too little. Raises: RpcUnavailable.

    What nodes have in their pools may differ; what is mined may not.
    """
    for tag in ("pending", "latest"):
        agreed = await chain.agreed_nonce(signer, tag)
        if agreed is not None:
            return agreed
    msg = f"the nodes do not show the same nonce of {signer}"
    raise RpcUnavailable(msg)
