"""The numbered schema: which migrations there are, and which of them a database still needs.

Files `NNNN_name.sql` in `storage/migrations/` are applied once each, in order, in a transaction each, and remembered in
`schema_migrations` with their checksum. What a database remembers must be the beginning of what this program knows:
anything else was made by a newer or a different program and is refused. Applying them is the engine's work.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_FILE_NAME: Final = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql", re.ASCII)

OTHER_SCHEMA: Final = (
    "the schema is another version's: `tollkeeper db migrate` lifts an older one, a newer one needs its program"
)
SCHEMA_TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    applied_ms BIGINT NOT NULL,
    checksum TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hex: an applied migration is never edited."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """Record of an applied migration in a database."""

    version: int
    name: str
    checksum: str


def load_migrations(folder: str = "") -> tuple[Migration, ...]:
    """Every migration of this program, in order; `folder`: of an engine that has its own. Raises: ValueError."""
    found = ((entry.name, entry) for entry in files("tollkeeper.storage").joinpath("migrations", folder).iterdir())
    return read_migrations((name, entry.read_text("utf-8")) for name, entry in found if name.endswith(".sql"))


def read_migrations(named_texts: Iterable[tuple[str, str]]) -> tuple[Migration, ...]:
    """Migrations from file names and texts. Raises: ValueError for a wrong name or a number used twice."""
    migrations: dict[int, Migration] = {}
    for file_name, text in named_texts:
        match = _FILE_NAME.fullmatch(file_name)
        if match is None:
            raise ValueError(f"{file_name} is no name for a migration")
        version = int(match[1])
        if version in migrations:
            raise ValueError(f"two migrations have the number {version}")
        migrations[version] = Migration(version, match[2], text)
    return tuple(migrations[version] for version in sorted(migrations))


def missing_migrations(known: Sequence[Migration], applied: Sequence[Applied]) -> tuple[Migration, ...]:
    """The migrations that a database with this history still needs.

    Raises: StorageError where the history is not the beginning of `known`.
    """
    if applied and known and (applied[0].version, applied[0].name) != (known[0].version, known[0].name):
        raise StorageError(
            "the database was made by a development version "
            f"(its schema begins with {applied[0].version:04}_{applied[0].name}), which this program cannot bring up "
            "to date; nothing was changed: start it with that version, or give this one a new database file"
        )
    newest = known[-1].version if known else 0
    if applied and applied[-1].version > newest:
        raise StorageError(
            f"the database has schema version {applied[-1].version}, this program knows {newest}: "
            "start the newer program, or restore the backup made before the upgrade"
        )
    for done, migration in zip(applied, known, strict=False):
        if (done.version, done.name) != (migration.version, migration.name):
            raise StorageError(
                f"the database has applied {done.version:04}_{done.name}, this program has no such migration there"
            )
        if done.checksum != migration.checksum:
            raise StorageError(f"migration {done.version:04}_{done.name} is not the one that the database has applied")
    return tuple(known[len(applied) :])


def statements_of(script: str) -> Iterator[str]:
    """The statements of a script, each of which ends with a semicolon at the end of a line."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
