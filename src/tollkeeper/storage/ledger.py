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
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.database import Outcome, StorageError
from tollkeeper.storage.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.spending import HeldSpend, SpendBatch, end_calls, give_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.wire import PaymentKey
    from tollkeeper.storage.database import Database
    from tollkeeper.storage.purchase_rows import Purchase

__all__ = ["BATCH_MAX", "HeldSpend", "Ledger"]

BATCH_MAX: Final = 256  # a few milliseconds of the event loop
WAITING_MAX: Final = 16_384
REMEMBERED_MAX: Final = 10_000
ENDED_MAX: Final = 100_000
ENDED_AT_ONCE: Final = 256  # below a millisecond of the writer's time

logger = logging.getLogger(__name__)

_Answer: TypeAlias = "Callable[[SpendResult | ApiError], None]"
_Waiting: TypeAlias = "tuple[HeldSpend, Purchase | None, int, _Answer]"  # the purchase, where it is remembered


class Ledger:
    """Spends credits held in one database, for the callers of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._is_under_way = False
        self._bought: dict[PaymentKey, Purchase] = {}
        self._ended: list[tuple[str, int]] = []
        self._unserved: list[str] = []
        self.spends = 0
        self.batches = [0] * (BATCH_MAX.bit_length() + 1)  # by the number of bits of their size

    def spend(self, request: HeldSpend, now_ms: int, callback: _Answer) -> None:
        """Spend one credit; `callback` is called once in this loop, and never before this returns.

        It is given StorageError (503) where the outcome is unknown or the database takes nothing.
        """
        bought = self._known(request)
        if bought is not None:
            request = HeldSpend(None, bought.id, request.wish, bought.number)
        self._ask(request, bought, now_ms, callback)

    def _ask(self, request: HeldSpend, bought: Purchase | None, now_ms: int, callback: _Answer) -> None:
        if len(self._waiting) >= WAITING_MAX:
            loop = asyncio.get_running_loop()
            loop.call_soon(callback, StorageError("too many requests are waiting for the database"))
            return
        self._waiting.append((request, bought, now_ms, callback))
        if not self._is_under_way:
            self._is_under_way = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._next)  # behind the next look at the sockets

    def spend_held(self, bought: Purchase, gate_version: int, call_id: str, now_ms: int, callback: _Answer) -> None:
        """As `spend`, for whoever shows again what `bought` this purchase's credits and spent one of them before.

        Where one is taken, the answer has only `left`.
        """
        wish = SpendRequest(bought.gate_id, gate_version, bought.header_hash, call_id)
        request = HeldSpend(None, bought.id, wish, bought.number)
        if self._is_under_way and len(self._waiting) < WAITING_MAX:  # as most: it joins those that wait
            self._waiting.append((request, None, now_ms, callback))
        else:
            self._ask(request, None, now_ms, callback)

    def end(self, call_id: str, status: int) -> bool:
        """Note how a call ended, to be written with the next spends; False, and not noted, where too many wait."""
        if len(self._ended) >= ENDED_MAX:
            return False
        self._ended.append((call_id, status))
        return True

    def refused(self, call_id: str) -> None:
        """Note a call that was answered 503 because nobody knew whether its credit is spent: it is given back if so.

        Where too many wait, their calls stay charged until the process ends, and are marked as interrupted then.
        """
        if len(self._unserved) < ENDED_MAX:
            self._unserved.append(call_id)

    async def flush_ended(self, now_ms: int) -> None:
        """Write what no spend took along. Raises: StorageError; what was not written is kept."""
        while unserved := self._unserved[:ENDED_AT_ONCE]:
            del self._unserved[:ENDED_AT_ONCE]
            try:
                await self._database.run(give_back(unserved, now_ms))
            except ApiError:
                self._unserved += unserved
                raise
        while ended := self._take_ended():
            try:
                await self._database.run(end_calls(ended, now_ms))
            except ApiError:
                self._ended += ended
                raise

    def _take_ended(self) -> list[tuple[str, int]]:
        ended, self._ended = self._ended[:ENDED_AT_ONCE], self._ended[ENDED_AT_ONCE:]
        return ended

    def _known(self, request: HeldSpend) -> Purchase | None:
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
        return len(self._waiting)

    def _next(self) -> None:
        batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        self.spends += len(batch)
        self.batches[len(batch).bit_length()] += 1
        # Payments that were not seen before take nothing, and would now wait for a sync.
        ended = self._take_ended() if any(request.number is not None for request, _, _, _ in batch) else []
        self._post(batch, ended, partial(self._done, batch, ended))

    def _post(self, batch: list[_Waiting], ended: list[tuple[str, int]], answer: Callable[[Outcome], None]) -> None:
        try:
            self._database.post(SpendBatch([waiting[0] for waiting in batch], batch[-1][2], ended), answer)
        except Exception as error:  # noqa: BLE001 - it is the answer to each of them
            answer(Outcome(error=error))

    def _done(self, batch: list[_Waiting], ended: list[tuple[str, int]], outcome: Outcome) -> None:
        # First of all, so that nothing that a callback does can hold up the others.
        self._is_under_way = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        if outcome.error is not None:
            self._ended += ended  # writing them twice changes nothing
        if outcome.error is not None and not isinstance(outcome.error, StorageError) and len(batch) > 1:
            for waiting in batch:
                self._post([waiting], [], partial(self._answer, [waiting]))
        else:
            self._answer(batch, outcome)

    def _answer(self, batch: list[_Waiting], outcome: Outcome) -> None:
        results: Any = outcome.result
        if outcome.error is not None:
            results = [_refusal_of(outcome.error)] * len(batch)
            if isinstance(outcome.error, StorageError):
                for request, *_ in batch:
                    self.refused(request.wish.call_id)
        for (request, bought, _, callback), result in zip(batch, results, strict=True):
            try:
                is_known = bought is None and request.number is not None
                callback(result if is_known or isinstance(result, ApiError) else self._told(request, bought, result))
            except Exception:
                logger.exception("the callback of a spend failed")

    def _told(self, request: HeldSpend, bought: Purchase | None, result: SpendResult) -> SpendResult:
        """The answer with its purchase, which is remembered for the next spend."""
        if result.left is not None and bought is not None:
            return SpendResult(Spend.SPENT, msgspec.structs.replace(bought, remaining=result.left))
        if result.outcome is Spend.SPENT and result.purchase is not None and request.key is not None:
            self._remember(request.key, result.purchase)
        return result


def _refusal_of(error: BaseException) -> ApiError:
    """What the caller is told: a database that cannot is a 503, a fault of ours a 500."""
    if isinstance(error, ApiError):
        return error
    logger.error("a spend failed", exc_info=error)
    return ApiError(Code.INTERNAL_ERROR, "the credit could not be spent")
