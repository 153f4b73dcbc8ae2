"""Records of payments that were asked about before, and waiting for their outcomes (contract 5.2).

The caller that began a settlement is told its outcome, whatever the hub would say of the same request by now: a network
may be disabled or taken out of the settings, a factory be listed no more, a wallet have other owners, while the
transaction is on its way. To call that a refusal would make a buyer pay again. Nothing is begun or judged here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import convert, to_builtins

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.families import row_of
from tollkeeper.core.limits import SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.core.networks import ALIASES
from tollkeeper.core.settlement.states import State
from tollkeeper.core.x402.verification import Reason
from tollkeeper.hub.refusals import RETRY_AFTER_SECONDS, conflict
from tollkeeper.hub.settlement.orders import SettleOutcome, is_kept_as, refusal
from tollkeeper.storage.hub.claims import hand_out, withdraw
from tollkeeper.storage.hub.idempotency import find_key, record_answer
from tollkeeper.storage.hub.settlements import Settlement, find_payment, read_settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.hub.settlement.orders import AccountT, Order, PayloadT
    from tollkeeper.hub.settlement.requests import WaitingRequest
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.hub.idempotency import IdempotencyKey

_FIRST_LOOK_SECONDS: Final = 0.02
_LAST_LOOK_SECONDS: Final = 0.4
_REFUSALS_MAX: Final = 10_000


class SettlementRecords:
    """Records of one hub's database, of all families."""

    def __init__(
        self, database: Database, clock_ms: Callable[[], int], status_url: Callable[[PaymentKey], str]
    ) -> None:
        """`status_url` names where anybody can follow a payment."""
        self._database = database
        self._clock_ms = clock_ms
        self._status_url = status_url
        self._refusals = _Refusals(clock_ms)

    async def has(self, key: PaymentKey) -> bool:
        """Tell whether anything is on record of a payment, failed or not. Raises: StorageError."""
        return await find_payment(self._database, key.network, key.payer, key.nonce, key.asset) is not None

    async def of_key(self, request: WaitingRequest, *, is_signed: bool = True) -> SettleOutcome | None:
        """Return the outcome of a key that was seen before; None for a new one, or none.

        Raises: CONFLICT, SETTLEMENT_PENDING.

        If nobody knows whether the payer signed (not `is_signed`), another request tells nothing of the payer's key.
        """
        key = request.idempotency
        known = None if key is None else await find_key(self._database, key)
        if key is None or known is None:
            return None if key is None else self._refusals.of(key)
        if known.fingerprint != key.fingerprint:
            if is_signed or request.is_gateway_s:
                raise conflict()
            return None
        row = None if known.settlement_id is None else await read_settlement(self._database, known.settlement_id)
        if known.answer is None and row is not None and row.attempt == known.attempt:
            row = await self._decided(row, request)
            if row.state is State.FAILED:
                return failed(row)
            if row.handed_out_ms is None:
                await self._database.run(hand_out(row, None, self._clock_ms()))
            return success(row)
        answer = {"success": False, "settlementId": known.settlement_id, **(known.answer or {})}
        return convert(answer, SettleOutcome)

    async def of_same(self, payment: Payment, requirements_hash: str, request: WaitingRequest) -> SettleOutcome | None:
        """Return the outcome of the very same earlier request, also without a key; None if it cannot succeed any more.

        Raises: CONFLICT, SETTLEMENT_PENDING.
        """
        known = await self.of_key(request, is_signed=False)
        name = None if known is not None else row_of(payment).name_of(payment)
        if name is None:
            return known
        row = await find_payment(self._database, ALIASES.get(payment.network, payment.network), *name)
        if row is None or row.state is State.FAILED:
            return None
        if row.requirements_hash != requirements_hash or not is_kept_as(payment, row.payment):
            return None
        return await self.of_payment(row, requirements_hash, request)

    async def of_payment(
        self, row: Settlement, requirements_hash: str, request: WaitingRequest, *, is_same: bool = False
    ) -> SettleOutcome:
        """Return the answer to a payment that somebody has presented before. Raises: SETTLEMENT_PENDING.

        Who has left meanwhile is given nothing: the next one who asks may be there. `is_same`: it is asked for the
        purchase that the row is of, whose keys show what becomes of a failure that is taken back (`kept`).
        """
        if row.handed_out_ms is None:
            row = await self._decided(row, request)
        if row.state is State.FAILED:
            return await self.kept(request, failed(row), row if is_same else None)
        if row.handed_out_ms is None and row.requirements_hash == requirements_hash:
            if not request.caller.look():
                raise self.pending(row.key, row.transaction_hash)
            given = await self._database.run(hand_out(row, request.idempotency, self._clock_ms()))
            if given:
                return success(row)
        return await self.kept(request, refusal(Reason.DUPLICATE.value, row.told_hash, row.id))

    async def kept(
        self, request: WaitingRequest, outcome: SettleOutcome, failed_before: Settlement | None = None
    ) -> SettleOutcome:
        """Keep the answer with a gateway's key, so that the key shows it again.

        A stranger's refusal leaves no row: it is remembered for as long as a copy of its request may be on its way.

        `failed_before`: the failed attempt for the same purchase that this next one was refused after, or for. That
        may be taken back, and then the key shows what it came to: nothing else is asked for its purchase any more.
        Where another request under the key was faster, perhaps in another process, it is what the key shows: the
        payment that was settled or given to that one meanwhile is no duplicate. Raises: CONFLICT, SETTLEMENT_PENDING.
        """
        key = request.idempotency
        failed = None if failed_before is None else (failed_before.id, failed_before.attempt)
        if key is None:
            return outcome
        unit = record_answer(key, to_builtins(outcome), self._clock_ms(), failed)
        if request.is_gateway_s and await self._database.run(unit):
            return outcome
        known = await self.of_key(request, is_signed=False)
        if known is None:
            self._refusals.add(key, outcome)
        return known or outcome

    async def refused(
        self,
        payment: Payment,
        request: WaitingRequest,
        outcome: SettleOutcome,
        purchase_data: Mapping[str, object] | None,
    ) -> SettleOutcome:
        """Return the answer to a request that a rule refuses, of which `of_same` knows nothing; kept as any other is.

        By the time that an earlier copy of it arrives the rule may be kept: a network is enabled again, a wallet's
        code is there. `purchase_data`: of what it is said to be for, where that is believed. Raises: as `kept`.
        """
        name = None if purchase_data is None else row_of(payment).name_of(payment)
        row = None
        if name is not None:
            row = await find_payment(self._database, ALIASES.get(payment.network, payment.network), *name)
        if row is not None and not (
            row.state is State.FAILED and is_kept_as(payment, row.payment) and row.is_of_purchase(purchase_data)
        ):
            row = None
        return await self.kept(request, outcome, row)

    async def _decided(self, row: Settlement, request: WaitingRequest) -> Settlement:
        """The row once it shows an outcome that its caller may be told. Raises: SETTLEMENT_PENDING at `deadline`."""
        loop, deadline = asyncio.get_running_loop(), request.deadline
        pause = _FIRST_LOOK_SECONDS
        while not has_outcome(row, confirm=request.options.confirm):
            if loop.time() >= deadline:
                raise self.pending(row.key, row.transaction_hash)
            await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
            pause = min(2 * pause, _LAST_LOOK_SECONDS)
            row = await read_settlement(self._database, row.id) or row
        return row

    async def withdraw(self, order: Order[AccountT, PayloadT]) -> str:
        """Take back an order that nothing is signed for; the transaction where something is. Raises: StorageError."""
        row = await self._database.run(withdraw(order.key, order.request.caller.leave, self._clock_ms()))
        return "" if row is None else row.transaction_hash

    def pending(self, key: PaymentKey, transaction_hash: str) -> ApiError:
        """Return the 503 for an outcome that nobody knows yet."""
        return ApiError(
            Code.SETTLEMENT_PENDING,
            "the outcome of this settlement is not known yet: ask again with the same payment",
            details={"transaction": transaction_hash, "statusUrl": self._status_url(key), "network": key.network},
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )


class _Refusals:
    """Refusals to strangers of late, by the very request and its key: in memory, so that nothing grows by it.

    A copy of the request that comes behind its answer must not be settled: its sender was told that it was not. It may
    come for as long as a gateway's signature lets it be begun.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._known: dict[tuple[str, str], tuple[int, SettleOutcome]] = {}  # the oldest first

    def add(self, key: IdempotencyKey, outcome: SettleOutcome) -> None:
        """Remember it, and forget what is too old or too much."""
        now_ms = self._clock_ms()
        self._known[key.key, key.fingerprint] = now_ms + SETTLE_REQUEST_LIFETIME_SECONDS * 1000, outcome
        while len(self._known) > _REFUSALS_MAX or next(iter(self._known.values()))[0] <= now_ms:
            del self._known[next(iter(self._known))]

    def of(self, key: IdempotencyKey) -> SettleOutcome | None:
        """Return what the very request was refused for under this key."""
        until_ms, outcome = self._known.get((key.key, key.fingerprint), (0, None))
        return outcome if until_ms > self._clock_ms() else None


def has_outcome(row: Settlement, *, confirm: bool) -> bool:
    """Say whether somebody who did not start the attempt may be told how it ended.

    Without `confirm` a mined transaction is enough, and one that a node took where that was called a success already: a
    row that is only BROADCAST may have a failed receipt by now.
    """
    if row.state in {State.CONFIRMED, State.FAILED}:
        return True
    was_given = row.state is State.BROADCAST and row.handed_out_ms is not None
    return not confirm and (row.state is State.MINED or was_given)


def success(row: Settlement) -> SettleOutcome:
    """Return the answer to who is given a row's success."""
    return SettleOutcome(success=True, transaction=row.transaction_hash, settlement_id=row.id)


def failed(row: Settlement) -> SettleOutcome:
    """Return the answer to a row's failure."""
    return refusal(row.error or Reason.TRANSACTION_FAILED.value, row.told_hash, row.id)
