"""Calls that a dead process left without an end: found, and marked as interrupted (contract 4.3; security F2).

They stay charged. Most are in the journal, which is read from the first row on that can have one of them: a note says
which that is, and which older calls were open (`open_calls`). A start does so before it serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.storage.engine.database import unit_of_work
from tollkeeper.storage.engine.queries import load_queries
from tollkeeper.storage.ledger import call_journal

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Row, Steps

PIECE_ROWS: Final = 64  # some thousand calls

_MARK: Final = slice(12, 20)  # of a call's id: its program's

_Q: Final = load_queries("gateway.sql")
_JOURNAL: Final = load_queries("call_journal.sql")
_ENCODE: Final = msgspec.json.Encoder().encode
_CALLS: Final = msgspec.json.Decoder(list[str]).decode
_SPENT: Final = msgspec.json.Decoder(dict[str, int]).decode
_ENDED: Final = msgspec.json.Decoder(dict[str, list[str]]).decode


@unit_of_work
def interrupt_calls(now_ms: int, mark: str = "") -> Steps[int]:
    """Mark every call of the program with this mark that has no end; how many there were. It serves no more.

    Without a mark every program's: then nobody else may serve meanwhile.
    """
    count = len((yield _Q.interrupt_calls(now_ms=now_ms, mark=mark)))
    notes = yield _JOURNAL.open_calls(mark=mark)
    if not notes:
        return count
    left = [call_id for call_id in (yield from _left_open(notes)) if mark in {"", call_id[_MARK]}]
    if left:
        rows = yield _JOURNAL.not_given_back(calls=_ENCODE(left).decode())
        yield from call_journal.write_interrupted([row["id"] for row in rows], now_ms)
        count += len(rows)
    yield _JOURNAL.forget_open_calls(mark=mark)
    return count


@unit_of_work
def _left_open(notes: list[Row]) -> Steps[dict[str, None]]:
    """The calls of the notes, and those of the journal behind them, that no row of the journal ends."""
    found = {call_id: None for note in notes for call_id in _CALLS(note["calls"])}
    first = min(note["since"] for note in notes)
    while rows := (yield _JOURNAL.piece_of_journal(first=first, many=PIECE_ROWS)):
        for row in rows:
            found |= dict.fromkeys(_SPENT(row["spent"]))
            for ended in (*_ENDED(row["ended"]).values(), _CALLS(row["interrupted"])):
                for call_id in ended:
                    found.pop(call_id, None)
        first = rows[-1]["number"] + 1
    return found
