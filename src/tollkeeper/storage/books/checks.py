"""Turns at checking the books: among programs that share a database one does, and the next when that one is silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Steps

_Q: Final = load_queries("book_checks.sql")
NEVER_MS: Final = 2**62


class LastCheck(NamedTuple):
    """When what had changed was checked last, and when everything was; 0 where it never was, or something differed."""

    changes_ms: int
    all_ms: int


@unit_of_work
def take_turn(role: str, holder: str, until_ms: int, now_ms: int, *, is_alone: bool) -> Steps[LastCheck | None]:
    """Have the turn until then, and the last check of this role's books; None where it is another program's."""
    ended_ms = NEVER_MS if is_alone else now_ms
    for row in (yield _Q.take_check(role=role, holder=holder, until_ms=until_ms, ended_ms=ended_ms)):
        return LastCheck(row["changes_ms"], row["all_ms"])
    return None


@unit_of_work
def last_checked_ms(role: str) -> Steps[int]:
    """Return when a program checked this role's books last; 0 where none did."""
    rows = yield _Q.last_check(role=role)
    return rows[0]["changes_ms"] if rows else 0


@unit_of_work
def note_turn(role: str, holder: str, check: LastCheck, until_ms: int) -> Steps[None]:
    """Note a check that was made, and have the turn until then."""
    yield _Q.note_check(role=role, holder=holder, begun_ms=check.changes_ms, all_ms=check.all_ms, until_ms=until_ms)
