"""The ledger of held credits as the data plane uses it: spends in batches, answered by callbacks (contract 4.3).

Whatever arrived in one turn of the event loop, or while the last commit ran, is the next batch and one commit: no
timer, no task and no future per spend. The loop looks at its sockets once more before it commits, for what came while
it was busy costs next to nothing in the same commit, and answers of targets need not wait for it. A batch is tried
whole; where one of its spends breaks it (a fault of ours), each is spent alone, so that nobody pays for another's
fault. An answer is given after the commit is durable; after a StorageError nobody knows whether the credit is spent,
and the call must not be served: what it took after all is given back as soon as the database can say so. (Which calls
that are is known to this process alone: where it dies before, they stay charged, as what was under way at a crash.)

What a purchase is (payer, gate, header, how many credits were granted) never changes while it has credits, so the
purchases of the last spends are remembered, and their next spends need no look-up. One on trust is, once its payment is
confirmed: before, its hub may replace the transaction that its receipts name. What a reorganisation renames afterwards
is known no more (`is_renamed` of `credits`). How many credits are left, and whether they still count, is for the
database alone to say. How calls ended is written with the spends that come next: a commit of its own would be one more
for callers to wait for.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.purchases import Spend
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import JobOutcome, NotTakenError, StorageError
from tollkeeper.storage.ledger import call_journal
from tollkeeper.storage.ledger.open_calls import Ended, OpenCalls
from tollkeeper.storage.ledger.purchase_rows import SpendRequest, SpendResult
from tollkeeper.storage.ledger.spends import (
    UNAVAILABLE,
    HeldSpend,
    KnownSpends,
    SpendBatch,
    Spent,
    end_calls,
    give_back,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.ledger.call_journal import Open
    from tollkeeper.storage.ledger.purchase_rows import Purchase


BATCH_MAX: Final = 256  # a few milliseconds of the event loop
_OTHERS_AT_LEAST: Final = BATCH_MAX // 4
WAITING_MAX: Final = 16_384
REMEMBERED_MAX: Final = 10_000
_JUST_SECONDS: Final = 0.2  # in which whoever had asked before is told, and asks again

logger = logging.getLogger(__name__)

_NOTHING_ENDED: Final = Ended({}, {})

_Answer: TypeAlias = "Callable[[SpendResult | ApiError], None]"
_Waiting: TypeAlias = "tuple[HeldSpend, _Answer]"


class _KnownSpend(msgspec.Struct, frozen=True):
    """A spend of a purchase that is remembered."""

    purchase: Purchase
    spend_request: SpendRequest
    callback: _Answer


class _Batch(NamedTuple):
    """Batch of one commit. `columns` hold, of the known ones, what the database must know."""

    others: list[_Waiting]
    known: list[_KnownSpend]
    columns: KnownSpends | None
    ended: Ended


class Ledger:
    """Spends credits held in one database, for the callers of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._known: list[_KnownSpend] = []
        self._now_ms = 0  # of the last spend
        self._is_under_way = False
        self._alone_count = 0  # of a batch that broke: those that are asked by themselves and not answered yet
        self._idle: asyncio.Future[None] | None = None
        self._bought: dict[PaymentKey, Purchase] = {}
        self._open = OpenCalls()
        self.end = self._open.end  # how a call ended is written with the next spends; dropped where too many wait
        self._giving_back: asyncio.Future[None] | None = None
        self._given_back = -_JUST_SECONDS  # when, by the loop's clock
        self.spends = 0
        self.batches = [0] * (BATCH_MAX.bit_length() + 1)  # by the number of bits of their size

    async def open(self) -> None:
        """Before the first spend: learn how much is in the journal already, which need not be looked through again."""
        self._open.newest = await self._database.run(call_journal.newest(), is_short=True)

    def spend(self, request: HeldSpend, now_ms: int, callback: _Answer) -> None:
        """Spend one credit; `callback` is called once in this loop, and never before this returns.

        It is given StorageError (503) where the outcome is unknown or the database takes nothing.
        """
        if len(self._waiting) + len(self._known) >= WAITING_MAX:
            full = StorageError("too many requests are waiting for the database")
            asyncio.get_running_loop().call_soon(callback, full)
            return
        bought = self._remembered(request)
        if bought is not None:
            self._known.append(_KnownSpend(bought, request.spend_request, callback))
        else:
            self._waiting.append((request, callback))
        self._now_ms = now_ms
        if not self._is_under_way:
            self._begin()

    def begin_anew(self) -> None:
        """Note soon which calls are open: another program has ended this one's, and what was noted of them."""
        self._open.note_anew()

    async def idle(self) -> None:
        """Return once no spend waits for its commit and none for the answer to it."""
        while self._is_under_way or self._alone_count:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _begin(self) -> None:
        if not self._is_under_way:
            self._is_under_way = True
            self._next_soon()

    def _next_soon(self) -> None:
        """Make the next batch behind the next look at the sockets, or one half of the callers waits for the other."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._next)

    def take_dropped(self) -> int:
        """Return how many ends were dropped since this was asked."""
        return self._open.take_dropped()

    def row_of(self, call_id: str) -> int | None:
        """The row of the journal that an open call is in, if it is in one."""
        return self._open.row_of(call_id)

    def refused(self, call_id: str) -> None:
        """Note a call whose credit is to be given back, if it took one: nobody knew whether, or it could not be so far.

        Its end is written with that, as a 503. Where too many wait, what they took stays taken.
        """
        self._open.refused(call_id)

    async def flush_ended(self, now_ms: int) -> None:
        """Write what no spend takes along. Raises: StorageError; what was not written is kept."""
        await self._give_owed_back(now_ms)
        while not self._known and any(ended := self._open.take_ended()):
            await self._write_ended(ended, self._open.to_note() if ended.journal else {}, now_ms)

    async def has_given_back(self, now_ms: int) -> bool:
        """Give back what is owed; whether anything was, or just before: who found nothing then should ask again.

        Raises: StorageError; what was not given back is kept.
        """
        if self._open.owes:
            await self._give_owed_back(now_ms)
            return True
        left_seconds = self._given_back + _JUST_SECONDS - asyncio.get_running_loop().time()
        if left_seconds <= 0:
            return False
        await asyncio.sleep(left_seconds)
        return True

    async def _give_owed_back(self, now_ms: int) -> None:
        """One for all who ask meanwhile, and so is what keeps it from being done."""
        if self._giving_back is None:
            self._giving_back = giving = asyncio.ensure_future(self._give_all_back(now_ms))
            giving.add_done_callback(self._has_given_back)
        await asyncio.shield(self._giving_back)

    def _has_given_back(self, giving: asyncio.Future[None]) -> None:
        self._giving_back = None
        if not giving.cancelled():
            giving.exception()  # who asked may have left

    async def _give_all_back(self, now_ms: int) -> None:
        while (unserved := self._open.some_unserved())[0]:
            await self._give_back(*unserved, now_ms)
            self._given_back = asyncio.get_running_loop().time()

    async def _give_back(self, calls: Mapping[str, int | None], since: int, now_ms: int) -> None:
        try:
            await self._database.run(give_back(calls, since, now_ms))
        except ApiError:
            raise
        except Exception:  # a fault of ours, which must not keep the others from theirs
            if len(calls) > 1:
                for one, row in calls.items():
                    await self._give_back({one: row}, since, now_ms)
                return
            (one,) = calls
            logger.exception("a credit was not given back: %s", one)
            self._open.not_given_back(one, UNAVAILABLE)
        else:
            self._open.given_back(calls)

    async def _write_ended(self, ended: Ended, opened: dict[str, Open], now_ms: int) -> None:
        try:
            await self._database.run(end_calls(ended.single, now_ms, ended.journal, opened))
        except BaseException:
            self._open.put_back(ended)
            raise
        self._open.written(ended, opened)

    def _remembered(self, request: HeldSpend) -> Purchase | None:
        """The purchase of a request that names none, where it is remembered and this header bought it at this gate."""
        key, spend_request = request.key, request.spend_request
        bought = None if key is None or request.purchase_id is not None else self._bought.get(key)
        if (
            bought is None
            or spend_request.header is None
            or spend_request.is_once
            or bought.gate_id != spend_request.gate_id
        ):
            return None
        return bought if hmac.compare_digest(spend_request.header, bought.header_hash) else None

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
        ended = self._open.take_ended() if known else _NOTHING_ENDED
        batch = _Batch(others, known, self._columns(known, ended.journal), ended)
        self._post(batch, partial(self._done, batch))

    def _columns(self, known: Sequence[_KnownSpend], ended: dict[int, list[str]]) -> KnownSpends | None:
        if not known:
            return None
        return KnownSpends(
            {(spend.spend_request.gate_id, spend.spend_request.gate_version) for spend in known},
            {spend.spend_request.call_id: spend.purchase.number for spend in known},
            len(known),
            ended,
            self._open.to_note(),
            self._open.newest,
        )

    def _post(self, batch: _Batch, answer: Callable[[JobOutcome], None], *, is_alone: bool = False) -> None:
        spends = [request for request, _ in batch.others]
        try:
            self._database.post(
                SpendBatch(spends, self._now_ms, batch.ended.single, batch.columns, is_alone).unit(), answer
            )
        except StorageError as error:  # what is asked in pieces may have been taken when it was asked whole
            answer(JobOutcome(error=error if is_alone else NotTakenError(error.message)))
        except Exception as error:  # noqa: BLE001 - it is the answer to each of them
            answer(JobOutcome(error=error))

    def _done(self, batch: _Batch, outcome: JobOutcome) -> None:
        # First of all, so that nothing that a callback does can hold up the others.
        self._is_under_way = bool(self._waiting or self._known)
        if self._is_under_way:
            self._next_soon()
        if outcome.error is not None:
            self._open.put_back(batch.ended)
        is_fault = outcome.error is not None and not isinstance(outcome.error, StorageError)
        if is_fault and len(batch.others) + len(batch.known) > 1:
            alone = [_Batch([one], [], None, _NOTHING_ENDED) for one in batch.others]
            alone += [_Batch([], [one], self._columns([one], {}), _NOTHING_ENDED) for one in batch.known]
            self._alone_count += len(alone)
            for one in alone:
                self._post(one, partial(self._alone, one), is_alone=True)
        else:
            self._answer(batch, outcome)
        self._tell_idle()

    def _alone(self, batch: _Batch, outcome: JobOutcome) -> None:
        self._alone_count -= 1
        self._answer(batch, outcome)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._idle is not None and not (self._is_under_way or self._alone_count):
            self._idle.set_result(None)
            self._idle = None

    def _answer(self, batch: _Batch, outcome: JobOutcome) -> None:
        if outcome.error is not None:
            self._refuse(batch, outcome.error)
            return
        spent: Spent = outcome.result
        for (request, callback), result in zip(batch.others, spent.others, strict=True):
            self._learn(request, result)
            _tell(callback, result)
        if batch.columns is not None:
            self._open.written(batch.ended, batch.columns.opened)
            self._answer_known(batch.known, spent)

    def _answer_known(self, known: Sequence[_KnownSpend], spent: Spent) -> None:
        told = list(zip(known, spent.lefts, strict=True))
        self._open.spent([spend.spend_request.call_id for spend, left in told if left is not None], spent.row)
        for spend, left in told:
            if left is None:  # it is no longer as it is remembered
                self._ask_anew(spend)
            else:
                _tell(spend.callback, SpendResult(Spend.SPENT, msgspec.structs.replace(spend.purchase, remaining=left)))

    def _refuse(self, batch: _Batch, error: BaseException) -> None:
        refusal = _refusal_of(error)
        asked = [(request.spend_request.call_id, callback) for request, callback in batch.others]
        asked += [(spend.spend_request.call_id, spend.callback) for spend in batch.known]
        if isinstance(error, StorageError) and not isinstance(error, NotTakenError):
            since = None if batch.columns is None else batch.columns.after + 1
            for call_id, _ in asked:
                self._open.refused(call_id, since)
        for _, callback in asked:
            _tell(callback, refusal)

    def _ask_anew(self, spend: _KnownSpend) -> None:
        """Ask again by a spend that names its purchase, and of which nothing else is known."""
        bought = spend.purchase
        self._bought.pop(PaymentKey(bought.network, bought.asset, bought.payer, bought.nonce), None)
        self._waiting.append((HeldSpend(None, bought.id, spend.spend_request), spend.callback))
        self._begin()

    def _learn(self, request: HeldSpend, result: SpendResult | ApiError) -> None:
        """Remember whose purchase it is, for the next spend."""
        if (
            isinstance(result, SpendResult)
            and result.outcome is Spend.SPENT
            and result.purchase is not None
            and result.purchase.confirmed
            and request.key is not None
            and not request.spend_request.is_once
        ):
            self._remember(request.key, result.purchase)


def _tell(callback: _Answer, result: SpendResult | ApiError) -> None:
    try:
        callback(result)
    except Exception:
        logger.exception("the callback of a spend failed")


def _refusal_of(error: BaseException) -> ApiError:
    """Return the caller's refusal: 503 for a database that fails, 500 for a fault of ours."""
    if isinstance(error, NotTakenError):
        return NotTakenError(f"{error.message}; nothing was charged, try again")
    if isinstance(error, ApiError):
        return error
    logger.error("a spend failed", exc_info=error)
    return ApiError(Code.INTERNAL_ERROR, "the credit could not be spent")
