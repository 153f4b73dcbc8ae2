"""The journal of calls on purchases that are known: a row for all that one commit spends, and for how others ended.

A row is written once and never changed. A call is found in it by its id, between two rows: whoever asks for one knows
about when it was spent (`open_calls`). What this module does not do: change how many credits a purchase has (`spends`
does, in the same unit).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tollkeeper.storage.engine.database import Row, Steps

NEWEST: Final = 2**62  # a row that never is


class Open(msgspec.Struct, frozen=True, array_like=True):
    """Calls that may have no end: those in the journal from the row `since` on, and older ones by their ids."""

    since: int
    calls: list[str]


_JOURNAL: Final = load_queries("call_journal.sql")
_ENCODE: Final = msgspec.json.Encoder().encode


@unit_of_work
def write(
    spent: Mapping[str, int], ended: Mapping[int, Collection[str]], opened: Mapping[str, Open], now_ms: int
) -> Steps[int]:
    """Write a row: which calls took a credit of which purchase (its number), and by status which others ended.

    `opened`: by ledger, which calls of its may be open beside these. Returns the row's number; 0 where there was no
    need of one.
    """
    yield from note_open(opened)
    if not spent and not ended:
        return 0
    return (yield from _write(_ENCODE(spent).decode(), _ENCODE(ended).decode(), "[]", now_ms))


@unit_of_work
def note_open(opened: Mapping[str, Open]) -> Steps[None]:
    """Note by ledger which of its calls may be open."""
    for ledger, one in opened.items():
        yield _JOURNAL.note_open_calls(ledger=ledger, since=one.since, calls=_ENCODE(one.calls).decode())


@unit_of_work
def _write(spent: str, ended: str, interrupted: str, now_ms: int) -> Steps[int]:
    rows = yield _JOURNAL.write_in_journal(spent=spent, ended=ended, interrupted=interrupted, now_ms=now_ms)
    number: int = rows[0]["number"]
    return number


@unit_of_work
def newest() -> Steps[int]:
    """The number of the last row; 0 where there is none."""
    number: int = (yield _JOURNAL.newest_of_journal())[0]["number"]
    return number


@unit_of_work
def find(calls: Collection[str], first: int, last: int = NEWEST) -> Steps[list[Row]]:
    """Those of these calls that the rows from `first` to `last` have.

    As `holdings` has their purchases, with `call_id` and `journal_number`.
    """
    return (yield _JOURNAL.spent_in_journal(calls=_ENCODE([*calls]).decode(), first=first, last=last))


@unit_of_work
def enter_restore(call_id: str, purchase_id: str, now_ms: int) -> Steps[bool]:
    """Enter in the ledger that a call's credit is given back; whether it is: once, though its purchase be void."""
    return bool((yield _JOURNAL.restore_in_journal(id=call_id, purchase_id=purchase_id, now_ms=now_ms)))


@unit_of_work
def write_interrupted(calls: Collection[str], now_ms: int) -> Steps[None]:
    """Write that these calls, which are in the journal, have no end and will have none."""
    if calls:
        yield from _write("{}", "{}", _ENCODE([*calls]).decode(), now_ms)
