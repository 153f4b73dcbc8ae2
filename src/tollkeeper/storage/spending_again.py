"""Spends asked again after an answer was lost: what was taken stays taken, once (contract 4.3; security F12).

A call's id names its spend for ever. What this module does not do: ask; `remote` and `purchases._until_back` do, of a
process started anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.purchases import Spend
from tollkeeper.storage import call_journal
from tollkeeper.storage.purchase_rows import SpendResult, purchase_from
from tollkeeper.storage.queries import load_queries
from tollkeeper.storage.spending import Spent, spend_all, spend_of_payer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tollkeeper.storage.database import Unit
    from tollkeeper.storage.purchase_rows import SpendRequest
    from tollkeeper.storage.spending import HeldSpend, KnownSpends

_Q: Final = load_queries("gateway.sql")


def spend_again(spends: Sequence[HeldSpend], now_ms: int) -> Unit[list[SpendResult]]:
    """As `spend_all`, but SPENT for each whose credit was taken already."""
    results = yield from _taken([spend.wish.call_id for spend in spends])
    rest = [spend for spend in spends if spend.wish.call_id not in results]
    if rest:
        answers = yield from spend_all(rest, now_ms)
        results.update({spend.wish.call_id: answer for spend, answer in zip(rest, answers, strict=True)})
    return [results[spend.wish.call_id] for spend in spends]


def spend_known_again(known: KnownSpends) -> Unit[Spent]:
    """SPENT for each whose credit was taken already; the others are to be asked again as ones that are not known.

    All that were taken are in one row of the journal: they were one batch.
    """
    results: dict[str, SpendResult] = {}
    row = 0
    for found in (yield from call_journal.find(known.calls, known.after + 1)):
        results[found["call_id"]] = SpendResult(Spend.SPENT, purchase_from(found))
        row = found["journal_number"]
    return Spent([], [results.get(call_id) for call_id in known.calls], row)


def _taken(calls: Iterable[str]) -> Unit[dict[str, SpendResult]]:
    results: dict[str, SpendResult] = {}
    for call_id in calls:
        rows = yield _Q.purchase_of_call(id=call_id)
        if rows:
            results[call_id] = SpendResult(Spend.SPENT, purchase_from(rows[0]))
    return results


def spend_of_payer_again(payer: str, wish: SpendRequest, now_ms: int) -> Unit[SpendResult]:
    """As `spend_of_payer`, but SPENT where the credit was taken already."""
    rows = yield _Q.purchase_of_call(id=wish.call_id)
    if rows:
        return SpendResult(Spend.SPENT, purchase_from(rows[0]))
    return (yield from spend_of_payer(payer, wish, now_ms))
