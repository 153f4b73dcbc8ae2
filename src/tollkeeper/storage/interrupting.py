"""Calls that dead processes left without an end: found, and marked as interrupted (contract 4.3; security F2).

They stay charged. Most are in the journal, which is read from the first row on that can have one of theirs. That may be
a long way, so it is gone in pieces, by reads that hold up nobody; the unit that marks them reads what came meanwhile. A
note of which calls a ledger has open (`open_calls`) stays until nothing of a dead process can be under way any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tollkeeper.storage import call_journal
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tollkeeper.storage.database import Database, Row, Unit

PIECE_ROWS: Final = 64  # some thousand calls
# What a dead process had sent is committed or undone by then.
SETTLED_MS: Final = 5_000
_MARK: Final = slice(12, 20)  # of a request's id: its process's
_ID_LENGTH: Final = 32

_Q: Final = load_queries("gateway.sql")
_JOURNAL: Final = load_queries("call_journal_sqlite.sql")
_ENCODE: Final = msgspec.json.Encoder().encode
_CALLS: Final = msgspec.json.Decoder(list[str]).decode
_SPENT: Final = msgspec.json.Decoder(dict[str, int]).decode
_ENDED: Final = msgspec.json.Decoder(dict[str, list[str]]).decode


@dataclass(frozen=True, slots=True)
class Interrupted:
    """How many calls were marked.

    `is_done`: nothing more can come of the processes that are dead. Else they are to be looked for again, SETTLED_MS
    later or more: what such a process had sent may be committed only now.
    """

    count: int
    is_done: bool


async def interrupt_calls(database: Database, now_ms: int, living: Callable[[], str]) -> Interrupted:
    """See `Purchases.interrupt_calls`."""
    left = _Left(living(), await database.read(_JOURNAL.notes_of_the_dead(living=living())))
    while left.first is not None and left.take(await database.read(left.next_piece())):
        pass
    left.spare(living())  # who was started meanwhile has calls among these by now
    return await database.run(mark_interrupted(left, now_ms))


class _Left:
    """What dead processes left open, as far as it was read. `first`: the next row to read; None where there is none."""

    def __init__(self, living: str, notes: list[Row]) -> None:
        self.living = living
        self.notes = _by_ledger(notes)
        self.first: int | None = min((row["since"] for row in notes), default=None)
        self.open = {call_id: None for row in notes for call_id in _CALLS(row["calls"])}

    def next_piece(self) -> Any:  # noqa: ANN401 - a Statement
        """What reads it."""
        return _JOURNAL.piece_of_journal(first=self.first, many=PIECE_ROWS)

    def take(self, rows: list[Row]) -> bool:
        """Go on by these rows; whether there may be more."""
        for row in rows:
            self.open |= dict.fromkeys(filter(self._is_of_the_dead, _SPENT(row["spent"])))
            for calls in _ENDED(row["ended"]).values():
                self._close(calls)
            self._close(_CALLS(row["interrupted"]))
            self.first = row["number"] + 1
        return len(rows) == PIECE_ROWS

    def spare(self, living: str) -> None:
        """These live, too. Who lived at first and is dead by now is for the next look."""
        if self.living:
            self.living = f"{self.living} {living}"
            self.open = dict.fromkeys(filter(self._is_of_the_dead, self.open))

    def _is_of_the_dead(self, call_id: str) -> bool:
        return not self.living or (len(call_id) == _ID_LENGTH and call_id[_MARK] not in self.living)

    def _close(self, calls: Iterable[str]) -> None:
        for call_id in calls:
            self.open.pop(call_id, None)


def mark_interrupted(left: _Left, now_ms: int) -> Unit[Interrupted]:
    """Marks them, and forgets the notes that were read: at once where nobody lives, else at a second look."""
    count = len((yield _Q.interrupt_calls(now_ms=now_ms, living=left.living)))
    while left.first is not None and left.take((yield left.next_piece())):
        pass
    if left.open:
        rows = yield _JOURNAL.not_given_back(calls=_ENCODE([*left.open]).decode())
        yield from call_journal.write_interrupted([row["id"] for row in rows], now_ms)
        count += len(rows)
    notes = yield _JOURNAL.notes_of_the_dead(living=left.living)
    # What was noted meanwhile stays as it is, for the next look.
    read = [row for row in notes if left.notes.get(row["ledger"]) == _note(row)]
    over = [row["ledger"] for row in read if not left.living or _is_settled(row, now_ms)]
    yield _JOURNAL.forget_open_calls(ledgers=_ENCODE(over).decode())
    rest = [row["ledger"] for row in read if row["ledger"] not in over]
    yield _JOURNAL.move_open_calls(ledgers=_ENCODE(rest).decode(), now_ms=now_ms)
    return Interrupted(count, len(over) == len(notes))


def _is_settled(row: Row, now_ms: int) -> bool:
    return row["marked_ms"] is not None and row["marked_ms"] <= now_ms - SETTLED_MS


def _by_ledger(notes: list[Row]) -> dict[str, tuple[int, str]]:
    return {row["ledger"]: _note(row) for row in notes}


def _note(row: Row) -> tuple[int, str]:
    return row["since"], row["calls"]
