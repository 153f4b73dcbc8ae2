"""The ledger of held credits as the data plane uses it: spends in batches, answered by callbacks (contract 4.3).

Whatever arrived in one turn of the event loop, or while the last commit ran, is the next batch and one commit: no
timer, no task and no future per spend. The loop looks at its sockets once more before it commits, for what came while
it was busy costs next to nothing in the same commit, and answers of targets need not wait for it. A batch is tried
whole; where one of its spends breaks it (a fault of ours), each is spent alone, so that nobody pays for another's
fault. An answer is given after the commit is durable; after a StorageError nobody knows whether the credit is spent,
and the call must not be served: what it took after all is given back as soon as the database can say so.

What a purchase is (payer, gate, header, how many credits were granted) never changes while it has credits, so the
purchases of the last spends are remembered, and their next spends need no look-up. How many credits are left, and
whether they still count, is for the database alone to say. How calls ended is written with the spends that come next:
a commit of its own would be one more for callers to wait for.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.purchases import Spend
from tollkeeper.core.wire import PaymentKey
from tollkeeper.storage.database import Outcome, StorageError
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.spending import HeldSpend, KnownSpends, SpendBatch, end_calls, give_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.database import Database
    from tollkeeper.storage.purchase_rows import Purchase

__all__ = ["BATCH_MAX", "HeldSpend", "Ledger"]

BATCH_MAX: Final = 256  # a few milliseconds of the event loop
_OTHERS_AT_LEAST: Final = BATCH_MAX // 4
WAITING_MAX: Final = 16_384
REMEMBERED_MAX: Final = 10_000
ENDED_MAX: Final = 100_000  # with one status
ENDED_AT_ONCE: Final = 256  # of each status: mostly below a millisecond of the writer's time

logger = logging.getLogger(__name__)

_Answer: TypeAlias = "Callable[[SpendResult | ApiError], None]"
_KnownAnswer: TypeAlias = "Callable[[int | SpendResult | ApiError], None]"
_Waiting: TypeAlias = "tuple[HeldSpend, _Answer]"
_Known: TypeAlias = "tuple[Purchase, int, str, _KnownAnswer]"  # with the gate's version and the call's id


class _Batch(NamedTuple):
    """What is one commit: in the database's answer, the others come first."""

    others: list[_Waiting]
    known: list[_Known]
    ended: dict[int, list[str]]


class Ledger:
    """Spends credits held in one database, for the callers of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._known: list[_Known] = []
        self._now_ms = 0  # of the last spend
        self._is_under_way = False
        self._bought: dict[PaymentKey, Purchase] = {}
        self._ended: dict[int, list[str]] = {}
        self._dropped = 0
        self._unserved: list[str] = []
        self.spends = 0
        self.batches = [0] * (BATCH_MAX.bit_length() + 1)  # by the number of bits of their size

    def spend(self, request: HeldSpend, now_ms: int, callback: _Answer) -> None:
        """Spend one credit; `callback` is called once in this loop, and never before this returns.

        It is given StorageError (503) where the outcome is unknown or the database takes nothing.
        """
        bought = self._remembered(request)
        if bought is not None:
            wish = request.wish
            self.spend_held(bought, wish.gate_version, wish.call_id, now_ms, partial(_told, bought, callback))
        elif self._has_room(callback):
            self._now_ms = now_ms
            self._waiting.append((request, callback))
            self._begin()

    def spend_held(
        self, bought: Purchase, gate_version: int, call_id: str, now_ms: int, callback: _KnownAnswer
    ) -> None:
        """As `spend`, for whoever shows again what `bought` this purchase's credits and spent one of them before.

        Where one is taken, the answer is how many are left.
        """
        if len(self._known) < WAITING_MAX or self._has_room(callback):
            self._known.append((bought, gate_version, call_id, callback))
            self._now_ms = now_ms
            if not self._is_under_way:
                self._begin()

    def _has_room(self, callback: _Answer) -> bool:
        """Else it is told so."""
        if self.waiting_count < WAITING_MAX:
            return True
        loop = asyncio.get_running_loop()
        loop.call_soon(callback, StorageError("too many requests are waiting for the database"))
        return False

    def _begin(self) -> None:
        if not self._is_under_way:
            self._is_under_way = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._next)  # behind the next look at the sockets

    def end(self, call_id: str, status: int) -> None:
        """Note how a call ended, to be written with the next spends; dropped where too many wait."""
        ended = self._ended.get(status)
        if ended is None:
            self._ended[status] = [call_id]
        elif len(ended) < ENDED_MAX:
            ended.append(call_id)
        else:
            self._dropped += 1

    def take_dropped(self) -> int:
        """How many ends were dropped since this was asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def refused(self, call_id: str) -> None:
        """Note a call that was answered 503 because nobody knew whether its credit is spent: it is given back if so.

        Where too many wait, their calls stay charged until the process ends, and are marked as interrupted then.
        """
        if len(self._unserved) < ENDED_MAX:
            self._unserved.append(call_id)

    async def flush_ended(self, now_ms: int) -> None:
        """Write what no spend takes along. Raises: StorageError; what was not written is kept."""
        while unserved := self._unserved[:ENDED_AT_ONCE]:
            del self._unserved[:ENDED_AT_ONCE]
            try:
                await self._database.run(give_back(unserved, now_ms))
            except ApiError:
                self._unserved += unserved
                raise
        while not self._known and (ended := self._take_ended()):
            try:
                await self._database.run(end_calls(ended, now_ms))
            except ApiError:
                self._put_back(ended)
                raise

    def _take_ended(self) -> dict[int, list[str]]:
        ended, self._ended = self._ended, {}
        for status, calls in ended.items():
            if len(calls) > ENDED_AT_ONCE:
                self._ended[status] = calls[ENDED_AT_ONCE:]
                del calls[ENDED_AT_ONCE:]
        return ended

    def _put_back(self, ended: dict[int, list[str]]) -> None:
        """Writing them twice changes nothing."""
        for status, calls in ended.items():
            self._ended.setdefault(status, []).extend(calls)

    def _remembered(self, request: HeldSpend) -> Purchase | None:
        """The purchase of a wish that names none, where it is remembered and this header bought it at this gate."""
        key, wish = request.key, request.wish
        bought = None if key is None or request.purchase_id is not None else self._bought.get(key)
        if bought is None or wish.header is None or bought.gate_id != wish.gate_id:
            return None
        return bought if hmac.compare_digest(wish.header, bought.header_hash) else None

    def _remember(self, key: PaymentKey, purchase: Purchase) -> None:
        if key not in self._bought and len(self._bought) >= REMEMBERED_MAX:
            del self._bought[next(iter(self._bought))]
        self._bought[key] = purchase

    @property
    def waiting_count(self) -> int:
        """How many spends wait for the next commit."""
        return len(self._waiting) + len(self._known)

    def _next(self) -> None:
        # However many known ones come, the others have their share: they are new buyers, and those who are asked again.
        room = max(_OTHERS_AT_LEAST, BATCH_MAX - len(self._known))
        others, self._waiting = self._waiting[:room], self._waiting[room:]
        room = BATCH_MAX - len(others)
        known, self._known = self._known[:room], self._known[room:]
        size = len(known) + len(others)
        self.spends += size
        self.batches[size.bit_length()] += 1
        # Payments that were not seen before take nothing, and would now wait for a sync.
        batch = _Batch(others, known, self._take_ended() if known else {})
        self._post(batch, partial(self._done, batch))

    def _post(self, batch: _Batch, answer: Callable[[Outcome], None]) -> None:
        known = batch.known and KnownSpends(
            {(bought.gate_id, version) for bought, version, _, _ in batch.known},
            [bought.number for bought, _, _, _ in batch.known],
            {call_id: bought.id for bought, _, call_id, _ in batch.known},
        )
        try:
            spends = [request for request, _ in batch.others]
            self._database.post(SpendBatch(spends, self._now_ms, batch.ended, known or None), answer)
        except Exception as error:  # noqa: BLE001 - it is the answer to each of them
            answer(Outcome(error=error))

    def _done(self, batch: _Batch, outcome: Outcome) -> None:
        # First of all, so that nothing that a callback does can hold up the others.
        self._is_under_way = bool(self._waiting or self._known)
        if self._is_under_way:
            asyncio.get_running_loop().call_soon(self._next)
        if outcome.error is not None:
            self._put_back(batch.ended)
        is_fault = outcome.error is not None and not isinstance(outcome.error, StorageError)
        if is_fault and len(batch.others) + len(batch.known) > 1:
            alone = [_Batch([one], [], {}) for one in batch.others] + [_Batch([], [one], {}) for one in batch.known]
            for one in alone:
                self._post(one, partial(self._answer, one))
        else:
            self._answer(batch, outcome)

    def _answer(self, batch: _Batch, outcome: Outcome) -> None:
        others, known, _ = batch
        results: Any = outcome.result
        if outcome.error is not None:
            results = [_refusal_of(outcome.error)] * (len(others) + len(known))
            if isinstance(outcome.error, StorageError):
                for request, _ in others:
                    self.refused(request.wish.call_id)
                for _, _, call_id, _ in known:
                    self.refused(call_id)
        answers = iter(results)
        for request, callback in others:
            result = next(answers)
            self._learn(request, result)
            _tell(callback, result)
        for (bought, version, call_id, callback), left in zip(known, answers, strict=True):
            if left is None:  # it is no longer as it is remembered
                self._bought.pop(PaymentKey(bought.network, bought.asset, bought.payer, bought.nonce), None)
                wish = SpendRequest(bought.gate_id, version, bought.header_hash, call_id)
                self._waiting.append((HeldSpend(None, bought.id, wish), callback))
                self._begin()
                continue
            _tell(callback, left)

    def _learn(self, request: HeldSpend, result: SpendResult | ApiError) -> None:
        """Remember whose purchase it is, for the next spend."""
        if (
            isinstance(result, SpendResult)
            and result.outcome is Spend.SPENT
            and result.purchase is not None
            and request.key is not None
        ):
            self._remember(request.key, result.purchase)


def _tell(callback: Callable[[Any], None], result: int | SpendResult | ApiError) -> None:
    try:
        callback(result)
    except Exception:
        logger.exception("the callback of a spend failed")


def _told(bought: Purchase, callback: _Answer, result: int | SpendResult | ApiError) -> None:
    """The answer with its purchase."""
    if isinstance(result, int):
        result = SpendResult(Spend.SPENT, msgspec.structs.replace(bought, remaining=result))
    callback(result)


def _refusal_of(error: BaseException) -> ApiError:
    """What the caller is told: a database that cannot is a 503, a fault of ours a 500."""
    if isinstance(error, ApiError):
        return error
    logger.error("a spend failed", exc_info=error)
    return ApiError(Code.INTERNAL_ERROR, "the credit could not be spent")
