"""Rows of objects in the store of files: sold by a PayGate, sold no more, or being written (contract 3.3, 4.8).

A content that was replaced, or whose gate was deleted, keeps its row until every link to it is over, and no call of its
gate is due any more: then it is cut. A content that is being written has a row too, which names its owner: it ends as
sold, in the commit that names its gate, or as cut. A content that is cut is never sold and may be deleted.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.downloads import StoredFile
from tollkeeper.core.purchases import PurchaseState
from tollkeeper.storage.engine.database import OURSELVES, load_queries, rows_of, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Database, Row, Snapshot, Steps

_Q = load_queries("files.sql")
_AT_ONCE = 100
_LOOKED_AGAIN_MS = 3600 * 1000  # a file that is due to somebody: its gate may have sold millions
_SALES_AT_ONCE = 100_000  # some tenths of a second, in which every other list waits
# As sales go from one to the next, so that none is missed that does meanwhile; what is claimed may fail, and the other
# way round.
_IN_TURN = (
    PurchaseState.CLAIMED,
    PurchaseState.FAILED,
    PurchaseState.CLAIMED,
    PurchaseState.PARKED,
    PurchaseState.LIVE,
    PurchaseState.VOID,
)


@unit_of_work
def keep_file(gate_id: int, file: StoredFile, now_ms: int) -> Steps[None]:
    """Make this the content that the gate sells from now on. Raises: UNAVAILABLE where its upload was cut."""
    sold = yield _Q.sell_upload(file_id=file.id)
    if not sold:
        raise ApiError(Code.UNAVAILABLE, "the upload was given up: send the file again")
    yield _Q.replace_files(gate_id=gate_id, now_ms=now_ms)
    yield _Q.insert_file(**asdict(file), gate_id=gate_id, now_ms=now_ms)


def every_file(snapshot: Snapshot) -> list[StoredFile]:
    """The contents that are kept: sold, or by a link that is out."""
    return [StoredFile(**row) for row in snapshot.read(_Q.every_file())]


@unit_of_work
def give_up_files(gate_id: int, now_ms: int) -> Steps[None]:
    """The gate sells no content any more: it is deleted."""
    yield _Q.replace_files(gate_id=gate_id, now_ms=now_ms)


def file_of_row(paygate: Row) -> StoredFile | None:
    """Return the file that a PayGate's row sells; None for a target, and if the content is not kept."""
    if paygate["file_sha256"] is None:
        return None
    return StoredFile(
        paygate["file_id"],
        paygate["file_name"],
        paygate["file_size_bytes"],
        paygate["file_content_type"],
        paygate["file_sha256"],
    )


async def find_file(database: Database, file_id: str) -> StoredFile | None:
    """The content with this id, sold or replaced."""
    rows = await database.read(_Q.file_by_id(id=file_id))
    return StoredFile(**rows[0]) if rows else None


async def cut_left_files(database: Database, now_ms: int) -> None:
    """Cut contents that no gate sells, to which no link is out, and which are due to nobody."""
    while left := await database.read(_Q.left_files(now_ms=now_ms, limit=_AT_ONCE)):
        for row in left:
            if row["gate_id"] is not None and await _is_any_due(database, row["gate_id"], now_ms):
                await keep_until(database, row["id"], now_ms, now_ms + _LOOKED_AGAIN_MS)
            else:
                await database.run(_cut_left_file(row["id"], now_ms))


@unit_of_work
def _cut_left_file(file_id: str, now_ms: int) -> Steps[None]:
    """The last call that was due may have been taken meanwhile: it had the content kept before."""
    if (yield _Q.leave_file(id=file_id, now_ms=now_ms)):
        yield _Q.cut_left_file(file_id=file_id, now_ms=now_ms)


async def _is_any_due(database: Database, gate_id: int, now_ms: int) -> bool:
    """Is a call of what this deleted gate sold due, or may one be? Some of that at a time: it may be millions."""
    for state in _IN_TURN:
        looked, after = _SALES_AT_ONCE, -1
        while looked == _SALES_AT_ONCE:
            asked = _Q.due_in_piece(gate_id=gate_id, state=state, after=after, many=_SALES_AT_ONCE, now_ms=now_ms)
            (piece,) = await database.read(asked, tenant=OURSELVES)
            if piece["is_due"]:
                return True
            looked, after = piece["looked"], piece["last"]
    return False


async def keep_until(database: Database, file_id: str, least_ms: int, until_ms: int) -> bool:
    """Has a content kept until then, unless it is kept until `least_ms` already. False where it is gone."""
    rows = await database.read(_Q.kept_until(id=file_id), is_short=True)
    if rows and rows[0]["kept_until_ms"] >= least_ms:
        return True
    return bool(await database.run(rows_of(_Q.keep_file(id=file_id, until_ms=until_ms))))


@unit_of_work
def begin_upload(file_id: str, mark: str, now_ms: int) -> Steps[None]:
    """The process with this mark is writing a content."""
    yield _Q.begin_upload(file_id=file_id, mark=mark, now_ms=now_ms)


@unit_of_work
def cut_upload(file_id: str) -> Steps[bool]:
    """Nobody may sell the content any more; False, and nothing is cut, where it was sold."""
    rows = yield _Q.cut_upload(file_id=file_id)
    return bool(rows)


@unit_of_work
def cut_all_uploads(mark: str = "") -> Steps[None]:
    """Let nobody sell what the dead process with this mark was writing; what any was, where nobody else is writing."""
    yield _Q.cut_all_uploads(mark=mark)


async def cut_uploads(database: Database) -> list[str]:
    """Ids of contents whose upload was cut, some at a time."""
    return [row["file_id"] for row in await database.read(_Q.cut_uploads(limit=_AT_ONCE))]


@unit_of_work
def forget_upload(file_id: str) -> Steps[None]:
    """The object of an upload that was cut is deleted."""
    yield _Q.forget_upload(file_id=file_id)


async def is_orphan(database: Database, file_id: str) -> bool:
    """Return True if no row names the object, not even one of an upload."""
    return bool(await database.read(_Q.orphan(id=file_id)))


async def mark_of_database(database: Database) -> str:
    """Return what tells this database, and copies of it, from every other: when it was made."""
    (row,) = await database.read(_Q.mark_of_database())
    return f"made at {row['applied_ms']}"
