"""Open calls of one ledger, and the ends of other calls, until both are in the database (contract 4.3).

A call's end is written with the spends that come next. Calls that spent by `spends.KnownSpends` are in the
journal, of which every row has many calls: this module is told the row's number. Once in a while it notes in the
database which calls are open, and from which row on there may be more. If this process dies, no more of the journal
than that is read. `OpenCalls` does not ask the database.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tollkeeper.api import PROCESS_MARK
from tollkeeper.storage.engine.database import load_queries, unit_of_work
from tollkeeper.storage.ledger import call_journal
from tollkeeper.storage.ledger.call_journal import Open

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.storage.engine.database import Row, Steps

ENDED_MAX: Final = 100_000  # with one status
ENDED_AT_ONCE: Final = 256  # of each status: mostly below a millisecond of the writer's time
_NOTED_EVERY: Final = 64  # rows, and more where so many calls are open that naming them is work
_OPEN_PER_ROW: Final = 16

_names = itertools.count(1)


class Ended(NamedTuple):
    """By status, calls that are written as ended: those in the journal, and those with rows of their own."""

    journal: dict[int, list[str]]
    single: dict[int, list[str]]


class OpenCalls:
    """Open calls of one ledger, and ends of calls that are not written yet."""

    def __init__(self) -> None:
        self.name = f"{PROCESS_MARK}-{next(_names)}"
        self.newest = 0  # row of the journal: what is spent from now on is behind it
        self._row_of: dict[str, int] = {}
        self._ended = Ended({}, {})
        self._noted: int | None = None
        self._dropped = 0
        self._unserved: dict[str, None] = {}  # of which no row is known
        self._owed: dict[str, int] = {}  # the same of which it is
        self._unserved_since = 0

    def spent(self, calls: Iterable[str], row: int) -> None:
        """These are in this row of the journal."""
        self._row_of |= dict.fromkeys(calls, row)
        self.newest = max(self.newest, row)

    def row_of(self, call_id: str) -> int | None:
        """The journal's row that an open call is in."""
        return self._row_of.get(call_id)

    def end(self, call_id: str, status: int) -> None:
        """Note that a call has ended, with its status."""
        if call_id in self._unserved or call_id in self._owed:
            return  # what gives its credit back writes its end, too
        if call_id in self._row_of:  # there are no more than were open
            self._ended.journal.setdefault(status, []).append(call_id)
        else:
            self._end_single(call_id, status)

    def _end_single(self, call_id: str, status: int) -> None:
        single = self._ended.single.setdefault(status, [])
        if len(single) < ENDED_MAX:
            single.append(call_id)
        else:
            self._dropped += 1

    def take_dropped(self) -> int:
        """Return how many ends were dropped since this was asked last."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def take_ended(self) -> Ended:
        """Some that are to be written now, and then told to be `written`, or `put_back`."""
        journal, single = self._ended
        if not journal and not single:
            return Ended({}, {})
        self._ended = Ended(_rest_of(journal), _rest_of(single))
        return Ended(journal, single)

    def written(self, ended: Ended, opened: dict[str, Open]) -> None:
        """These ends are in the database, and so is what `to_note` said."""
        close = self._row_of.pop
        for calls in ended.journal.values():
            for call_id in calls:
                close(call_id, None)
        if self.name in opened:
            self._noted = opened[self.name].since

    def put_back(self, ended: Ended) -> None:
        """Writing them twice changes nothing."""
        for its, back in zip(self._ended, ended, strict=True):
            for status, calls in back.items():
                its.setdefault(status, []).extend(calls)

    def note_anew(self) -> None:
        """Note with the next spends what is open, since what was noted is gone."""
        self._noted = None

    def to_note(self) -> dict[str, Open]:
        """Return what to note beside `take_ended`'s calls, by this ledger's name; nothing if it was done of late."""
        every = max(_NOTED_EVERY, len(self._row_of) // _OPEN_PER_ROW)
        since = min(self.newest + 1, self._unserved_since) if self._unserved else self.newest + 1
        if self._noted is not None and since < self._noted + every:
            return {}
        return {self.name: Open(since, [*self._row_of])}

    def refused(self, call_id: str, since: int | None = None) -> None:
        """Note a call whose credit is to be given back, if it took one: see `Ledger.refused`.

        If it took one, the journal has it in a row from `since` on, or from the next row on. If its row is known, that
        row counts.
        """
        if len(self._unserved) + len(self._owed) >= ENDED_MAX:
            return
        if (row := self._row_of.get(call_id)) is not None:
            self._owed[call_id] = row
        else:
            since = self.newest + 1 if since is None else since
            self._unserved_since = min(since, self._unserved_since) if self._unserved else since
            self._unserved[call_id] = None

    @property
    def owes(self) -> bool:
        """True if any call may have taken a credit that is to be given back."""
        return bool(self._unserved or self._owed)

    def some_unserved(self) -> tuple[dict[str, int | None], int]:
        """Some that may have taken a credit: in the row of the journal that each has, else, if so, from this one on."""
        waiting: Iterable[tuple[str, int | None]] = itertools.chain(self._unserved.items(), self._owed.items())
        return dict(itertools.islice(waiting, ENDED_AT_ONCE)), self._unserved_since

    def given_back(self, calls: Iterable[str]) -> None:
        """Forget these calls: what they took, if anything, their purchases have again, and they have their ends."""
        for call_id in calls:
            self._unserved.pop(call_id, None)
            self._owed.pop(call_id, None)
            self._row_of.pop(call_id, None)

    def not_given_back(self, call_id: str, status: int) -> None:
        """End a call that keeps its credit, with this status: in the journal, and as a row if none is known."""
        if self._owed.pop(call_id, None) is None:
            self._unserved.pop(call_id, None)
            self._end_single(call_id, status)
        self._ended.journal.setdefault(status, []).append(call_id)


def _rest_of(ended: dict[int, list[str]]) -> dict[int, list[str]]:
    """Take from these what is too much for once."""
    rest: dict[int, list[str]] = {}
    for status, calls in ended.items():
        if len(calls) > ENDED_AT_ONCE:
            rest[status] = calls[ENDED_AT_ONCE:]
            del calls[ENDED_AT_ONCE:]
    return rest


# Calls that a dead process left without an end: found, and marked as interrupted (contract 4.3; security F2). They stay
# charged. Most are in the journal, which is read from the first row on that can have one of them: a note says which
# that is, and which older calls were open (`open_calls`). A start does so before it serves.

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
