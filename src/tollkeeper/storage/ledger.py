"""The ledger of held credits as the data plane uses it: spends in batches, answered by callbacks (contract 4.3).

Whatever arrived in one turn of the event loop, or while the last commit ran, is the next batch and one commit: no
timer, no task and no future per spend. A batch is tried whole; where one of its spends breaks it (a fault of ours),
each is spent alone, so that nobody pays for another's fault. An answer is given after the commit is durable; after a
StorageError nobody knows whether the credit is spent, and the call must not be served.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tollkeeper.core.errors import ApiError, Code
from tollkeeper.storage.database import Outcome, StorageError
from tollkeeper.storage.spending import HeldSpend, SpendBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.database import Database
    from tollkeeper.storage.purchase_rows import SpendResult

__all__ = ["BATCH_MAX", "HeldSpend", "Ledger"]

BATCH_MAX: Final = 256  # a few milliseconds of the event loop
WAITING_MAX: Final = 16_384

logger = logging.getLogger(__name__)

_Answer: TypeAlias = "Callable[[SpendResult | ApiError], None]"
_Waiting: TypeAlias = "tuple[HeldSpend, int, _Answer]"


class Ledger:
    """Spends credits held in one database, for the callers of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._is_under_way = False

    def spend(self, request: HeldSpend, now_ms: int, callback: Callable[[SpendResult | ApiError], None]) -> None:
        """Spend one credit; `callback` is called once in this loop, and never before this returns.

        It is given StorageError (503) where the outcome is unknown or the database takes nothing.
        """
        if len(self._waiting) >= WAITING_MAX:
            loop = asyncio.get_running_loop()
            loop.call_soon(callback, StorageError("too many requests are waiting for the database"))
            return
        self._waiting.append((request, now_ms, callback))
        if not self._is_under_way:
            self._is_under_way = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        self._post(batch, partial(self._ended, batch))

    def _post(self, batch: list[_Waiting], answer: Callable[[Outcome], None]) -> None:
        try:
            self._database.post(SpendBatch([request for request, _, _ in batch], batch[-1][1]), answer)
        except Exception as error:  # noqa: BLE001 - it is the answer to each of them
            answer(Outcome(error=error))

    def _ended(self, batch: list[_Waiting], outcome: Outcome) -> None:
        # First of all, so that nothing that a callback does can hold up the others.
        self._is_under_way = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        if outcome.error is not None and not isinstance(outcome.error, StorageError) and len(batch) > 1:
            for waiting in batch:
                self._post([waiting], partial(_answer, [waiting]))
        else:
            _answer(batch, outcome)


def _answer(batch: list[_Waiting], outcome: Outcome) -> None:
    results: Any = outcome.result
    if outcome.error is not None:
        results = [_refusal_of(outcome.error)] * len(batch)
    for (_, _, callback), result in zip(batch, results, strict=True):
        try:
            callback(result)
        except Exception:
            logger.exception("the callback of a spend failed")


def _refusal_of(error: BaseException) -> ApiError:
    """What the caller is told: a database that cannot is a 503, a fault of ours a 500."""
    if isinstance(error, ApiError):
        return error
    logger.error("a spend failed", exc_info=error)
    return ApiError(Code.INTERNAL_ERROR, "the credit could not be spent")
