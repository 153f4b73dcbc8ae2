"""Batches of spends of several workers as one commit: what arrived while the last one ran (performance 3, 7).

A worker gathers its own spends and has one batch under way at a time (`ledger`). Here the batches of all workers that
wait are one transaction; one that breaks it (a fault of ours) is told so alone, its worker then asks for each of its
spends by itself, and the others' are done. What this module does not do: remember purchases, which each worker does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from tollkeeper.storage import call_journal
from tollkeeper.storage.database import ConstraintError, Outcome, StorageError
from tollkeeper.storage.spending import KnownSpends, Spent, end_calls, spend_all, spend_known
from tollkeeper.storage.spending_again import spend_again, spend_known_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tollkeeper.storage.database import Database, Unit
    from tollkeeper.storage.remote_messages import Spends

SPENDS_MAX: Final = 256  # in one commit, or one batch: a few milliseconds of the event loop

_Waiting: TypeAlias = "tuple[Spends, Callable[[Outcome], None]]"


class _Joined(msgspec.Struct, frozen=True):
    """Batches that are one unit (a `Job`)."""

    batches: list[Spends]

    def unit(self) -> Unit[list[Spent]]:
        """What each batch is answered.

        Of those that are asked again what was taken is found; where the first asking waits too, it breaks.
        """
        again = [batch for batch in self.batches if batch.is_again]
        if again and not _calls(again).isdisjoint(_calls(batch for batch in self.batches if not batch.is_again)):
            raise ConstraintError("a call is asked for the first time and again")
        now_ms = max(batch.now_ms for batch in self.batches)
        for batch in self.batches:
            yield from end_calls(batch.ended, now_ms)
        answers: dict[int, Spent] = {}
        for place, batch in enumerate(self.batches):
            if batch.is_again:
                answers[place] = Spent([]) if batch.known is None else (yield from spend_known_again(batch.known))
                answers[place].others = yield from spend_again(batch.spends, now_ms)
                if batch.known is not None:
                    yield from call_journal.write({}, batch.known.ended, batch.known.opened, now_ms)
        new = {place: batch for place, batch in enumerate(self.batches) if not batch.is_again}
        known = [batch.known for batch in new.values() if batch.known is not None]
        spent = Spent([])
        if known:
            is_alone = any(batch.is_alone for batch in new.values())
            spent = yield from spend_known(_together(known), now_ms, is_alone=is_alone)
        lefts = iter(spent.lefts)
        others = iter((yield from spend_all([spend for batch in new.values() for spend in batch.spends], now_ms)))
        for place, batch in new.items():
            counts = [*islice(lefts, 0 if batch.known is None else batch.known.count)]
            answers[place] = Spent([*islice(others, len(batch.spends))], counts, spent.row)
        return [answers[place] for place in range(len(self.batches))]


def _together(known: Sequence[KnownSpends]) -> KnownSpends:
    """A call's id that is in two of them is missing in `calls`, which breaks the batch."""
    if len(known) == 1:
        return known[0]
    calls: dict[str, int] = {}
    ended: dict[int, list[str]] = {}
    opened: dict[str, call_journal.Open] = {}
    for one in known:
        calls |= one.calls
        opened |= one.opened
        for status, its in one.ended.items():
            ended[status] = ended.get(status, []) + its
    gates = set().union(*(one.gates for one in known))
    return KnownSpends(gates, calls, sum(one.count for one in known), ended, opened, min(one.after for one in known))


def _calls(batches: Iterable[Spends]) -> set[str]:
    """The calls of known purchases."""
    return {call_id for batch in batches if batch.known is not None for call_id in batch.known.calls}


def _size(batch: Spends) -> int:
    return len(batch.spends) + (0 if batch.known is None else batch.known.count)


class JoinedSpends:
    """The batches of all workers of one database, for the one event loop that owns it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._is_under_way = False

    def spend(self, batch: Spends, answer: Callable[[Outcome], None]) -> None:
        """Carry out a batch with all that wait; `answer` is given the list of its results, or what broke it."""
        self._waiting.append((batch, answer))
        if not self._is_under_way:
            self._is_under_way = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        taken, spends = 1, _size(self._waiting[0][0])
        while taken < len(self._waiting) and (spends := spends + _size(self._waiting[taken][0])) <= SPENDS_MAX:
            taken += 1
        joined, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._post(joined, partial(self._done, joined))

    def _post(self, joined: list[_Waiting], answer: Callable[[Outcome], None]) -> None:
        try:
            self._database.post(_Joined([batch for batch, _ in joined]), answer)
        except Exception as error:  # noqa: BLE001 - it is the answer to each of them
            answer(Outcome(error=error))

    def _done(self, joined: list[_Waiting], outcome: Outcome) -> None:
        self._is_under_way = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        if outcome.error is not None and not isinstance(outcome.error, StorageError) and len(joined) > 1:
            for batch, answer in joined:
                alone = [(msgspec.structs.replace(batch, is_alone=True), answer)]
                self._post(alone, partial(_tell, alone))
        else:
            _tell(joined, outcome)


def _tell(joined: Sequence[_Waiting], outcome: Outcome) -> None:
    for place, (_, answer) in enumerate(joined):
        answer(outcome if outcome.error is not None else Outcome(outcome.result[place]))
