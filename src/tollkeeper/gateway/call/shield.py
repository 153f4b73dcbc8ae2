"""The shield of credits: taking one or giving one back goes on, whatever becomes of its request (contract 4.3, 4.5).

Committed is charged, though the client left meanwhile: then the call is ended here (`flow` ends one whose spend was one
of a batch). What gives a credit back: a 503 of ours, a 502 where the gate says so (`credit_refusals.is_given_back`), a
stop that cut the call before its answer began, and a database that went away without saying whether it took one, or
gave one back (`Ledger.refused`: then it is given back once the database is there again). How many credits are taken,
and of which purchase, is `storage.ledger.spends`; who asks for them is `flow`.

Each takes or gives by a commit of its own, which the loop makes where the disk is quick, and the writing thread where
it is not (`SqliteDatabase.run`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from tollkeeper.api import clock_ms
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.statistics import CLIENT_GONE_STATUS
from tollkeeper.core.purchases import Spend
from tollkeeper.gateway.call.state import GIVEN_UP_STATUS, Stage, Steps
from tollkeeper.storage.engine.database import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tollkeeper.storage.ledger.purchase_rows import SpendResult

T = TypeVar("T")


class Charging(Steps):
    """One request, as far as a credit is taken for it or given back."""

    @abstractmethod
    def end(self, status: int, code: Code | None = None, *, failed: bool = False) -> None:
        """Counts the end of a paid call; `code` says what was wrong where the answer is not the target's."""

    async def _charged(self, taking: Coroutine[Any, Any, SpendResult]) -> SpendResult:
        """Its result. It goes on where the client leaves meanwhile: what commits then is charged, and ended here."""
        future = self.uncancelled(self._taken(taking))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self.left)
            raise

    async def _taken(self, taking: Coroutine[Any, Any, T]) -> T:
        """Its result. Where nobody knows whether it took a credit the call is refused, and what it took given back."""
        try:
            return await taking
        except StorageError:
            self.shared.purchases.ledger.refused(self.call.request_id)
            raise

    def uncancelled(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Begin what takes a credit or gives one back; a stop waits for it, whatever becomes of the request."""
        future = asyncio.ensure_future(work)
        self.shared.charging.add(future)
        future.add_done_callback(self.shared.charging.discard)
        return future

    def left(self, taken: asyncio.Future[SpendResult]) -> None:
        """Note what was decided about a credit whose call had ended by then."""
        if not taken.cancelled() and isinstance(taken.exception(), StorageError):
            self.shared.purchases.ledger.refused(self.call.request_id)
        elif not taken.cancelled() and taken.exception() is None and taken.result().outcome is Spend.SPENT:
            if self.is_cut:
                self.give_back_unanswered()
            else:
                self._end_unanswered()

    def give_back(self, error: ApiError, answer: Callable[[int | None, str], None]) -> None:
        """Gives the credit back, then has this `answer`ed, with how many are left; None where it is not given back yet.

        Begun at once: a client that leaves from now on has its credit, too, and its call ends here.
        """
        self.is_returning = True
        restoring = self.uncancelled(self.shared.purchases.restore(self.call.request_id, error.status, clock_ms()))
        restoring.add_done_callback(lambda done: self.guard(self._given_back, done, answer))

    def _given_back(self, restoring: asyncio.Future[int | None], answer: Callable[[int | None, str], None]) -> None:
        fault, is_gone = restoring.exception(), self.stage is Stage.OVER
        self.is_returning = False
        if isinstance(fault, StorageError):  # as soon as the database can
            self.shared.purchases.ledger.refused(self.call.request_id)
        if is_gone:
            self._end_unanswered()
        if fault is not None and not isinstance(fault, StorageError):
            raise fault
        if is_gone:
            return
        if fault is not None:
            answer(None, "the credit is given back as soon as the database can")
        elif (left := restoring.result()) is None:
            answer(None, "the credit was used, and no more of this purchase are given back")
        else:
            answer(left, "the credit was given back")

    def give_back_unanswered(self) -> None:
        """Gives back the credit of a call that the stop has cut: a 503 charges nothing (contract 4.5)."""
        cut = ApiError(Code.UNAVAILABLE, "the gateway stopped before this was answered")
        self.give_back(cut, lambda _left, _told: None)

    def _end_unanswered(self) -> None:
        if self.is_cut:
            self.end(GIVEN_UP_STATUS, Code.UNAVAILABLE, failed=True)
        else:
            self.end(CLIENT_GONE_STATUS)
